"""What an API key may do, counted over all workers of this router.

Room: gateway. No clock: `now` is passed in. Several routers know nothing of each other's requests, so each grants its share:
the limit divided by the number of routers, rounded up.
"""

from lib.gateway.answers import Refusal
from lib.gateway.cells import KEY, KEY_BEFORE, KEY_CELLS, KEY_INFLIGHT, KEY_MINUTE, KEY_NOW, Cells
from lib.model.wire import KeyEntry


class Key:
    """One API key and its limits; 0 and None mean unlimited."""

    __slots__ = ("_cell", "_cells", "concurrency", "id", "limited", "models", "requests_per_minute")

    def __init__(self, entry: KeyEntry, number: int, routers: int, cells: Cells) -> None:
        limits = entry.limits
        self.id, self._cells, self._cell = entry.id, cells, KEY + number * KEY_CELLS
        self.models = frozenset(limits.models) or None
        self.concurrency = -(-limits.concurrency // routers)
        self.requests_per_minute = -(-limits.requests_per_minute // routers)
        self.limited = bool(self.concurrency or self.requests_per_minute)

    def may_use(self, model: str) -> bool:
        """Whether this key may ask for the model of that name."""
        return self.models is None or model in self.models

    def admit(self, now: float) -> None:
        """Count one request in; Refusal (429) where a limit is reached."""
        cells, cell = self._cells, self._cell
        if self.concurrency and cells.total(cell + KEY_INFLIGHT) >= self.concurrency:
            raise Refusal(429, f"This key may have {self.concurrency} requests in flight at once.", code="concurrency_limit",
                          retry_after_s=1)
        if self.requests_per_minute:
            self._count_minute(now)
        cells.mine[cell + KEY_INFLIGHT] += 1

    def release(self) -> None:
        """A request that was admitted is over."""
        self._cells.mine[self._cell + KEY_INFLIGHT] -= 1

    def _count_minute(self, now: float) -> None:
        """A sliding minute: this minute's requests and the part of the last one's that still lies within 60 s."""
        minute, within = divmod(now, 60)
        recent = self._recent(int(minute), within / 60)
        if recent >= self.requests_per_minute:
            raise Refusal(429, f"This key may send {self.requests_per_minute} requests a minute.", code="rate_limit_exceeded",
                          retry_after_s=max(1, int(60 - within)))
        mine, cell = self._cells.mine, self._cell
        if mine[cell + KEY_MINUTE] != int(minute):
            mine[cell + KEY_BEFORE] = mine[cell + KEY_NOW] if mine[cell + KEY_MINUTE] == int(minute) - 1 else 0
            mine[cell + KEY_MINUTE], mine[cell + KEY_NOW] = int(minute), 0
        mine[cell + KEY_NOW] += 1

    def _recent(self, minute: int, part: float) -> float:
        cells, cell = self._cells, self._cell
        total = 0.0
        rows = zip(cells.values(cell + KEY_MINUTE), cells.values(cell + KEY_NOW), cells.values(cell + KEY_BEFORE), strict=True)
        for counted_in, count, before in rows:
            if counted_in == minute:
                total += count + before * (1 - part)
            elif counted_in == minute - 1:
                total += count * (1 - part)
        return total
