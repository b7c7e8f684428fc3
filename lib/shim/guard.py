"""The only way to rank 0's engine: a TLS server that lets in routers of its own cluster, for its own epoch, and nobody else.

Room: shim. Whoever asks for another epoch, or while the engine does not serve, gets a TLS alert instead of a handshake: that
proves to the router that nothing was started. Who it is can be judged only after the handshake (TLS 1.3); whoever may not in is
cut off before a byte has passed. Dates are reported and refuse nobody: serving never stops for a date.
"""

import errno
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lib.base.errors import ConfigError, LlmgwError, Refused, UsageError
from lib.base.files import read_json, stamp
from lib.host.ports import free
from lib.model.codec import decode
from lib.model.identity import Identity, Role, identity_of
from lib.model.rundir import GuardCounts, RevokedList, ShardSpec
from lib.net.epoll import IN, Loop
from lib.net.listen import listen
from lib.net.tls import PeerCert, date_fault, server_context
from lib.shim.pump import Connection

log = logging.getLogger(__name__)
BACKLOG, ACCEPT_AT_ONCE, ACCEPT_PAUSE_S = 512, 64, 0.5
LOOK_S = 0.5                               # how often the files are looked at: a revocation must bite within a second
SAY_AGAIN_S = 60.0                         # the same refusal of the same address is logged this seldom
NOT_SERVING, WRONG_EPOCH = "engine does not serve", "wrong epoch"


def refusal(identity: Identity, cluster: str, revoked: RevokedList) -> str:
    """Why this identity may not pass, in a word or two; an empty string where it may."""
    if identity.cluster != cluster:
        return "other cluster"
    if identity.role is not Role.ROUTER:
        return "not a router"
    return "revoked" if revoked.covers(identity) else ""


class WatchedFile:
    """Tells whether a file has been replaced since the last look."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, ...] = ()

    def changed(self) -> bool:
        """True at the first look at a file that exists, and after each change; a file that has vanished is no change."""
        now = stamp(self.path)
        before, self._seen = self._seen, now or self._seen
        return self._seen != before


class Guard:
    """The guard of one shard. `serving()` says whether the engine may be given work."""

    def __init__(self, loop: Loop, spec: ShardSpec, serving: Callable[[], bool]) -> None:
        self._loop, self._spec, self._serving = loop, spec, serving
        self._revoked_file = WatchedFile(spec.revoked) if spec.revoked else None
        self._pki_files = [WatchedFile(path) for path in (spec.certificate, spec.key, spec.ca)]
        self._revoked = RevokedList()
        self._live: dict[Connection, Identity | None] = {}
        self._refused: Counter[str] = Counter()
        self._said: dict[tuple[str, str], float] = {}
        self._accepted = self._expired = 0
        self._turned_away = ""             # why the handshake that is going on was stopped by `_named`
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """Read the certificates and take the port: ConfigError or LlmgwError where that cannot be."""
        self._context = self._make_context()
        self._look_at_revoked()
        for file in self._pki_files:
            file.changed()
        address = self._spec.order.addr, self._spec.order.port
        try:
            self._listener = listen(address, BACKLOG)
        except LlmgwError as err:          # `free` names the process that has it
            raise LlmgwError(free(*address) or str(err)) from err
        self._listener.setblocking(False)

    def start(self) -> None:
        """Serve, on the loop."""
        self._resume()
        self._loop.call_later(LOOK_S, self._look)

    @property
    def counts(self) -> GuardCounts:
        return GuardCounts(len(self._live), self._accepted, dict(self._refused), self._expired)

    @property
    def live(self) -> int:
        return len(self._live)

    def refuse_new(self) -> None:
        """Give the port back; connections that are there go on."""
        if self._listener:
            self._loop.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close_quiet(self, quiet_s: float) -> None:
        """Close the connections that wait for nothing: answered, and nothing said for `quiet_s`."""
        for connection in list(self._live):
            if connection.answered and self._loop.now - connection.last_moved >= quiet_s:
                connection.end("")

    def close_all(self) -> None:
        """Cut every connection."""
        for connection in list(self._live):
            connection.close("")

    # -- new connections --------------------------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            if not self._listener:
                return
            try:
                plain, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as err:
                self._pause(err)
                return
            self._welcome(plain)

    def _pause(self, err: OSError) -> None:
        if err.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            log.warning("accept: %s", err.strerror)
            return
        log.warning("no connections are taken for %g s: %s", ACCEPT_PAUSE_S, err.strerror)
        if self._listener:
            self._loop.unregister(self._listener.fileno())
            self._loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener:
            self._loop.register(self._listener.fileno(), self._accept, IN)

    def _welcome(self, plain: socket.socket) -> None:
        try:
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
            client = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False,
                                               suppress_ragged_eofs=False)
        except OSError:                    # it has gone already
            plain.close()
            return
        engine = (self._spec.engine_host, self._spec.order.port)
        self._live[Connection(self._loop, client, engine, self._admit, self._ended)] = None

    def _admit(self, connection: Connection, peer: PeerCert | None) -> str:
        """Why this peer may not pass. Called once, after the handshake."""
        try:
            identity = identity_of(peer)
        except Refused as err:
            return self._refuse("no identity", str(err), connection)
        if problem := refusal(identity, self._spec.cluster, self._revoked):
            return self._refuse(problem, str(identity.uri), connection)
        if peer and (late := date_fault(peer, time.time())):
            self._expired += 1
            self._say(connection.peer_address, "date", f"{identity}: its {late}; it is let in all the same")
        self._live[connection] = identity
        self._accepted += 1
        return ""

    def _refuse(self, reason: str, who: str, connection: Connection) -> str:
        self._refused[reason] += 1
        self._say(connection.peer_address, reason, f"refused {who}: {reason}")
        return reason

    def _ended(self, connection: Connection, why: str) -> None:
        self._live.pop(connection, None)
        why, self._turned_away = self._turned_away or why, ""
        if why and why not in self._refused:     # a refusal has been said already, with the name
            self._say(connection.peer_address, why, why)

    def _say(self, address: str, topic: str, words: str) -> None:
        """One line, but not again and again: what a stranger can cause must not fill a disk."""
        now = time.monotonic()
        if now - self._said.get((address, topic), -SAY_AGAIN_S) >= SAY_AGAIN_S:
            if len(self._said) > 1000:
                self._said.clear()
            self._said[address, topic] = now
            log.warning("guard: %s: %s", address, words)

    # -- certificates and revocations -------------------------------------------------------------------------------

    def _make_context(self) -> ssl.SSLContext:
        spec = self._spec
        context = server_context(Path(spec.certificate), Path(spec.key), Path(spec.ca), ignore_dates=True)
        context.sni_callback = self._named
        return context

    def _named(self, _client: ssl.SSLObject, name: str, _context: ssl.SSLContext) -> int | None:
        """The epoch that a client wants, before the handshake goes on: an alert is the answer to a wrong one."""
        if name != self._spec.order.epoch.server_name:
            self._refused[WRONG_EPOCH] += 1
            self._turned_away = f"asked for {name!r:.80}, this is {self._spec.order.epoch}"
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        if not self._serving():
            self._refused[NOT_SERVING] += 1
            self._turned_away = NOT_SERVING
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None

    def _look(self) -> None:
        """Notice renewed certificates and new revocations."""
        self._loop.call_later(LOOK_S, self._look)
        if [file for file in self._pki_files if file.changed()]:     # a list: each has to be looked at
            try:
                self._context = self._make_context()
                log.info("guard: certificate read again")
            except ConfigError as err:
                log.warning("guard: the old certificate stays in use: %s", err)
        self._look_at_revoked()

    def _look_at_revoked(self) -> None:
        if not self._revoked_file or not self._revoked_file.changed():
            return
        try:
            self._revoked = decode(RevokedList, read_json(self._revoked_file.path))
        except (ConfigError, UsageError) as err:
            log.warning("guard: the old revocations stay in force: %s", err)
            return
        for connection, identity in list(self._live.items()):
            if identity and self._revoked.covers(identity):
                self._refuse("revoked", identity.uri, connection)
                connection.close("")
