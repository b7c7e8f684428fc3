"""Requests that tell a strict HTTP/1.1 reader from a lenient one, each with the status it must earn.

`BODY` is a good JSON body; a vector is the whole of what a client sends. The same list goes through the parser alone and
through a running router.
"""

BODY = b'{"model":"m"}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"Host: llmgw\r\n"
AUTH = b"Authorization: Bearer llmgw_test_key\r\n"
HEAD = POST + HOST + AUTH
SIZED = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def with_field(line: bytes, body: bytes = BODY) -> bytes:
    """A request whose framing is `line` alone."""
    return HEAD + line + b"\r\n\r\n" + body


def with_chunks(chunks: bytes) -> bytes:
    """A chunked request."""
    return HEAD + CHUNKED + b"\r\n" + chunks


def extra(line: bytes) -> bytes:
    """A good request with one more field line."""
    return HEAD + SIZED + line + b"\r\n\r\n" + BODY


def request_line(line: bytes) -> bytes:
    """A good request but for its first line."""
    return line + b"\r\n" + HOST + AUTH + SIZED + b"\r\n" + BODY


def hosted(*lines: bytes) -> bytes:
    """A good request but for its Host fields."""
    return POST + b"".join(line + b"\r\n" for line in lines) + AUTH + SIZED + b"\r\n" + BODY


_LENGTHS = [b"7, 7", b"+7", b"-7", b"0x7", b"1_0", b"7 7", b"", b"7\x0b", b"7\xa0", "\uff17".encode()]
_CODINGS = [b"chunked, chunked", b",chunked", b"chunked,", b"identity", b"chunked, gzip", b"\x0bchunked", b"chunked\xa0",
            b'"chunked"', b""]
_SIZES = [b"0x7", b"+7", b"-7", b"0_7", b" 7", b"7 ", b"", b"7z", b"00000000000000007"]

BAD: list[tuple[str, bytes, int]] = [
    *((f"Content-Length {text!r}", with_field(b"Content-Length: " + text), 400) for text in _LENGTHS),
    ("two equal Content-Length", with_field(b"Content-Length: 13\r\nContent-Length: 13"), 400),
    ("two different Content-Length", with_field(b"Content-Length: 13\r\nContent-Length: 3"), 400),
    ("blank before colon of Content-Length", with_field(b"Content-Length : 13"), 400),
    ("Content_Length", with_field(b"Content_Length: 13"), 400),
    ("Content_Length beside the real one", extra(b"Content_Length: 3"), 400),
    *((f"Transfer-Encoding {text!r}", with_field(b"Transfer-Encoding: " + text, CHUNKS), 400) for text in _CODINGS),
    ("two Transfer-Encoding", with_field(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", CHUNKS), 400),
    ("folded Transfer-Encoding", with_field(b"Transfer-Encoding:\r\n chunked", CHUNKS), 400),
    ("blank before colon of Transfer-Encoding", with_field(b"Transfer-Encoding : chunked", CHUNKS), 400),
    ("Transfer_Encoding", with_field(b"Transfer_Encoding: chunked", CHUNKS), 400),
    ("Transfer-Encoding on 1.0", with_field(b"Transfer-Encoding: chunked", CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    ("Transfer-Encoding then Content-Length", with_field(b"Transfer-Encoding: chunked\r\nContent-Length: 13", CHUNKS), 400),
    ("Content-Length then Transfer-Encoding", with_field(b"Content-Length: 13\r\nTransfer-Encoding: chunked", CHUNKS), 400),
    *((f"chunk size {text!r}", with_chunks(text + b"\r\n1234567\r\n0\r\n\r\n"), 400) for text in _SIZES),
    ("chunk line ending in LF", with_chunks(b"d\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("last chunk ending in LF", with_chunks(b"d\r\n" + BODY + b"\r\n0\n\r\n"), 400),
    ("chunk data not followed by CRLF", with_chunks(b"d\r\n" + BODY + b"XX0\r\n\r\n"), 400),
    ("CR in an extension", with_chunks(b"d;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("LF in an extension", with_chunks(b"d;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("64 KiB extension", with_chunks(b"d;" + b"a" * 65536 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("framing field in the trailer", with_chunks(b"d\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"), 400),
    ("last chunk, LF, rubbish", with_chunks(b"d\r\n" + BODY + b"\r\n0\nXX"), 400),
    ("LF after the request line", HEAD.replace(b"\r\n", b"\n", 1) + SIZED + b"\r\n" + BODY, 400),
    ("LF between fields", HEAD + SIZED.replace(b"\r\n", b"\n") + b"X: y\r\n\r\n" + BODY, 400),
    ("LF at the end", HEAD + SIZED + b"\n" + BODY, 400),
    ("CR in a value", extra(b"X: a\rb"), 400),
    ("NUL in a value", extra(b"X: a\x00b"), 400),
    ("DEL in a value", extra(b"X: a\x7fb"), 400),
    ("folding", extra(b"X: a\r\n b"), 400),
    ("space before the first field", POST + b" X: y\r\n" + HOST + AUTH + SIZED + b"\r\n" + BODY, 400),
    ("empty name", extra(b": y"), 400),
    ("no colon", extra(b"nonsense"), 400),
    ("bad character in a name", extra(b"Fo@: y"), 400),
    ("NEL in a name", extra(b"X\x85: y"), 400),
    ("CRLF, CR, X", POST + HOST + b"\rX: y\r\n" + AUTH + SIZED + b"\r\n" + BODY, 400),
    ("two spaces in the request line", request_line(b"POST  /v1/chat/completions HTTP/1.1"), 400),
    ("tab in the request line", request_line(b"POST\t/v1/chat/completions HTTP/1.1"), 400),
    ("trailing space in the request line", request_line(b"POST /v1/chat/completions HTTP/1.1 "), 400),
    ("lower-case version", request_line(b"POST /v1/chat/completions http/1.1"), 400),
    ("HTTP/1.01", request_line(b"POST /v1/chat/completions HTTP/1.01"), 400),
    ("HTTP/0.9", b"GET /v1/models\r\n", 400),
    ("bad method character", request_line(b"PO(T /v1/chat/completions HTTP/1.1"), 400),
    ("NUL in the target", request_line(b"POST /v1/chat\x00 HTTP/1.1"), 400),
    ("UTF-8 in the target", request_line("POST /v1/ch\u00e4t HTTP/1.1".encode()), 400),
    ("fragment in the target", request_line(b"POST /v1/chat/completions#x HTTP/1.1"), 400),
    ("other authority", request_line(b"POST http://other/v1/chat/completions HTTP/1.1"), 400),
    ("user information in the authority", request_line(b"POST http://a@llmgw/v1/chat/completions HTTP/1.1"), 400),
    ("asterisk", b"GET * HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", 400),
    ("target without slash", request_line(b"POST v1/chat/completions HTTP/1.1"), 400),
    ("TLS on a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ("no Host", hosted(), 400),
    ("two Hosts", hosted(b"Host: llmgw", b"Host: llmgw"), 400),
    *((f"Host {text!r}", hosted(b"Host: " + text), 400)
      for text in (b"ll mgw", b"a@llmgw", b"llmgw/", b"llmgw:0", b"llmgw:65536", b"llmgw:x", b"a,b", b"[::1", b"[::zz]")),
    ("GET with a body", b"GET /v1/models HTTP/1.1\r\n" + HOST + AUTH + SIZED + b"\r\n" + BODY, 400),
    ("GET with chunks", b"GET /v1/models HTTP/1.1\r\n" + HOST + AUTH + CHUNKED + b"\r\n" + CHUNKS, 400),
    ("POST without length", HEAD + b"\r\n", 411),
    ("huge Content-Length", with_field(b"Content-Length: 99999999999"), 413),
    ("Content-Length of 20 digits", with_field(b"Content-Length: 10000000000000000000"), 413),
    ("9,000-byte target", request_line(b"POST /" + b"a" * 9000 + b" HTTP/1.1"), 414),
    ("unknown Expect", extra(b"Expect: tea"), 417),
    ("101 fields", HEAD + SIZED + b"X: y\r\n" * 98 + b"\r\n" + BODY, 431),
    ("40 KiB field", extra(b"X: " + b"a" * 40960), 431),
    ("coding xchunked", with_field(b"Transfer-Encoding: xchunked", CHUNKS), 501),
    ("coding gzip, chunked", with_field(b"Transfer-Encoding: gzip, chunked", CHUNKS), 501),
    ("method BREW", request_line(b"BREW /v1/chat/completions HTTP/1.1"), 501),
    ("method CONNECT", request_line(b"CONNECT llmgw:443 HTTP/1.1"), 501),
    ("HTTP/2.0", request_line(b"POST /v1/chat/completions HTTP/2.0"), 505),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
]

GOOD: list[tuple[str, bytes]] = [
    ("Content-Length", HEAD + SIZED + b"\r\n" + BODY),
    ("chunked", with_chunks(CHUNKS)),
    ("upper-case CHUNKED", HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKS),
    ("many chunks", with_chunks(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")),
    ("leading zeros", with_field(b"Content-Length: 0013")),
    ("short extension", with_chunks(b"d;a=b\r\n" + BODY + b"\r\n0;c\r\n\r\n")),
    ("harmless trailer", with_chunks(b"d\r\n" + BODY + b"\r\n0\r\nX-Sum: 1\r\n\r\n")),
    ("one leading CRLF", b"\r\n" + HEAD + SIZED + b"\r\n" + BODY),
    ("obs-text value", extra(b"X: caf\xe9")),
    ("absolute form of the same host", request_line(b"POST http://LLMGW/v1/chat/completions HTTP/1.1")),
    ("IPv6 Host", hosted(b"Host: [::1]:8080")),
    ("encoded CRLF stays opaque", request_line(b"POST /v1/chat/completions?x=%0d%0aX:%20y HTTP/1.1")),
]
