"""One router's connection to the engine: handshake, a look at who it is, then bytes both ways until either side ends it.

Room: shim. Nothing blocks: everything happens in callbacks of the loop. Each direction holds at most one chunk, so a slow reader
slows the writer and nothing piles up. The client's end closes the engine's side at once, because that is how a generation is
cancelled; the engine's end is passed on only after its last byte has been.
"""

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

from lib.net.epoll import ERR, HUP, IN, OUT, RDHUP, Loop
from lib.net.tls import PeerCert, handshake_fault

CHUNK = 64 * 1024
ROUNDS = 16                                # then let the other connections have their turn
HANDSHAKE_S, CONNECT_S, LINGER_S = 10.0, 5.0, 3.0


class Phase(Enum):
    """How far a connection is."""

    HANDSHAKE, CONNECT, PUMP, LINGER, CLOSED = auto(), auto(), auto(), auto(), auto()


class Connection:
    """A connection. `admit(peer certificate)` says why it may not pass, or nothing; `ended(connection, why)` is told once."""

    def __init__(self, loop: Loop, client: ssl.SSLSocket, engine: tuple[str, int],
                 admit: Callable[["Connection", PeerCert | None], str], ended: Callable[["Connection", str], None]) -> None:
        self._loop, self._client, self._engine_address = loop, client, engine
        self._admit, self._ended = admit, ended
        self._engine: socket.socket | None = None
        self._engine_over = False          # it has closed or died: what it left is read without waiting
        self._up = self._down = memoryview(b"")          # to the engine, to the client
        self._read_wants_out = self._write_wants_in = False
        self.phase = Phase.HANDSHAKE
        self.last_moved, self.answered = time.monotonic(), True   # answered: the last bytes came from the engine
        self.peer_address = _peer_of(client)
        self._timer = loop.call_later(HANDSHAKE_S, lambda: self.end("did not finish the handshake in time"))
        loop.register(client.fileno(), self._client_ready, IN | RDHUP)

    # -- the client's side ------------------------------------------------------------------------------------------

    def _client_ready(self, events: int) -> None:
        if self.phase is Phase.LINGER:
            self._discard()
        elif self.phase is Phase.HANDSHAKE:
            self._shake_hands()
        elif events & (RDHUP | HUP | ERR):
            self.close("")                 # gone: whatever the engine is doing for it is wanted no more
        elif self.phase is Phase.PUMP:
            self._move()

    def _shake_hands(self) -> None:
        try:
            self._client.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._loop.modify(self._client.fileno(), OUT | RDHUP)
            return
        except OSError as err:
            self.end(handshake_fault(err))
            return
        if problem := self._admit(self, self._client.getpeercert()):
            self.end(problem)
        else:
            self._dial()

    # -- the engine's side ------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        self.phase = Phase.CONNECT
        self._timer.cancel()
        self._timer = self._loop.call_later(CONNECT_S, lambda: self.end("the engine does not take the connection"))
        self._loop.modify(self._client.fileno(), RDHUP)
        engine = self._engine = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine.connect_ex(self._engine_address)
        self._loop.register(engine.fileno(), self._engine_ready, OUT)

    def _engine_ready(self, events: int) -> None:
        if self.phase is Phase.CONNECT:
            self._connected()
        elif self.phase is Phase.PUMP:
            if events & (HUP | ERR):
                self._give_up_engine()
            self._move()

    def _connected(self) -> None:
        assert self._engine
        if code := self._engine.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.end(f"the engine refuses the connection: error {code}")
            return
        self._timer.cancel()
        self.phase = Phase.PUMP
        self._move()

    # -- bytes ------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move what can be moved now, then wait for what is missing."""
        for _ in range(ROUNDS):
            moved_up = self._step_up()
            moved_down = self.phase is Phase.PUMP and self._step_down()
            if self.phase is not Phase.PUMP:
                return
            if not moved_up and not moved_down:
                self._await()
                return
        self._await()
        self._loop.call_later(0, self._move_on)     # TLS may hold bytes that no event will announce

    def _move_on(self) -> None:
        if self.phase is Phase.PUMP:
            self._move()

    def _step_up(self) -> bool:
        if not self._up:
            self._up = memoryview(self._read_client())
        if not self._up or self.phase is not Phase.PUMP or self._engine_over or not self._engine:
            return False
        try:
            sent = self._engine.send(self._up)
        except BlockingIOError:
            return False
        except OSError:
            self._give_up_engine()         # it may have answered before it closed; the other direction finds out
            return False
        self._up = self._up[sent:]
        self._moved(answered=False)
        return True

    def _step_down(self) -> bool:
        if not self._down:
            self._down = memoryview(self._read_engine())
        if not self._down or self.phase is not Phase.PUMP:
            return False
        self._write_wants_in = False
        try:
            sent = self._client.send(self._down)
        except ssl.SSLWantReadError:
            self._write_wants_in = True
            return False
        except (ssl.SSLWantWriteError, BlockingIOError):
            return False
        except OSError:
            self.close("")
            return False
        self._down = self._down[sent:]
        self._moved(answered=True)
        return True

    def _moved(self, *, answered: bool) -> None:
        self.last_moved, self.answered = self._loop.now, answered

    def _read_client(self) -> bytes:
        self._read_wants_out = False
        try:
            if data := self._client.recv(CHUNK):
                return data
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLWantWriteError:
            self._read_wants_out = True
            return b""
        except OSError:
            pass                           # cut off: the same as an end, since the engine must stop in either case
        self.close("")
        return b""

    def _read_engine(self) -> bytes:
        assert self._engine
        try:
            if data := self._engine.recv(CHUNK):
                return data
            self.end("")
        except BlockingIOError:
            if self._engine_over:
                self.close("")
        except OSError:
            self.close("")                 # died: no close_notify, so that the router does not take it for a proper end
        return b""

    def _await(self) -> None:
        client = RDHUP
        if not self._up or self._write_wants_in:
            client |= IN
        if self._down or self._read_wants_out:
            client |= OUT
        if self._down and self._write_wants_in:
            client &= ~OUT
        self._loop.modify(self._client.fileno(), client)
        if self._engine and not self._engine_over:
            self._loop.modify(self._engine.fileno(), (0 if self._down else IN) | (OUT if self._up else 0))

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        """Say good-bye properly: nothing more comes, and what the client still sends is thrown away for a moment.

        Closing with unread bytes would reset the connection and could destroy the last bytes, or the alert, on their way.
        """
        if self.phase in (Phase.LINGER, Phase.CLOSED):
            return
        self._drop_engine()
        self._timer.cancel()
        if self.phase is not Phase.HANDSHAKE:
            with suppress(OSError, ValueError):
                self._client.unwrap()      # sends close_notify, and does not wait for the other one
        self.phase = Phase.LINGER
        self._tell(why)
        try:
            self._client.shutdown(socket.SHUT_WR)
            self._loop.modify(self._client.fileno(), IN | RDHUP)
        except OSError:
            self.close("")
            return
        self._timer = self._loop.call_later(LINGER_S, lambda: self.close(""))

    def _discard(self) -> None:
        try:
            while socket.socket.recv(self._client, CHUNK):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close("")

    def close(self, why: str) -> None:
        """Drop both sides at once."""
        if self.phase is Phase.CLOSED:
            return
        lingered, self.phase = self.phase is Phase.LINGER, Phase.CLOSED
        self._timer.cancel()
        self._drop_engine()
        self._loop.unregister(self._client.fileno())
        self._client.close()
        if not lingered:
            self._tell(why)

    def _give_up_engine(self) -> None:
        """It is dead, which the loop would tell again and again; what it left can still be read."""
        if self._engine:
            self._engine_over = True
            self._loop.unregister(self._engine.fileno())

    def _drop_engine(self) -> None:
        if self._engine:
            self._loop.unregister(self._engine.fileno())
            self._engine.close()
            self._engine = None

    def _tell(self, why: str) -> None:
        self._ended(self, why)


def _peer_of(client: ssl.SSLSocket) -> str:
    try:
        return str(client.getpeername()[0])
    except OSError:
        return "somebody who has gone"
