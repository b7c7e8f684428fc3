"""The replicas a worker may send to, how loaded and how trusted each is, and which one gets the next request.

Room: gateway. No I/O and no clock: `now` is passed in. A replica that keeps failing is left alone for a while (ejected),
one that asked for a pause gets it; but never so many that hardly one is left: then all of them are tried again.
"""

from collections.abc import Collection
from typing import Protocol

from lib.gateway.cells import REPLICA, REPLICA_CELLS, REPLICA_INFLIGHT, REPLICA_OK_MS, Cells
from lib.model.wire import Endpoint

FAILURES_IN_A_ROW, ERRORS_IN_A_ROW = 3, 5
EJECT_S, EJECT_LIMIT_S, PAUSE_LIMIT_S = 10.0, 300.0, 60.0


class Idle(Protocol):
    """A kept-alive connection that waits for its next request."""

    last: float

    def close(self) -> None:
        """Give it up."""


class Replica:
    """One epoch of one replica, as this worker sees it."""

    __slots__ = ("_broken", "_cell", "_cells", "_ejections", "_errors", "authorization", "degraded", "ejected_until", "endpoint",
                 "gone", "idle", "inflight", "number", "paused_until", "served")

    def __init__(self, endpoint: Endpoint, number: int, cells: Cells) -> None:
        self.endpoint, self.number, self._cells = endpoint, number, cells
        self.degraded = endpoint.state != "ready"
        self.served = frozenset(endpoint.served)
        self.authorization = b"authorization: Bearer %s\r\n" % endpoint.engine_key.encode()
        self.inflight = 0                  # of this worker
        self.idle: list[Idle] = []         # newest last
        self.gone = False                  # no longer in the table: what runs may end, nothing new begins
        self.ejected_until = self.paused_until = 0.0
        self._broken = self._errors = self._ejections = 0
        self._cell = REPLICA + number * REPLICA_CELLS

    def raise_load(self) -> None:
        """A request has been given to it."""
        self.inflight += 1
        self._cells.mine[self._cell + REPLICA_INFLIGHT] += 1

    def lower_load(self) -> None:
        """That request is over."""
        self.inflight -= 1
        self._cells.mine[self._cell + REPLICA_INFLIGHT] -= 1

    def load_everywhere(self) -> int:
        """Requests in flight from all workers of this router."""
        return self._cells.total(self._cell + REPLICA_INFLIGHT)

    def succeeded(self, now: float) -> None:
        """It answered, with anything but a server error."""
        self._broken = self._errors = self._ejections = 0
        self._cells.mine[self._cell + REPLICA_OK_MS] = int(now * 1000)

    def errored(self, now: float) -> bool:
        """It answered with a server error. True if that ejects it."""
        self._errors += 1
        return self._errors >= ERRORS_IN_A_ROW and self._eject(now)

    def failed(self, now: float) -> bool:
        """It could not be reached, or broke off. True if that ejects it."""
        self._broken += 1
        return self._broken >= FAILURES_IN_A_ROW and self._eject(now)

    def pause(self, now: float, seconds: float) -> None:
        """It asked to be left alone that long."""
        self.paused_until = now + min(seconds, PAUSE_LIMIT_S)

    def take_idle(self, now: float, idle_s: float) -> Idle | None:
        """A kept-alive connection that the engine has not closed yet, as far as time can tell."""
        while self.idle:
            connection = self.idle.pop()
            if now - connection.last < idle_s:
                return connection
            connection.close()
        return None

    def drop_idle(self, before: float) -> None:
        """Close connections that have been idle since before that time."""
        while self.idle and self.idle[0].last < before:
            self.idle.pop(0).close()

    def _eject(self, now: float) -> bool:
        self._broken = self._errors = 0
        self.ejected_until = now + min(EJECT_LIMIT_S, EJECT_S * 2 ** self._ejections)
        self._ejections = min(self._ejections + 1, 8)
        return True


class Model:
    """One model of the table with the replicas that serve it."""

    __slots__ = ("_turn", "aliases", "max_inflight", "name", "replicas", "state")

    def __init__(self, name: str, aliases: tuple[str, ...], replicas: tuple[Replica, ...], max_inflight: int, state: str) -> None:
        self.name, self.aliases, self.replicas = name, aliases, replicas
        self.max_inflight, self.state = max_inflight, state
        self._turn = 0

    def choose(self, now: float, tried: Collection[Replica] = ()) -> Replica | None:
        """The least loaded replica that may have another request, ready ones before degraded ones; its load is raised.

        None where there is none: all were tried, or all are full.
        """
        replicas = self.replicas
        if len(replicas) == 1 and not tried:
            best: Replica | None = replicas[0]
            if self.max_inflight and replicas[0].load_everywhere() >= self.max_inflight:
                return None
        else:
            best = self._least_loaded(now, tried)
        if best is not None:
            best.raise_load()
        return best

    def _least_loaded(self, now: float, tried: Collection[Replica]) -> Replica | None:
        self._turn += 1                    # among equals, another one each time
        size = len(self.replicas)
        trusted = [replica for replica in self.replicas if now >= replica.ejected_until and now >= replica.paused_until]
        if len(trusted) * 2 < size:
            trusted = list(self.replicas)
        open_to = [replica for replica in trusted if replica not in tried]
        if self.max_inflight:
            open_to = [replica for replica in open_to if replica.load_everywhere() < self.max_inflight]
        if not open_to:
            return None
        turn = self._turn % len(open_to)
        return min(open_to[turn:] + open_to[:turn], key=_rank)


def _rank(replica: Replica) -> tuple[bool, int]:
    return replica.degraded, replica.inflight
