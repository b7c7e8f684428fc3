"""A bare epoll loop: callbacks for file descriptors, timers, and calls handed over by other threads.

Room: net. One thread runs it; nothing here blocks but the poll itself. Only `call_soon_threadsafe` and `stop` may be called
from elsewhere (another thread, a signal handler). Make a loop after forking, never before: children would share its epoll.
Callbacks may be called without need (level-triggered, and descriptors are reused): they read or write without blocking and
believe only what that says.
"""

import contextlib
import heapq
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

IN, OUT, ERR, HUP, RDHUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR, select.EPOLLHUP, select.EPOLLRDHUP

Callback = Callable[[int], object]

log = logging.getLogger(__name__)


class Timer:
    """One call in the future, until it is cancelled or made."""

    __slots__ = ("_order", "call")

    def __init__(self, due: float, order: int, call: Callable[[], object]) -> None:
        self._order = (due, order)
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Never call it. Cancelling twice, or after it was called, does nothing."""
        self.call = None

    @property
    def due(self) -> float:
        return self._order[0]

    def __lt__(self, other: "Timer") -> bool:
        return self._order < other._order


class Loop:
    """The loop. `on_bug(fd, callback)` is told where a callback raised, once the traceback is logged (fd -1: no descriptor)."""

    def __init__(self, on_bug: Callable[[int, Callable[..., object]], object] | None = None) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callback] = {}
        self._gone: set[int] = set()        # unregistered while the present batch of events is worked through
        self._timers: list[Timer] = []
        self._made = 0
        self._calls: deque[Callable[[], object]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._running = True
        self._on_bug = on_bug
        self.now = time.monotonic()         # as of the present batch: cheap, and good enough for deadlines
        self.register(self._wake, self._woken, IN)

    def register(self, fd: int, callback: Callback, events: int = IN) -> None:
        """Call `callback(events)` whenever one of `events` (or an error or hang-up) is there."""
        self._epoll.register(fd, events)
        self._handlers[fd] = callback

    def replace(self, fd: int, callback: Callback) -> None:
        """Another callback for a registered descriptor, same events."""
        self._handlers[fd] = callback

    def modify(self, fd: int, events: int) -> None:
        """Other events for a registered descriptor; 0 leaves errors and hang-up only."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor; call it before closing. One that is not registered is no matter."""
        if self._handlers.pop(fd, None) is not None:
            self._gone.add(fd)
            with contextlib.suppress(OSError):     # closed already: the kernel has forgotten it by itself
                self._epoll.unregister(fd)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call `call()` once, that much later."""
        self._made += 1
        timer = Timer(time.monotonic() + seconds, self._made, call)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        """Call `call()` on the loop's thread, soon. Fit for other threads and for signal handlers."""
        self._calls.append(call)
        self._poke()

    def stop(self) -> None:
        """Let `run` return after the present batch."""
        self._running = False
        self._poke()

    def run(self) -> None:
        """Work until `stop`. A callback that raises is logged with its traceback and told to `on_bug`; the loop goes on."""
        poll, get, gone = self._epoll.poll, self._handlers.get, self._gone
        while self._running:
            ready = poll(self._patience())
            self.now = time.monotonic()
            if gone:
                gone.clear()
            for fd, events in ready:
                callback = get(fd)
                if callback is None or (gone and fd in gone):   # its number was reused in this batch: the event is not its own
                    continue
                try:
                    callback(events)
                except Exception:  # noqa: BLE001  a bug in one connection must not end all the others
                    self._bug(fd, callback)
            if self._timers:
                self._run_timers()

    def close(self) -> None:
        """Give the descriptors of the loop itself back; those registered stay their owners'."""
        self._epoll.close()
        os.close(self._wake)
        self._handlers.clear()

    def _patience(self) -> float | None:
        timers = self._timers
        while timers and timers[0].call is None:
            heapq.heappop(timers)
        return max(0.0, timers[0].due - time.monotonic()) if timers else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].due <= now:
            timer = heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            if call is not None:
                self._attempt(call)

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._calls)):   # those added meanwhile have poked again
            self._attempt(self._calls.popleft())

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001  as in run
            self._bug(-1, call)

    def _bug(self, fd: int, callback: Callable[..., Any]) -> None:
        log.exception("callback %r failed", getattr(callback, "__qualname__", callback))
        if self._on_bug is not None:
            self._on_bug(fd, callback)
        elif fd >= 0:
            self.unregister(fd)             # or it would be called again at once, for ever

    def _poke(self) -> None:
        os.eventfd_write(self._wake, 1)
