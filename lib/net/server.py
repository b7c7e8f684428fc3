"""A threaded HTTPS server that speaks JSON: one thread a connection, handlers may block for a long poll.

Room: net. Knows no route and no role: every request goes to one `handle(request)`. The TLS handshake has a deadline and
belongs to the connection's own thread, so that a silent client holds up nobody else.
"""

import json
import logging
import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote

from lib.base.errors import LlmgwError, UsageError
from lib.net.listen import listen
from lib.net.problem import render_problem
from lib.net.tls import PeerCert, handshake_fault

log = logging.getLogger(__name__)

DIGITS = re.compile(r"[0-9]{1,15}")
MAX_BODY = 64 * 1024 * 1024
HANDSHAKE_S = 10.0
IDLE_S = 75.0                              # how long a kept-alive connection may be silent
BACKLOG = 1024                             # handshakes that wait for accept()
LINGER_S = 1.0                             # how long a refused client is still listened to, so that it can read why
STACK_BYTES = 1024 * 1024                  # a thousand of the usual 8 MiB fail where memory is not overcommitted


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are lower-case; `peer` is the caller's certificate, parsed once per connection."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: PeerCert | None
    peer_address: tuple[str, int]

    def json(self) -> Any:
        """The body as a JSON value; UsageError where it is none."""
        try:
            return json.loads(self.body)
        except ValueError as err:
            raise UsageError(f"the body of {self.method} {self.path} is not JSON: {err}") from None


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. The body is sent as JSON; bytes are sent as they are, with the content-type among `headers`."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Response]


@dataclass(eq=False, slots=True)
class _Live:
    """A connection that is open, and the thread that serves it."""

    sock: socket.socket
    address: tuple[str, int]
    peer: PeerCert | None = None
    thread: threading.Thread | None = None

    def cut(self) -> None:
        """End it from another thread; its own thread wakes up and closes the socket."""
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)    # SSLSocket's own would drop to plain text first
        except OSError:
            log.debug("%s:%d was closed already", *self.address)


class Server:
    """Listens once it is made, answers from `start()` to `close()`. `context` may be replaced while it runs."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None, handle: Handle) -> None:
        self.context, self.handle = context, handle
        self._listener = listen(address, BACKLOG)
        self._live: set[_Live] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._accepting = threading.Thread(target=self._accept, name="accept", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Begin to answer."""
        _allow_many_files()
        threading.stack_size(STACK_BYTES)
        self._accepting.start()

    def close(self, wait_s: float = 2.0) -> None:
        """Stop listening, end every connection, and wait a little for handlers to return."""
        self._closing = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)      # wakes accept()
        except OSError:
            log.debug("the listener was closed already")
        self._listener.close()
        deadline = time.monotonic() + wait_s
        threads = [self._accepting, *self._cut(lambda _: True)]
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def close_connections(self, predicate: Callable[[PeerCert], bool]) -> int:
        """End every live connection whose peer matches; how many there were."""
        return len(self._cut(lambda live: live.peer is not None and predicate(live.peer)))

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._live)

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, matches: Callable[[_Live], bool]) -> list[threading.Thread]:
        with self._lock:
            chosen = [live for live in self._live if matches(live)]
        for live in chosen:
            live.cut()
        return [live.thread for live in chosen if live.thread]

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, address = self._listener.accept()
                self._begin(_Live(sock, address[:2]))
            except (OSError, RuntimeError) as err:         # out of files, out of threads: neither may end the listener
                if not self._closing:
                    log.error("cannot take a connection: %s", err)
                    time.sleep(0.1)

    def _begin(self, live: _Live) -> None:
        live.thread = threading.Thread(target=self._serve, args=(live,), name=f"from {live.address[0]}", daemon=True)
        with self._lock:
            self._live.add(live)
        try:
            live.thread.start()
        except RuntimeError:
            self._forget(live)
            raise

    def _serve(self, live: _Live) -> None:
        try:
            if self._shake_hands(live) and not self._closing:
                _Exchange(self, live)
        except OSError as err:
            log.debug("%s:%d: %s", *live.address, err)
        finally:
            self._forget(live)

    def _shake_hands(self, live: _Live) -> bool:
        """Make the connection a TLS one. A failure is said in one line, and the alert gets time to arrive."""
        live.sock.settimeout(HANDSHAKE_S)
        if self.context is None:
            return True
        sock = self.context.wrap_socket(live.sock, server_side=True, do_handshake_on_connect=False)
        live.sock = sock
        try:
            sock.do_handshake()
        except OSError as err:
            if not self._closing:
                log.warning("%s:%d: refused: the client %s", *live.address,
                            handshake_fault(err, getattr(self.context, "ca", "")))
            _linger(sock)
            return False
        live.peer = sock.getpeercert() or None
        return True

    def _forget(self, live: _Live) -> None:
        with self._lock:
            self._live.discard(live)
        live.sock.close()


class _Exchange(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other. The work is done when the constructor returns."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    disable_nagle_algorithm = True

    def __init__(self, owner: Server, live: _Live) -> None:
        self._owner, self._live = owner, live
        super().__init__(live.sock, live.address, owner)  # type: ignore[arg-type]

    def _answer(self) -> None:
        body = self._read_body()
        if body is not None:
            self._send(*_outcome(self._owner.handle, self._request(body)))

    def _request(self, body: bytes) -> Request:
        path, _, query = self.path.partition("?")
        return Request(self.command, unquote(path), dict(parse_qsl(query, keep_blank_values=True)),
                       {name.lower(): value for name, value in self.headers.items()},
                       body, self._live.peer, self._live.address)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer

    def _read_body(self) -> bytes | None:
        """The whole body, or None where the request was refused or never finished."""
        lengths = self.headers.get_all("content-length", ["0"])
        if self.headers.get("transfer-encoding") or len(set(lengths)) != 1 or not DIGITS.fullmatch(lengths[0]):
            self._refuse(411, "the body needs one plain Content-Length")
            return None
        length = int(lengths[0])
        if length > MAX_BODY:
            self._refuse(413, f"the body has {length} bytes, {MAX_BODY} are the limit")
            return None
        body = self.rfile.read(length)
        self.close_connection = self.close_connection or len(body) < length
        return body if len(body) == length else None

    def _refuse(self, status: int, message: str) -> None:
        """Answer without having read the body: the connection cannot go on after that."""
        self.close_connection = True
        self._send(status, {}, _encoded(render_problem(UsageError(message))))
        _linger(self._live.sock)

    def _send(self, status: int, headers: Mapping[str, str], raw: bytes) -> None:
        fields = {"content-type": "application/json", **headers, "content-length": str(len(raw))}
        if self.close_connection:
            fields["connection"] = "close"
        first = f"HTTP/1.1 {status} {self.responses.get(status, ('Other',))[0]}"
        head = "\r\n".join([first, *(f"{name}: {value}" for name, value in fields.items()), "\r\n"])
        self.wfile.write(head.encode("latin-1") + raw)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class found wrong with a request head, in our shape."""
        self._refuse(code, message or explain or "bad request")

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s:%d: " + format, *self._live.address, *args)


def _outcome(handle: Handle, request: Request) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and bytes of the answer, whatever `handle` does."""
    try:
        response = handle(request)
        return response.status, response.headers, _encoded(response.body)
    except LlmgwError as err:
        return err.status, {}, _encoded(render_problem(err))
    except Exception:
        log.exception("%s %s of %s:%d failed", request.method, request.path, *request.peer_address)
        bug = LlmgwError(f"{request.method} {request.path} failed in the server", hint="its log has the details")
        return bug.status, {}, _encoded(render_problem(bug))


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()


def _linger(sock: socket.socket) -> None:
    """Say that no more comes, then read until the client has gone: closing at once would reset it before it reads."""
    deadline = time.monotonic() + LINGER_S
    try:
        socket.socket.shutdown(sock, socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not socket.socket.recv(sock, 65536):
                return
    except OSError as err:
        log.debug("lingering ended: %s", err)


def _allow_many_files() -> None:
    """A connection is a file: go to the hard limit, as the usual soft one is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
