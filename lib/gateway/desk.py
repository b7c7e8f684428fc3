"""What all connections of one worker share.

Room: gateway.
"""

import ssl
from typing import Protocol

from lib.gateway.cells import Cells
from lib.gateway.heads import ReplyHeads, RequestHeads
from lib.gateway.settings import Limits
from lib.gateway.table import Numbered, Routes, build_routes
from lib.gateway.upstream import Dialling, Upstream
from lib.model.identity import Identity, Role
from lib.net.epoll import Loop
from lib.net.http1 import forget_fields


class Watched(Protocol):
    """Something with deadlines, looked at on each tick."""

    def check(self, now: float) -> None:
        """Act where a deadline has passed."""


class Desk:
    """The state of one worker: its loop, its table, what is going on, and what it counts."""

    def __init__(self, loop: Loop, limits: Limits, cells: Cells, context: ssl.SSLContext) -> None:
        self.loop, self.limits, self.cells = loop, limits, cells
        self.routes = Routes()
        self.heads = RequestHeads(None)
        self.pending: set[Upstream] = set()
        self.live: dict[Upstream, str] = {}
        self.dialling = Dialling(loop, context, self._distrust, ReplyHeads(), self.pending, self.live)
        self.clients: set[Watched] = set()
        self.active = 0                    # requests that were given to a replica and are not over
        self.retrying = 0                  # those of them in a second attempt or later
        self.held = 0                      # bytes of large request bodies in memory
        self.held_limit = max(limits.body, limits.body_memory // cells.workers)
        self.draining = False              # /ready says no, and answers end their connections
        self.closing = False               # idle connections are closed, too

    def adopt(self, numbered: Numbered) -> None:
        """Swap the table; what is under way goes on with the replica it has."""
        old = self.routes
        self.routes = build_routes(numbered, self.cells, old)
        self.heads = RequestHeads(self.routes.keys)
        forget_fields()
        for replica in old.replicas.values():
            if replica.gone:
                replica.drop_idle(float("inf"))
        if self.routes.revoked != old.revoked:
            for upstream in [each for each, serial in self.live.items() if serial in self.routes.revoked]:
                upstream.revoke()

    def _distrust(self, who: Identity, node: str) -> str:
        if who.role is not Role.NODE or who.id != node or who.cluster != self.routes.cluster:
            return f"it is {who.uri}, not node {node}"
        return "its certificate is revoked" if who.serial in self.routes.revoked else ""

    def may_retry(self) -> bool:
        """Whether another attempt stays within the budget that keeps an outage from multiplying the load."""
        return self.retrying < max(3, self.active // 5)

    def tick(self) -> None:
        """Look at every deadline."""
        now = self.loop.now
        for client in list(self.clients):
            client.check(now)
        for upstream in list(self.pending):
            if now - upstream.last > self.limits.handshake_s:
                upstream.give_up_dialling()
        for replica in self.routes.replicas.values():
            replica.drop_idle(now - self.limits.upstream_idle_s)
