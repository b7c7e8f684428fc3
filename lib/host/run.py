"""The one way to run another program and read what it says.

Room: host. No shell, no inherited environment, no inherited standard input, always a deadline. A program that is past its
deadline is killed with its whole process group and then left alone: one that hangs in a driver cannot be killed, and waiting
for it would hang the caller too.
"""

import logging
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lib.base.errors import LlmgwError, NotFound, TimedOut

log = logging.getLogger(__name__)
OUTPUT_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program said and how it ended; a negative status is the signal that ended it."""

    status: int
    stdout: str
    stderr: str


class Overdue(TimedOut):
    """A program did not end in its time and was killed. `still_there()` tells whether the kernel has let it go by now."""

    def __init__(self, message: str, child: "subprocess.Popen[bytes]") -> None:
        super().__init__(message, hint="run the command by hand to see whether it answers")
        self._child = child

    def still_there(self) -> bool:
        """Whether the killed program still exists (it cannot die while it waits inside a driver)."""
        return self._child.poll() is None


def run(argv: Sequence[str | os.PathLike[str]], *, text: str = "", timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None) -> str:
    """Standard output of `argv`. NotFound, TimedOut, or LlmgwError with the end of what it said where it fails."""
    done = attempt(argv, text=text, timeout_s=timeout_s, env=env)
    if done.status:
        said = " ".join((done.stderr.strip() or done.stdout.strip())[-400:].split())
        raise LlmgwError(f"{_words(argv)}: exit {done.status}: {said}")
    return done.stdout


def attempt(argv: Sequence[str | os.PathLike[str]], *, text: str = "", timeout_s: float = 60.0,
            env: Mapping[str, str] | None = None, grace_s: float = 0.0) -> Outcome:
    """Run `argv` for programs whose failures are read, not only noticed. NotFound where there is no such program.

    With `grace_s` the program is one that must clean up after itself: when its time is over, or we are interrupted, it is
    asked to end and waited for that long, and never killed.
    """
    log.debug("+ %s", _words(argv))
    child = _start([os.fspath(part) for part in argv], env or {})
    try:
        output = _converse(child, text.encode(), time.monotonic() + timeout_s)
    except TimeoutError:
        _end(child, grace_s)
        raise Overdue(f"{_words(argv)} still running after {timeout_s:g} s", child) from None
    except KeyboardInterrupt:
        _end(child, grace_s)
        raise
    except OverflowError:
        _end(child, grace_s)
        raise LlmgwError(f"{_words(argv)} printed more than {OUTPUT_LIMIT} bytes") from None
    finally:
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()
    return Outcome(child.returncode, *(part.decode("utf-8", "replace") for part in output))


def _words(argv: Sequence[str | os.PathLike[str]]) -> str:
    return shlex.join(os.fspath(part) for part in argv)


def base_environment() -> dict[str, str]:
    """All that a program of ours inherits."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}


def _start(cmd: list[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                                env=base_environment() | dict(env), start_new_session=True)
    except FileNotFoundError:
        raise NotFound(f"{cmd[0]} not found", hint="install it, or name its path in the configuration") from None
    except OSError as err:
        raise LlmgwError(f"{cmd[0]} cannot be run: {err.strerror}", hint="check that it is an executable file") from None


def _converse(child: "subprocess.Popen[bytes]", text: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Feed `text`, collect both outputs, wait for the end. TimeoutError past the deadline, OverflowError past the limit."""
    assert child.stdin
    assert child.stdout
    assert child.stderr
    said = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    unsent = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for fd in said:
            selector.register(fd, selectors.EVENT_READ)
        if unsent:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin.fileno(), selectors.EVENT_WRITE)
        else:
            child.stdin.close()
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd in said:
                    _collect(selector, key.fd, said[key.fd])
                else:
                    unsent = _feed(selector, child, unsent)
    try:
        child.wait(max(0.01, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    out, err = said.values()
    return bytes(out), bytes(err)


def _collect(selector: selectors.BaseSelector, fd: int, into: bytearray) -> None:
    data = os.read(fd, 65536)
    into += data
    if not data:
        selector.unregister(fd)
    if len(into) > OUTPUT_LIMIT:
        raise OverflowError


def _feed(selector: selectors.BaseSelector, child: "subprocess.Popen[bytes]", unsent: memoryview) -> memoryview:
    assert child.stdin
    try:
        unsent = unsent[os.write(child.stdin.fileno(), unsent):]
    except BrokenPipeError:                # it does not want to hear the rest; its status tells whether that is bad
        unsent = unsent[:0]
    if not unsent:
        selector.unregister(child.stdin.fileno())
        child.stdin.close()
    return unsent


def _end(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Kill it, or where it has a grace ask it to end and hear it out."""
    if not grace_s:
        _kill_group(child)
        return
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(TimeoutError, OverflowError):
        _converse(child, b"", time.monotonic() + grace_s)


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
