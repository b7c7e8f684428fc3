"""How a process tree is brought to its end: what to send to whom, and when.

Room: shim. Pure: the time and the living processes arrive as arguments, the caller sends. First only the main process is asked,
because engines stop their own workers in their own order; then what it left behind is asked; at last everything is killed, again
and again, because a tree may fork while it is being killed.
"""

import signal
from collections.abc import Collection
from dataclasses import dataclass

ORPHAN_GRACE_S = 5.0                       # for processes whose main process has gone: nobody else will stop them
SURVIVOR_S = 5.0                           # what lives this long after SIGKILL hangs in the kernel


@dataclass(slots=True)
class Ending:
    """One end, from the moment it begins. `gently` false: kill at once (the main process has gone by itself)."""

    main: int
    began: float
    grace_s: float
    gently: bool = True
    asked_main: bool = False
    orphaned_at: float | None = None       # when the main process was first seen to be gone
    killing_since: float | None = None

    def step(self, now: float, alive: Collection[int]) -> tuple[int, frozenset[int]]:
        """The signal to send now and to whom; (0, nobody) means wait, or done where nobody is alive."""
        if alive and self._must_kill(now, alive):
            if self.killing_since is None:
                self.killing_since = now
            return signal.SIGKILL, frozenset(alive)
        if self.main in alive and not self.asked_main:
            self.asked_main = True
            return signal.SIGTERM, frozenset({self.main})
        if alive and self.main not in alive and self.orphaned_at is None:
            self.orphaned_at = now
            return signal.SIGTERM, frozenset(alive)
        return 0, frozenset()

    def _must_kill(self, now: float, alive: Collection[int]) -> bool:
        if not self.gently or now - self.began >= self.grace_s:
            return True
        return self.main not in alive and self.orphaned_at is not None and now - self.orphaned_at >= ORPHAN_GRACE_S

    def survivors(self, now: float, alive: Collection[int]) -> tuple[int, ...]:
        """Those that SIGKILL does not end."""
        hopeless = self.killing_since is not None and now - self.killing_since >= SURVIVOR_S
        return tuple(sorted(alive)) if hopeless else ()
