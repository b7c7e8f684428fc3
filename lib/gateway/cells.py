"""Counters in memory that all workers share: each writes its own slot, readers sum over all of them.

Room: gateway. 64-bit cells and one writer per cell, so nobody locks. The parent makes the memory before it forks and hands
out the numbers of replicas and keys, so that a cell means the same in every worker.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterable

from lib.gateway.routes import ROUTES

STATUSES = (200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 417, 422, 429, 431, 499, 500, 501, 502, 503, 504, 505)
OTHER_STATUS = len(STATUSES)               # an engine's status that is not in the list
STATUS_INDEX = {status: index for index, status in enumerate(STATUSES)}
FAILURES = ("connect", "handshake", "before_response", "mid_stream", "timeout", "protocol")
BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000)
REPLICAS, KEYS = 2048, 16384               # number 0 of each is nobody's: what could not get a number of its own counts there

REV, CP_EPOCH, CONNECTIONS, RETRIES, BYTES_IN, BYTES_OUT, EJECTIONS = range(7)
FAILURE = 8
FIRST_BYTE = FAILURE + len(FAILURES)       # histogram: one cell per bucket, then +Inf, then the sum in ms
DURATION = FIRST_BYTE + len(BUCKETS_MS) + 2
REQUESTS = DURATION + len(BUCKETS_MS) + 2
REPLICA = REQUESTS + len(ROUTES) * (OTHER_STATUS + 1)
REPLICA_INFLIGHT, REPLICA_OK_MS, REPLICA_CELLS = 0, 1, 2
KEY = REPLICA + REPLICAS * REPLICA_CELLS
KEY_INFLIGHT, KEY_MINUTE, KEY_NOW, KEY_BEFORE, KEY_CELLS = 0, 1, 2, 3, 4
SLOT = KEY + KEYS * KEY_CELLS


def request_cell(route: int, status: int) -> int:
    """The cell that counts answers of `status` on a route."""
    return REQUESTS + route * (OTHER_STATUS + 1) + STATUS_INDEX.get(status, OTHER_STATUS)


class Cells:
    """All slots; `mine` is the one this process writes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._all = memoryview(mmap.mmap(-1, workers * SLOT * 8)).cast("q")
        self.mine = self._all[:SLOT]

    def take(self, worker: int) -> None:
        """This process is worker number `worker`: its slot becomes `mine`."""
        self.mine = self._all[worker * SLOT:(worker + 1) * SLOT]

    def total(self, cell: int) -> int:
        """The sum over all slots."""
        return sum(self._all[cell::SLOT])

    def values(self, cell: int) -> list[int]:
        """The value in each slot."""
        return list(self._all[cell::SLOT])

    def clear_gauges(self, worker: int) -> None:
        """What a worker that died had open is open no more; its counters stay."""
        base = worker * SLOT
        self._all[base + REV] = -1
        self._all[base + CONNECTIONS] = 0
        for number in range(REPLICAS):
            self._all[base + REPLICA + number * REPLICA_CELLS] = 0
        for number in range(KEYS):
            self._all[base + KEY + number * KEY_CELLS] = 0

    def wipe(self, first: int, count: int) -> None:
        """Zero `count` cells from `first` in every slot: their number gets a new owner."""
        for base in range(0, self.workers * SLOT, SLOT):
            for cell in range(base + first, base + first + count):
                self._all[cell] = 0

    def observe(self, histogram: int, elapsed_s: float) -> None:
        """Add one duration to a histogram of this slot."""
        elapsed_ms = elapsed_s * 1000
        cells = self.mine
        cells[histogram + bisect_left(BUCKETS_MS, elapsed_ms)] += 1
        cells[histogram + len(BUCKETS_MS) + 1] += int(elapsed_ms)


class Numbers:
    """Small numbers for names, given back once nobody counts under them any more. Only the parent has one."""

    def __init__(self, cells: Cells, first: int, size: int, count: int) -> None:
        self._cells, self._first, self._size = cells, first, size
        self._free = list(range(count - 1, 0, -1))
        self._given: dict[str, int] = {}

    def give(self, names: Iterable[str]) -> dict[str, int]:
        """A number for each of `names`; 0 where there is none left."""
        wanted = set(names)
        for name in [name for name in self._given if name not in wanted]:
            if not self._cells.total(self._first + self._given[name] * self._size):     # its first cell: what is in flight
                self._free.append(self._given.pop(name))
        for name in sorted(wanted - set(self._given)):
            if self._free:
                number = self._given[name] = self._free.pop()
                self._cells.wipe(self._first + number * self._size, self._size)
        return {name: self._given.get(name, 0) for name in wanted}

    def number(self, name: str) -> int:
        """The number that was given to `name`, or 0."""
        return self._given.get(name, 0)
