"""One connection to a guard: connect, TLS handshake, one request after another, and the framing of each answer.

Room: gateway. Runs on the worker's loop and never blocks. The guard is asked for its epoch by name (SNI) and must show the
certificate of the node that the table names; until then nothing is sent, so that a failure proves that nothing was begun.
"""

import errno
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lib.base.errors import Refused
from lib.gateway.heads import Reply, ReplyHeads
from lib.gateway.replica import Replica
from lib.model.identity import Identity, identity_of
from lib.net.epoll import IN, OUT, Loop
from lib.net.http1 import CHUNKED, HEAD_LIMIT, UNTIL_CLOSE, BadMessage
from lib.net.http1_chunks import ChunkReader

RECORD = 16384                             # the most that one TLS record holds: nothing stays behind in OpenSSL after a read


class Failure(Enum):
    """How an attempt ended before its answer did. `retry`: nothing can have been processed."""

    CONNECT = "connect"
    HANDSHAKE = "handshake"
    STALE = "stale"                        # a kept-alive connection was closed before it brought a byte
    BEFORE_RESPONSE = "before_response"
    PROTOCOL = "protocol"
    MID_STREAM = "mid_stream"
    TIMEOUT = "timeout"

    @property
    def retry(self) -> bool:
        return self in (Failure.CONNECT, Failure.HANDSHAKE, Failure.STALE)


class Asker(Protocol):
    """Who sent the request; exactly one of `finished` and `failed` ends it, unless `abandon` did."""

    dechunk: bool

    def started(self, upstream: "Upstream", reply: Reply, length: int) -> bytes | None:
        """The head has come: the bytes to go before the body, or None to go no further."""

    def relay(self, data: bytes) -> None:
        """Bytes of the answer, as they came."""

    def finished(self) -> None:
        """The answer is whole."""

    def failed(self, failure: Failure, detail: str) -> None:
        """It never will be."""


@dataclass(frozen=True, slots=True)
class Dialling:
    """What every connection of a worker shares."""

    loop: Loop
    context: ssl.SSLContext
    distrust: Callable[[Identity, str], str]       # who answered, the node we dialled -> what is wrong, or ""
    replies: ReplyHeads
    pending: "set[Upstream]"               # connecting or shaking hands
    live: "dict[Upstream, str]"            # past that: the serial of the certificate that was shown


class Upstream:
    """A connection to one replica. `last` is when it was last used."""

    __slots__ = ("_asker", "_chunks", "_dial", "_fd", "_head", "_keep", "_left", "_out", "_paused", "_read", "_replica", "_send",
                 "_sock", "last", "reused")

    def __init__(self, replica: Replica, dial: Dialling) -> None:
        self._replica, self._dial = replica, dial
        self._asker: Asker | None = None
        self._out: list[memoryview] = []
        self._head = b""
        self._left: int | None = None      # of the body; None while the head is awaited
        self._chunks: ChunkReader | None = None
        self._paused = self._keep = self.reused = False
        self._sock: socket.socket | None = None
        self._fd = -1
        self.last = dial.loop.now

    # -- connecting --

    def dial(self) -> None:
        """Begin to connect. Failures are told to the asker from the loop, never from here."""
        endpoint = self._replica.endpoint
        self._dial.pending.add(self)
        try:
            self._sock = socket.socket(socket.AF_INET6 if ":" in endpoint.addr else socket.AF_INET,
                                       socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            problem = self._sock.connect_ex((endpoint.addr, endpoint.port))
        except OSError as err:             # out of descriptors
            problem = err.errno or errno.EIO
        if problem in (0, errno.EINPROGRESS) and self._sock is not None:
            self._fd = self._sock.fileno()
            self._dial.loop.register(self._fd, self._connected, OUT)
        else:
            self._dial.loop.call_later(0, lambda: self._fail(Failure.CONNECT, os.strerror(problem)))

    def give_up_dialling(self) -> None:
        """It took too long."""
        self._fail(Failure.CONNECT, "no connection in time")

    def _connected(self, _events: int) -> None:
        sock = self._sock
        assert sock is not None
        if problem := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return self._fail(Failure.CONNECT, os.strerror(problem))
        try:
            self._sock = self._dial.context.wrap_socket(sock, server_hostname=self._replica.endpoint.epoch.server_name,
                                                        do_handshake_on_connect=False, suppress_ragged_eofs=False)
        except OSError as err:
            return self._fail(Failure.CONNECT, _words(err))
        self._dial.loop.replace(self._fd, self._shake)
        self._shake(0)
        return None

    def _shake(self, _events: int) -> None:
        sock = self._sock
        assert isinstance(sock, ssl.SSLSocket)
        try:
            sock.do_handshake()
            self._check_peer(sock)
        except ssl.SSLWantReadError:
            self._dial.loop.modify(self._fd, IN)
        except ssl.SSLWantWriteError:
            self._dial.loop.modify(self._fd, OUT)
        except (OSError, Refused) as err:
            self._fail(Failure.HANDSHAKE, _words(err))
        else:
            self._shaken(sock)

    def _check_peer(self, sock: ssl.SSLSocket) -> None:
        shown = identity_of(sock.getpeercert())
        if fault := self._dial.distrust(shown, self._replica.endpoint.node):
            raise Refused(fault)
        self._dial.live[self] = shown.serial

    def _shaken(self, sock: ssl.SSLSocket) -> None:
        self._dial.pending.discard(self)
        self._read, self._send = sock.read, sock.send
        self._dial.loop.replace(self._fd, self.ready)
        self._dial.loop.modify(self._fd, IN)
        if self._asker is None:
            self.close()
        elif self._out:
            self._flush()

    # -- one request --

    def ask(self, asker: Asker, head: bytes, body: bytes | bytearray) -> None:
        """Send a request; before the handshake has ended it waits for that."""
        self._asker, self._left = asker, None
        if len(body) <= RECORD:
            data = head + body
            if self.reused:
                try:
                    sent = self._send(data)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    sent = 0
                except OSError:            # the loop will find it closed, and say so
                    return
                if sent == len(data):
                    return
                data = data[sent:]
            self._out = [memoryview(data)]
        else:
            self._out = [memoryview(head), memoryview(body)]
        if self.reused:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._send(self._out[0])
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    del self._out[0]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._dial.loop.modify(self._fd, IN | OUT)
            return
        except OSError:                    # reading tells why
            self._out = []
        self._dial.loop.modify(self._fd, IN)

    def abandon(self) -> None:
        """Nobody wants the answer any more: close, so that the engine stops."""
        self._asker = None
        self.close()

    def pause(self) -> None:
        """Read no more until `resume`: the client does not keep up."""
        if not self._paused:
            self._paused = True
            self._dial.loop.unregister(self._fd)

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            self._dial.loop.register(self._fd, self.ready, IN | OUT if self._out else IN)

    @property
    def between_chunks(self) -> bool:
        """Whether the answer so far stands at the end of a chunk, where another one may follow."""
        return self._chunks is not None and self._chunks.between_chunks

    # -- the answer --

    def ready(self, events: int) -> None:
        """The socket has something."""
        if events & OUT and self._out:
            self._flush()
        try:
            data = self._read(RECORD)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as err:
            return self._ended(err)
        asker = self._asker
        if not data or asker is None:      # closed, or talking out of turn
            return self._ended(None)
        self.last = self._dial.loop.now
        try:
            if self._left is None:
                self._read_head(asker, data)
            else:
                self._read_body(asker, data, b"")
        except BadMessage as err:
            self._fail(Failure.PROTOCOL if self._left is None else Failure.MID_STREAM, str(err))
        return None

    def _read_head(self, asker: Asker, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > HEAD_LIMIT:
                raise BadMessage("response head too large", 502)
            self._head = data
            return
        reply, length = self._dial.replies.find(data[:end])
        if reply.status < 200:             # 100 or 103: the real head is still to come
            if len(data) > end + 4:
                self._read_head(asker, data[end + 4:])
            return
        self._left, self._keep = length, reply.keep_alive
        if length == CHUNKED:
            self._chunks = ChunkReader(bytearray() if asker.dechunk else None)
        head = asker.started(self, reply, length)
        if head is not None:
            self._read_body(asker, data[end + 4:], head)

    def _read_body(self, asker: Asker, data: bytes, head: bytes) -> None:
        """Pass `head` and `data` on in one write, and see whether the answer ends with them."""
        left, size = self._left or 0, len(data)
        if left >= 0:
            used = left if left < size else size
            self._left = left - used
            whole = used == left
        elif left == CHUNKED and self._chunks is not None:
            end = self._chunks.feed(data) if data else -1
            whole = end >= 0
            used = end if whole else size
        else:
            whole, used = False, size
        if used < size:                    # something after the end of the answer: not a connection to use again
            self._keep = False
            data = data[:used]
        if asker.dechunk and self._chunks is not None and self._chunks.sink is not None:
            data = bytes(self._chunks.sink)
            self._chunks.sink.clear()
        if head:
            data = head + data
        if data:
            asker.relay(data)
        if whole and self._asker is not None:      # else the client went away in relay
            self._end(asker)

    def _end(self, asker: Asker) -> None:
        self._asker = self._chunks = None
        self._left = None
        replica = self._replica
        if self._keep and not self._out and not replica.gone:
            self.reused = True
            if self._paused:
                self.resume()
            replica.idle.append(self)
        else:
            self.close()
        asker.finished()

    def _ended(self, err: OSError | None) -> None:
        """The connection is closed, cleanly (None) or not."""
        if self._asker is None:
            return self.close()
        if self._left is None:
            refused = isinstance(err, ssl.SSLError) and "ALERT" in (err.reason or "")
            stale = self.reused and not self._head
            failure = Failure.HANDSHAKE if refused else Failure.STALE if stale else Failure.BEFORE_RESPONSE
            return self._fail(failure, _words(err) if err else "closed before answering")
        if self._left == UNTIL_CLOSE and err is None:
            self._keep = False
            return self._end(self._asker)
        return self._fail(Failure.MID_STREAM, _words(err) if err else "closed in the middle of its answer")

    def _fail(self, failure: Failure, detail: str) -> None:
        asker, self._asker = self._asker, None
        self.close()
        if asker is not None:
            asker.failed(failure, detail)

    def revoke(self) -> None:
        """The certificate that was shown is worthless by now."""
        failure = Failure.BEFORE_RESPONSE if self._left is None else Failure.MID_STREAM
        self._fail(failure, "the certificate of its node is revoked")

    def crash(self) -> None:
        """A bug of ours came up here: this attempt ends, the others go on."""
        self._fail(Failure.PROTOCOL, "internal error")

    def close(self) -> None:
        """Close, whatever is under way."""
        self._dial.pending.discard(self)
        self._dial.live.pop(self, None)
        if self._sock is not None:
            self._dial.loop.unregister(self._fd)
            self._sock.close()
            self._sock = None
        if self in self._replica.idle:
            self._replica.idle.remove(self)


def _words(err: Exception) -> str:
    """An error of ours or of the system in a few words."""
    if isinstance(err, ssl.SSLError):
        return (err.reason or str(err)).lower().replace("_", " ")
    return (isinstance(err, OSError) and err.strerror) or str(err)
