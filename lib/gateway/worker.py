"""A worker process: accepts clients from the listener all workers share, and takes its table from the parent.

Room: gateway. Runs after the fork; it ends when told to, or when the parent is gone, in both cases letting streams finish.
"""

import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lib.base.errors import LlmgwError
from lib.gateway.cells import CP_EPOCH, REV, Cells
from lib.gateway.channel import Channel
from lib.gateway.client import Client
from lib.gateway.desk import Desk
from lib.gateway.settings import RouterSettings
from lib.gateway.table import Numbered
from lib.gateway.upstream import Upstream
from lib.model.codec import decode
from lib.net.epoll import IN, Loop
from lib.net.tls import client_context

TICK_S = 0.5
ACCEPT_AT_ONCE = 16
EXCLUSIVE = 1 << 28                        # EPOLLEXCLUSIVE: wake one worker for a new connection, not all of them
LAST_MOMENTS_S = 2.0                       # for error events of streams that were cut

log = logging.getLogger(__name__)


class Worker:
    """Worker number `number`."""

    def __init__(self, number: int, settings: RouterSettings, listener: socket.socket, channel: socket.socket,
                 cells: Cells) -> None:
        cells.take(number)
        self._loop = Loop(self._bug)
        self._settings, self._cells, self._listener = settings, cells, listener
        self._desk = Desk(self._loop, settings.limits, cells, _context(settings))
        self._accepting = False
        self._channel = Channel(self._loop, channel, self._told, self._orphaned)

    def run(self) -> int:
        """Serve until told to stop. Returns the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call_soon_threadsafe(self._drain))
        signal.signal(signal.SIGINT, signal.SIG_IGN)       # Ctrl-C reaches the whole group; the parent decides
        self._loop.call_later(TICK_S, self._tick)
        gc.freeze()
        self._loop.run()
        return 0

    def _told(self, message: dict[str, Any]) -> None:
        if "table" in message:
            numbered = decode(Numbered, message)
            self._desk.adopt(numbered)
            self._cells.mine[REV], self._cells.mine[CP_EPOCH] = numbered.table.rev, numbered.table.cp_epoch
            self._channel.send({"applied": numbered.table.rev})
        if message.get("renewed"):
            self._renewed()
        if message.get("accept"):
            self._accept_again()
        if message.get("drain"):
            self._drain()

    def _renewed(self) -> None:
        """Dial with the certificate that is in place now; connections that are there stay."""
        try:
            self._desk.dialling = replace(self._desk.dialling, context=_context(self._settings))
        except LlmgwError as err:
            log.warning("the old certificate stays in use: %s", err)

    def _orphaned(self) -> None:
        """The parent has died: free the port for its successor at once, and let streams finish."""
        if not self._desk.draining:
            log.error("the router's parent process has died: finishing what is under way")
        self._desk.draining = True
        self._stop_accepting()

    # -- accepting --

    def _accept(self, _events: int) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            if len(self._desk.clients) >= self._settings.limits.connections:
                return self._rest()
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return None
            except OSError:                # out of descriptors: closing some of ours will help
                return self._rest()
            sock.setblocking(False)
            Client(sock, self._desk)
        return None

    def _rest(self) -> None:
        """Accept no more until the next tick."""
        self._loop.unregister(self._listener.fileno())
        self._accepting = False

    def _accept_again(self) -> None:
        if not self._accepting and not self._desk.closing and len(self._desk.clients) < self._settings.limits.connections:
            self._loop.register(self._listener.fileno(), self._accept, IN | EXCLUSIVE)
            self._accepting = True

    # -- time, and the end --

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self._desk.tick()
        if self._desk.closing and not self._desk.clients:
            self._loop.stop()
        else:
            self._accept_again()

    def _drain(self) -> None:
        if not self._desk.draining:
            self._desk.draining = True
            self._loop.call_later(self._settings.limits.settle_s, self._stop_accepting)

    def _stop_accepting(self) -> None:
        if self._desk.closing:
            return
        self._desk.closing = True
        self._loop.unregister(self._listener.fileno())
        self._listener.close()
        self._loop.call_later(self._settings.limits.stop_s, self._cut)
        self._loop.call_later(0, self._desk.tick)
        if not self._desk.clients:
            self._loop.stop()

    def _cut(self) -> None:
        """Time is up: what is still under way ends with an error."""
        for client in list(self._desk.clients):
            if isinstance(client, Client):
                client.cut()
        self._loop.call_later(LAST_MOMENTS_S, self._loop.stop)

    def _bug(self, fd: int, callback: Callable[..., object]) -> None:
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, Client | Upstream):
            owner.crash()
        elif fd >= 0 and owner is not self:
            self._loop.unregister(fd)


def _context(settings: RouterSettings) -> ssl.SSLContext:
    context = client_context(settings.certificate, settings.key, settings.ca, ignore_dates=True)
    context.check_hostname = False         # the guard is known by its role and node, which Upstream checks
    return context
