"""From "it has to end" to "every process of it has gone", on the loop.

Room: shim. What to send when is `ending`'s to say; here it is sent, and looked at again until nobody is left. It never gives
up: what SIGKILL cannot end is told, and looked at for as long as it takes, because its GPUs are not free before.
"""

import time
from collections.abc import Callable, Collection

from lib.host.process import send
from lib.net.epoll import Loop
from lib.shim.ending import Ending
from lib.shim.guard import Guard

TICK_S, HOPELESS_TICK_S = 0.05, 1.0
QUIET_S = 15.0                             # a connection that was answered and is silent this long waits for nothing
FLUSH_S = 2.0                              # for the last bytes of an engine that has gone to reach the routers


class Shutdown:
    """The end of one shard. `tree()` finds its processes; `survivors` is told who does not die, `done` that nobody is left."""

    def __init__(self, loop: Loop, guard: Guard | None, tree: Callable[[], Collection[int]], *,
                 survivors: Callable[[tuple[int, ...]], None], done: Callable[[], None]) -> None:
        self._loop, self._guard, self._tree = loop, guard, tree
        self._survivors, self._done = survivors, done
        self._drain_until = 0.0
        self._gone_at: float | None = None
        self._hopeless: tuple[int, ...] = ()
        self._ending: Ending | None = None
        self._make_ending: Callable[[float], Ending] | None = None

    @property
    def begun(self) -> bool:
        return self._make_ending is not None

    def begin(self, main: int, *, drain_s: float, grace_s: float, gently: bool) -> None:
        """No new connections from now on; those that wait for an answer get `drain_s`, then the processes are ended."""
        self._make_ending = lambda now: Ending(main, now, grace_s, gently)
        self._drain_until = time.monotonic() + drain_s
        if self._guard:
            self._guard.refuse_new()
        self._tick()

    def hurry(self) -> None:
        """Wait for no connection any longer."""
        self._drain_until = 0.0

    def _tick(self) -> None:
        pause_s = HOPELESS_TICK_S if self._hopeless else TICK_S
        again = self._loop.call_later(pause_s, self._tick)     # first of all: whatever goes wrong below, it goes on
        now = time.monotonic()
        if self._ending is None and not self._drained(now):
            return
        if self._end_processes(now) and self._flushed(now):
            again.cancel()
            if self._guard:
                self._guard.close_all()
            self._done()

    def _drained(self, now: float) -> bool:
        if not self._guard or now >= self._drain_until:
            return True
        self._guard.close_quiet(QUIET_S)
        return self._guard.live == 0

    def _end_processes(self, now: float) -> bool:
        """Whether nobody is left."""
        assert self._make_ending
        self._ending = self._ending or self._make_ending(now)
        alive = self._tree()
        signum, targets = self._ending.step(now, alive)
        if targets:
            send(targets, signum)
        self._hopeless = self._ending.survivors(now, alive)
        self._survivors(self._hopeless)
        return not alive

    def _flushed(self, now: float) -> bool:
        if self._gone_at is None:
            self._gone_at = now
        return not self._guard or self._guard.live == 0 or now - self._gone_at >= FLUSH_S
