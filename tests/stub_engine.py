"""A guard with an engine behind it, in one thread per connection, that does exactly what a test tells it to.

It speaks real TLS with a node's certificate, insists on its epoch's name, and records every byte it was sent.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable

from lib.model.wire import Endpoint
from lib.net.http1 import parse_request
from tests.certificates import Pair

NONCE = "00000000000000aa"
JSON = b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(JSON), JSON)
STREAM_HEAD = (b"HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
               b"transfer-encoding: chunked\r\n\r\n")
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """`data` as one chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """One event of a stream, as one chunk."""
    return chunk(b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
                 b'{"content":"%s"}}]}\n\n' % text.encode())


DONE = chunk(b"data: [DONE]\n\n")


class Connection:
    """What a script sees of one connection: the request, and ways to answer or fail."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock, self._rest = sock, b""
        self.head, self.body = b"", b""

    def read_request(self) -> bool:
        """The next request into `head` and `body`; False where the router has closed."""
        data = self._rest
        while b"\r\n\r\n" not in data:
            if not (more := self._recv()):
                self._rest = data
                return False
            data += more
        self.head, _, data = data.partition(b"\r\n\r\n")
        length = parse_request(self.head).length
        while len(data) < length:
            if not (more := self._recv()):
                return False
            data += more
        self.body, self._rest = data[:length], data[length:]
        return True

    @property
    def surplus(self) -> bytes:
        """Bytes that belong to no request."""
        return self._rest

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def close(self) -> None:
        """End in good order."""
        with contextlib.suppress(OSError):
            self._sock.unwrap()
        self._sock.close()

    def reset(self) -> None:
        """Die: the router sees a reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def wait_closed(self) -> bool:
        """Wait for the router to close."""
        return not self._recv()

    def _recv(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except OSError:
            return b""


Script = Callable[[Connection], None]


def answer_ok(connection: Connection) -> None:
    """A small JSON answer."""
    connection.send(OK)


class StubGuard:
    """Listens from the start; `script` answers each request and may be swapped at any time."""

    def __init__(self, pair: Pair, *, id: str = "r1", node: str = "llmgw-node01", counter: int = 7, listens_for: str = "",
                 script: Script = answer_ok, context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[tuple[bytes, bytes]] = []
        self.surplus = b""
        self.handshakes = 0
        self.live: set[Connection] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(id, counter, NONCE, "127.0.0.1", self._listener.getsockname()[1], node, f"engine-key-of-{id}",
                                 "ready")
        self._expected = listens_for or self.endpoint.epoch.server_name
        self._context = context or pair.server_context()
        self._context.sni_callback = self._judge
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Refuse new connections; those open stay until the router closes them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _judge(self, _sock: object, name: str | None, _context: object) -> int | None:
        return None if name == self._expected else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        try:
            sock = self._context.wrap_socket(raw, server_side=True)
        except OSError:
            raw.close()
            return
        self.handshakes += 1
        connection = Connection(sock)
        self.live.add(connection)
        try:
            while connection.read_request():
                self.requests.append((connection.head, connection.body))
                self.script(connection)
        except OSError:
            pass
        finally:
            self.surplus += connection.surplus
            self.live.discard(connection)
            sock.close()
