"""HTTP/1.1 heads, read strictly and without I/O.

Room: net. Nothing here reads, waits or logs: bytes in, values or `BadMessage` out. What two readers could understand
differently is refused, since that difference is how one request is smuggled inside another: CRLF only, one space, no
folding, one framing, one Host. Times and sizes are the caller's; only the sizes that decide a status are checked here.
"""

import ipaddress
import re
from dataclasses import dataclass

from lib.base.errors import LlmgwError

LINE_LIMIT = 8 * 1024
HEAD_LIMIT = 32 * 1024
FIELD_LIMIT = 100
CHUNKED, UNTIL_CLOSE = -1, -2              # body lengths that are not numbers

Fields = list[tuple[bytes, bytes]]

_TOKEN = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb'[!"$-~]+')         # visible ASCII without "#"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_DIGITS = re.compile(rb"[0-9]+")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t -~\x80-\xff]*)?")
_HOST = re.compile(rb"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(/.*)", re.IGNORECASE)

_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})
_MASKED = frozenset({b"content_length", b"transfer_encoding", b"x_api_key", b"proxy_authorization"})   # read as "-" by some
FRAMING_FIELDS = frozenset({b"content-length", b"transfer-encoding", b"host", b"authorization", b"x-api-key", b"connection",
                            b"te", b"trailer", b"upgrade"})

_known_fields: dict[bytes, tuple[bytes, bytes]] = {}       # line -> (name, value): clients repeat themselves


class BadMessage(LlmgwError):
    """The peer broke the protocol; `status` is what a client is told."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request head that leaves no doubt. `target` is in origin form, names are lower-case, `length` may be CHUNKED."""

    method: bytes
    target: bytes
    minor: int                             # HTTP/1.minor
    fields: Fields
    length: int
    keep_alive: bool
    expects_continue: bool

    def values(self, name: bytes) -> list[bytes]:
        """Every value of the field `name`."""
        return [value for field, value in self.fields if field == name]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A response head that leaves no doubt. `length` may be CHUNKED or UNTIL_CLOSE."""

    status: int
    minor: int
    fields: Fields
    length: int
    keep_alive: bool


def find_head(data: bytes, checked: int = 0) -> tuple[int, int]:
    """Where the head in `data` starts (one empty line may come before it) and ends; (0, -1) while it is not whole.

    Raises BadMessage as soon as it can no longer become a good one. `checked` bytes were there at the last call.
    """
    start = 2 if data.startswith(b"\r\n") else 0
    end = data.find(b"\r\n\r\n", start)
    if end < 0:
        _check_partial(data[start:], max(0, checked - start - 1))
        return 0, -1
    return start, end


def _check_partial(data: bytes, checked: int) -> None:
    end = data.find(b"\r\n")
    if end >= 0:
        _request_line(data[:end])
    elif len(data) > LINE_LIMIT:
        raise BadMessage("request line too long", 414)
    elif data and data != b"\r" and not _TOKEN.match(data):
        raise BadMessage("not an HTTP request")
    if len(data) > HEAD_LIMIT:
        raise BadMessage("request head too large", 431)
    if _BARE.search(data, checked, len(data) - data.endswith(b"\r")):
        raise BadMessage("a line does not end in CR LF")


def parse_request(head: bytes) -> RequestHead:
    """`head` is everything before CR LF CR LF. Raises BadMessage with the status to answer."""
    first, _, rest = head.partition(b"\r\n")
    method, target, minor = _request_line(first)
    if len(head) > HEAD_LIMIT:
        raise BadMessage("request head too large", 431)
    fields = parse_fields(rest)
    found = _single(fields)
    host = found.get(b"host")
    if host is None:
        if minor:
            raise BadMessage("no Host field")
    elif not _valid_host(host):
        raise BadMessage("malformed Host field")
    connection = field_tokens(fields, b"connection")
    return RequestHead(method, _origin_form(target, host), minor, fields, _request_length(method, minor, found),
                       b"close" not in connection if minor else b"keep-alive" in connection,
                       _expectation(found, minor))


def parse_response(head: bytes) -> ResponseHead:
    """`head` is everything before CR LF CR LF of an answer to a request that was not HEAD. Raises BadMessage."""
    first, _, rest = head.partition(b"\r\n")
    match = _STATUS.fullmatch(first)
    if not match:
        raise BadMessage("malformed status line", 502)
    fields = parse_fields(rest)
    found = _single(fields)
    minor, status = int(match[1]), int(match[2])
    length = _response_length(status, minor, found)
    connection = field_tokens(fields, b"connection")
    alive = b"close" not in connection if minor else b"keep-alive" in connection
    return ResponseHead(status, minor, fields, length, alive and length != UNTIL_CLOSE)


def parse_fields(lines: bytes) -> Fields:
    """Field lines joined by CR LF, as lower-case names and trimmed values. Raises BadMessage."""
    if not lines:
        return []
    fields = []
    for line in lines.split(b"\r\n"):
        field = _known_fields.get(line)
        if field is None:
            field = _parse_field(line)
        fields.append(field)
    if len(fields) > FIELD_LIMIT:
        raise BadMessage(f"more than {FIELD_LIMIT} header fields", 431)
    return fields


def forget_fields() -> None:
    """Empty the memory of field lines seen (it may hold credentials)."""
    _known_fields.clear()


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name):
        raise BadMessage("malformed header field")
    if b"\r" in value or b"\n" in value or _CONTROL.search(value):
        raise BadMessage("control character in a header field")
    field = name.lower(), value.strip(b" \t")
    if field[0] in _MASKED:
        raise BadMessage("field name with an underscore that others read as a hyphen")
    if len(line) <= 1024:
        if len(_known_fields) >= 4096:
            _known_fields.clear()
        _known_fields[line] = field
    return field


def _request_line(line: bytes) -> tuple[bytes, bytes, int]:
    if len(line) > LINE_LIMIT:
        raise BadMessage("request line too long", 414)
    parts = line.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]) or not _VERSION.fullmatch(parts[2]):
        raise BadMessage("malformed request line")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadMessage("only HTTP/1.0 and HTTP/1.1 are spoken here", 505)
    if method not in _METHODS:
        raise BadMessage("method not implemented", 501)
    return method, target, int(version[-1:])


def _single(fields: Fields) -> dict[bytes, bytes]:
    """The fields that decide about framing and addressing: none of them may come twice."""
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in (b"content-length", b"transfer-encoding", b"host", b"expect", b"content-encoding"):
            if name in found:
                raise BadMessage(f"more than one {name.decode()} field")
            found[name] = value
    return found


def field_tokens(fields: Fields, name: bytes) -> list[bytes]:
    """The words of a field that is a list, such as Connection, in lower case."""
    return [token.strip(b" \t").lower() for field, value in fields if field == name for token in value.split(b",")]


def _request_length(method: bytes, minor: int, found: dict[bytes, bytes]) -> int:
    coding, text = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None:
        if text is not None:
            raise BadMessage("both Transfer-Encoding and Content-Length")
        if not minor:
            raise BadMessage("Transfer-Encoding in an HTTP/1.0 request")
        _check_coding(coding)
    length = CHUNKED if coding is not None else 0 if text is None else parse_length(text)
    if method in _WITH_BODY:
        if coding is None and text is None:
            raise BadMessage("a length is required", 411)
    elif length:
        raise BadMessage(f"{method.decode()} with a body")
    return length


def _response_length(status: int, minor: int, found: dict[bytes, bytes]) -> int:
    coding, text = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None and (text is not None or not minor or coding.lower() != b"chunked"):
        raise BadMessage("response with unclear framing", 502)
    length = CHUNKED if coding is not None else UNTIL_CLOSE if text is None else parse_length(text)
    if status < 200 or status in (204, 304):
        if length not in (0, UNTIL_CLOSE):
            raise BadMessage(f"response {status} with a body", 502)
        return 0
    return length


def parse_length(text: bytes) -> int:
    """The number in a Content-Length; 413 where it has too many digits to be meant."""
    if not _DIGITS.fullmatch(text):
        raise BadMessage("malformed Content-Length")
    if len(text) > 19:
        raise BadMessage("request body too large", 413)
    return int(text)


def _check_coding(coding: bytes) -> None:
    codings = [item.strip(b" \t").lower() for item in coding.split(b",")]
    if codings == [b"chunked"]:
        return
    wellformed = all(_TOKEN.fullmatch(item) for item in codings)
    if not wellformed or b"identity" in codings or b"chunked" in codings[:-1]:
        raise BadMessage("malformed Transfer-Encoding")
    raise BadMessage("transfer coding not implemented", 501)


def _expectation(found: dict[bytes, bytes], minor: int) -> bool:
    text = found.get(b"expect")
    if text is None or not minor:
        return False
    if text.lower() != b"100-continue":
        raise BadMessage("unknown expectation", 417)
    return True


def _valid_host(host: bytes) -> bool:
    match = _HOST.fullmatch(host)
    if not match or (match[2] is not None and not 1 <= int(match[2]) <= 65535):
        return False
    if host.startswith(b"["):
        try:
            ipaddress.IPv6Address(match[1][1:-1].decode())
        except ValueError:
            return False
    return True


def _origin_form(target: bytes, host: bytes | None) -> bytes:
    if target.startswith(b"/"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if not match:
        raise BadMessage("malformed request target")
    if host is None or match[1].lower() != host.lower():
        raise BadMessage("request target of another host")
    return match[2]
