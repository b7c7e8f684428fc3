"""The errors of llmgw: what happened, what to do about it, and what the shell and HTTP see of it.

Room: base. Imports nothing of ours. Raise where it goes wrong; `cli.app` and `net.server` are the only places that print.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class LlmgwError(Exception):
    """One failure in one line. `exit_code` is what the shell sees, `status` what HTTP sees, `hint` what to do."""

    exit_code, status = 1, 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(LlmgwError):
    """The words of a command or the body of a request are off."""

    exit_code, status = 2, 400


class NotFound(LlmgwError):
    """The named thing does not exist."""

    exit_code, status = 3, 404


class Refused(LlmgwError):
    """The caller may not do this, or doing it would break a promise."""

    exit_code, status = 4, 403


class Blocked(LlmgwError):
    """It cannot go on until something else changes."""

    exit_code, status = 5, 409


class TimedOut(LlmgwError):
    """It was begun and did not end in its time."""

    exit_code, status = 6, 504


class UnknownOutcome(LlmgwError):
    """The request was sent and the connection died: it may or may not have been done."""

    exit_code, status = 7, 502


class Cancelled(LlmgwError):
    """Somebody changed their mind."""

    exit_code, status = 8, 499


class Unavailable(LlmgwError):
    """The other side does not answer, or cannot do it now; the same call may succeed later."""

    exit_code, status = 1, 503


class StateLocked(LlmgwError):
    """Another process holds the state file."""

    exit_code, status = 73, 503


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a file: where it is and what would mend it. `line` is 0 where it cannot be told."""

    file: str
    line: int
    key: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{place}: {self.key}: {self.problem}" if self.key else f"{place}: {self.problem}"
        return f"{text} ({self.hint})" if self.hint else text


class ConfigError(LlmgwError):
    """A configuration is refused as a whole; `faults` lists everything wrong with it."""

    exit_code, status = 78, 400

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


def bad_config(file: str, problem: str, *, hint: str = "", key: str = "", line: int = 0) -> ConfigError:
    """A ConfigError of one fault."""
    return ConfigError([Fault(file, line, key, problem, hint)])
