"""One client connection: requests read and judged one after another, answers written as fast as the client takes them.

Room: gateway. Runs on the worker's loop and never blocks. While an answer is under way no further request is looked at; a
client that closes, even one direction, has gone, and its request is abandoned with it. Refusals on a connection whose request
was not read to its end close it, slowly, so that the client can read why.
"""

import socket

from lib.gateway import local
from lib.gateway.answers import Answer, Refusal
from lib.gateway.cells import BYTES_IN, CONNECTIONS, request_cell
from lib.gateway.desk import Desk
from lib.gateway.exchange import Exchange
from lib.gateway.heads import Known
from lib.gateway.routes import OTHER
from lib.net.epoll import IN, OUT, RDHUP
from lib.net.http1 import CHUNKED, BadMessage, find_head
from lib.net.http1_chunks import ChunkReader

READ, BODY_READ = 8192, 262144
AHEAD_LIMIT = 128 * 1024                   # pipelined bytes held while an answer is under way
SMALL = 64 * 1024                          # bodies up to this do not count against the memory budget
SLOW_BODY = 1024                           # bytes a second, after the first body_idle_s
LINGER_S, LINGER_LIMIT = 2.0, 1 << 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# What the connection is doing. Plain numbers: looking up a member of an Enum costs as much as a parse from memory.
_HEAD, _BODY, _CHUNKS, _ANSWER, _CLOSING, _LINGER, _CLOSED = range(7)


class Client:
    """A connection; `keep_alive` says whether the present answer is its last."""

    __slots__ = ("_ahead", "_body", "_chunks", "_desk", "_drained", "_exchange", "_fd", "_held", "_known", "_last", "_need",
                 "_out", "_received", "_recv", "_send", "_since", "_sock", "_state", "keep_alive")

    def __init__(self, sock: socket.socket, desk: Desk) -> None:
        self._sock, self._desk = sock, desk
        self._fd, self._recv, self._send = sock.fileno(), sock.recv, sock.send
        self._state = _HEAD
        self._ahead = b""                  # read and not yet understood
        self._out = bytearray()            # answered and not yet taken
        self._body = bytearray()
        self._chunks: ChunkReader | None = None
        self._need = self._held = self._drained = self._received = 0
        self._known: Known | None = None
        self._exchange: Exchange | None = None
        self._last = self._since = desk.loop.now
        self.keep_alive = True
        desk.clients.add(self)
        desk.cells.mine[CONNECTIONS] += 1
        desk.loop.register(self._fd, self.ready, IN)

    # -- reading --

    def ready(self, events: int) -> None:
        """The socket has something to read, or takes more."""
        state = self._state
        if events & OUT and self._out:
            self._flush()
            if not events & ~OUT:
                return
        try:
            data = self._recv(READ if state != _BODY else min(max(self._need, 1), BODY_READ))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        elif state == _HEAD:
            self._ahead = self._ahead + data if self._ahead else data
            self._work()
        elif state in (_BODY, _CHUNKS):
            self._read_more(data)
        elif state == _LINGER:
            self._drained += len(data)
            if self._drained > LINGER_LIMIT:
                self.close()
        else:
            self._read_ahead(data)

    def _read_ahead(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > AHEAD_LIMIT:
            self._desk.loop.modify(self._fd, RDHUP | (OUT if self._out else 0))

    def _work(self) -> None:
        """Take up one request after another, for as long as they are answered at once."""
        try:
            while self._state == _HEAD and self._ahead and not self._out:
                if not self._read_head():
                    return
        except BadMessage as err:
            self._refuse_and_close(Refusal(err.status, f"Bad request: {err}."))
        except Refusal as refusal:
            self._refuse_and_close(refusal)

    def _read_head(self) -> bool:
        data = self._ahead
        end = data.find(b"\r\n\r\n")
        start = 0
        if end < 0 or data[0] == 13:
            start, end = find_head(data, self._received)
            if end < 0:
                if not self._received:
                    self._since = self._desk.loop.now
                self._received = len(data)
                return False
        known, length = self._desk.heads.find(data[start:end] if start else data[:end])
        self._known = known
        self.keep_alive = known.keep_alive and not self._desk.draining
        self._received = 0
        end += 4
        if 0 <= length <= len(data) - end:
            self._ahead = data[end + length:]
            self._answer(data[end:end + length])
        else:
            self._ahead = b""
            self._begin_body(known, length, data[end:])
        return True

    def _begin_body(self, known: Known, length: int, data: bytes) -> None:
        """The body is not all there: find room for it, and read on."""
        desk = self._desk
        if length > desk.limits.body:
            raise _too_large(desk)
        if length > SMALL:
            self._hold(length)
        self._since = self._last = desk.loop.now
        self._body = bytearray()
        self._received = 0
        if length == CHUNKED:
            self._state, self._chunks = _CHUNKS, ChunkReader(self._body)
        else:
            self._state, self._need = _BODY, length
        if known.expects_continue and not data:
            self.write(_CONTINUE)
        if data and self._state != _CLOSED:
            self._read_more(data)

    def _read_more(self, data: bytes) -> None:
        self._last = self._desk.loop.now
        self._received += len(data)
        try:
            if self._state == _BODY:
                self._body += data
                self._need -= len(data)
                if self._need <= 0:
                    self._answer(self._body)
            else:
                self._read_chunks(data)
        except BadMessage as err:
            self._refuse_and_close(Refusal(err.status, f"Bad request: {err}."))
        except Refusal as refusal:
            self._refuse_and_close(refusal)
        else:
            if self._state == _HEAD and self._ahead:
                self._work()

    def _read_chunks(self, data: bytes) -> None:
        assert self._chunks is not None
        end = self._chunks.feed(data)
        size = len(self._body)
        if size > self._desk.limits.body:
            raise _too_large(self._desk)
        if size > SMALL and size > self._held:
            self._hold(size - self._held)
        if end >= 0:
            self._ahead, self._chunks = data[end:], None
            self._answer(self._body)

    def _hold(self, size: int) -> None:
        """Count a body against the memory that all bodies may take."""
        desk = self._desk
        if desk.held + size > desk.held_limit:
            raise Refusal(503, "Too many large requests at once.", code="body_memory", retry_after_s=1)
        desk.held += size
        self._held += size

    # -- answering --

    def _answer(self, body: bytes | bytearray) -> None:
        """The request is whole."""
        known, desk = self._known, self._desk
        assert known is not None
        self._state = _ANSWER
        desk.cells.mine[BYTES_IN] += len(body)
        try:
            if known.route.inference and known.method == b"POST":
                if len(body) > desk.limits.body:
                    raise _too_large(desk)
                self._exchange = Exchange(desk, self, known, body)
                return
            answer = local.answer(desk, known)
        except Refusal as refusal:
            answer = refusal.answer()
        self._reply(answer, 0)

    def refuse(self, refusal: Refusal, attempts: int) -> None:
        """The exchange came to nothing."""
        self._exchange = None
        self._reply(refusal.answer(), attempts)
        self._work()

    def done(self) -> None:
        """The exchange has brought its whole answer."""
        self._exchange = None
        self._next()
        self._work()

    def broken(self, last_words: bytes) -> None:
        """The exchange broke off in the middle of its answer: the client must notice."""
        self._exchange = None
        if last_words:
            self.write(last_words)
        self.keep_alive = False
        self._next()

    def _reply(self, answer: Answer, attempts: int) -> None:
        known = self._known
        route = known.route if known else OTHER
        self._desk.cells.mine[request_cell(route.index, answer.status)] += 1
        head_only = known is not None and known.method == b"HEAD"
        self.write(answer.encode(keep_alive=self.keep_alive, attempts=attempts, head_only=head_only))
        self._next()

    def _next(self) -> None:
        """One answer has been given to the socket: the next request, or the end."""
        if self._state == _CLOSED:
            return
        self._known = None
        if self._held:
            self.forget_body()
        self._last = self._desk.loop.now
        if self.keep_alive:
            self._state = _HEAD
            if len(self._ahead) > AHEAD_LIMIT:
                self._desk.loop.modify(self._fd, IN | (OUT if self._out else 0))
        elif self._out:
            self._state = _CLOSING
        else:
            self._linger()

    def _refuse_and_close(self, refusal: Refusal) -> None:
        """Answer a request that cannot be read on from, and close in a way that lets the answer be read."""
        if self._state == _CLOSED:
            return
        self.keep_alive = False
        self._ahead = b""
        self._reply(refusal.answer(), 0)

    def _linger(self) -> None:
        """Our side ends; what the client still sends is thrown away for a moment, since closing at once would reset."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return self.close()
        self._state, self._last = _LINGER, self._desk.loop.now
        self._ahead = b""
        return None

    # -- writing --

    def write(self, data: bytes) -> None:
        """Send what the socket takes, keep the rest."""
        if self._out:
            self._out += data
            return None
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self.close()
        if sent < len(data):
            self._out += memoryview(data)[sent:]
            self._last = self._desk.loop.now
            self._desk.loop.modify(self._fd, IN | OUT)
        return None

    def blocked(self) -> bool:
        """Whether the client does not keep up."""
        return bool(self._out)

    def _flush(self) -> None:
        try:
            sent = self._send(self._out)
        except BlockingIOError:
            return None
        except OSError:
            return self.close()
        del self._out[:sent]
        self._last = self._desk.loop.now
        if self._out:
            return None
        self._desk.loop.modify(self._fd, IN)
        if self._exchange is not None:
            self._exchange.resume()
        elif self._state == _CLOSING:
            self._linger()
        elif self._state == _HEAD:
            self._work()
        return None

    # -- the clock, and the end --

    def check(self, now: float) -> None:
        """Act where a deadline has passed."""
        limits, state, waited = self._desk.limits, self._state, now - self._last
        if self._out:
            if waited > limits.write_stall_s:
                self.close()
        elif self._exchange is not None:
            self._exchange.check(now)
        elif state == _HEAD:
            if self._ahead and now - self._since > limits.head_s:
                self._refuse_and_close(Refusal(408, "The request head did not come in time."))
            elif not self._ahead and (waited > limits.idle_s or self._desk.closing):
                self.close()
        elif state == _LINGER:
            if waited > LINGER_S:
                self.close()
        elif self._body_too_slow(now):
            self._refuse_and_close(Refusal(408, "The request body did not come in time."))

    def _body_too_slow(self, now: float) -> bool:
        grace = self._desk.limits.body_idle_s
        over = now - self._since - grace
        return now - self._last > grace or (over > 0 and self._received < over * SLOW_BODY)

    def cut(self) -> None:
        """The router is going away: end what is under way so that it does not look whole."""
        self.keep_alive = False
        if self._exchange is not None:
            self._exchange.cut()
        else:
            self.close()

    def crash(self) -> None:
        """A bug of ours came up here: this connection ends, the others go on."""
        self.close()

    def close(self) -> None:
        """Close, whatever is under way."""
        if self._state == _CLOSED:
            return
        self._state = _CLOSED
        desk = self._desk
        desk.loop.unregister(self._fd)
        self._sock.close()
        desk.clients.discard(self)
        desk.cells.mine[CONNECTIONS] -= 1
        self._out.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()
        self.forget_body()

    def forget_body(self) -> None:
        """The request's body will not be needed again."""
        self._body = bytearray()
        self._desk.held -= self._held
        self._held = 0


def _too_large(desk: Desk) -> Refusal:
    return Refusal(413, f"The body is larger than this router takes: {desk.limits.body} bytes.", code="body_too_large")
