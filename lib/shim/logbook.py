"""The engine's output on disk, bounded, and its last lines in memory.

Room: shim. The engine writes into a pipe and must never wait for a disk: whatever cannot be written is dropped and counted, and
the pipe is read on.
"""

import logging
import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)
TAIL_LINES, LINE_LIMIT = 20, 2000
_LOOK_AGAIN_S = 1.0
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Tail:
    """The last lines of a stream of bytes, fit to be shown on a terminal. A carriage return ends a line too (progress bars)."""

    def __init__(self, lines: int = TAIL_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._open = b""

    def feed(self, data: bytes) -> None:
        """More output."""
        *whole, rest = (self._open + data[-256 * 1024:]).replace(b"\r", b"\n").split(b"\n")
        self._lines.extend(text for line in whole if (text := _printable(line)))
        self._open = rest[-LINE_LIMIT:]

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first, an unfinished one included."""
        last = _printable(self._open)
        return (*self._lines, last)[-TAIL_LINES:] if last else tuple(self._lines)


def _printable(line: bytes) -> str:
    return _UNPRINTABLE.sub("", line[-LINE_LIMIT:].decode("utf-8", "replace")).rstrip()


class RotatedFile:
    """`path` growing to `limit` bytes, then moved to `old`. Never raises for the disk's sake: what does not fit is dropped."""

    def __init__(self, path: Path, old: Path, limit: int) -> None:
        self._path, self._old, self._limit = path, old, limit
        self._fd = -1
        self._looked = 0.0
        self._dropped = 0
        self.dropped_total = 0

    def write(self, data: bytes) -> None:
        """Append, rotate where it is time, drop what the disk does not take."""
        try:
            self._settle(len(data))
            if self._dropped:
                os.write(self._fd, f"\n[{self._dropped} bytes of output were lost here: the disk did not take them]\n".encode())
                self._dropped = 0
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view):]
        except OSError as err:
            if not self._dropped:
                log.warning("output of the engine is being lost: %s: %s", self._path, err.strerror)
            self._dropped += len(data)
            self.dropped_total += len(data)

    def _settle(self, more: int) -> None:
        """Have the right file open: somebody else may have moved, removed or cut it."""
        now = time.monotonic()
        if self._fd >= 0 and now - self._looked > _LOOK_AGAIN_S:
            self._looked = now
            if not self._still_there():
                self.close()
        if self._fd >= 0 and (size := os.fstat(self._fd).st_size) and size + more > self._limit:
            os.replace(self._path, self._old)
            self.close()
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._looked = now

    def _still_there(self) -> bool:
        try:
            return os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Give the file back."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1


class LogBook:
    """A thread that carries the engine's output from a pipe to the file, until every writer of the pipe has gone."""

    def __init__(self, file: RotatedFile) -> None:
        self._file, self._tail = file, Tail()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, pipe: int) -> None:
        """Read `pipe` from now on."""
        self._thread = threading.Thread(target=self._carry, args=(pipe,), name="log", daemon=True)
        self._thread.start()

    def _carry(self, pipe: int) -> None:
        with open(pipe, "rb", buffering=0) as source:
            while data := source.read(256 * 1024):
                with self._lock:
                    self._tail.feed(data)
                self._file.write(data)
        self._file.close()

    def tail(self) -> tuple[str, ...]:
        """The last lines so far."""
        with self._lock:
            return self._tail.lines()

    def last_line(self) -> str:
        """The newest line, or an empty string."""
        return (self.tail() or ("",))[-1]

    def finish(self, timeout_s: float) -> None:
        """Wait until everything that was said is written, but not longer."""
        if self._thread:
            self._thread.join(timeout_s)
