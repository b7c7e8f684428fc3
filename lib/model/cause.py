"""Why a shard failed, and an exit code in words.

Room: model. Engines, shim and agent judge; whoever reads the judgement decides about another try from its class alone.
"""

import signal
from typing import NamedTuple

from lib.model.fleet import FaultClass


class Cause(NamedTuple):
    """The class of a failure and a sentence for people."""

    fault: FaultClass
    sentence: str


def exit_words(code: int | None) -> str:
    """What became of a process: "exited with status 3", "was killed by signal 9 (SIGKILL)". None: it could not be started."""
    if code is None:
        return "could not be started"
    if code < 0:
        return f"was killed by signal {-code}{_named(-code)}"
    return f"exited with status {code}{_named(code - 128)}"      # a shell, and llama.cpp, exit with 128 + signal


def _named(signum: int) -> str:
    return f" ({signal.Signals(signum).name})" if signum in list(signal.Signals) else ""
