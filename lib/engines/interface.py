"""What llmgw must be told of an engine: how it is found, started, asked, checked and understood when it dies.

Room: engines. Commands, environments and judgements are pure; only `source_fault` reads files. No engine knows another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lib.model.catalog import EngineRules
from lib.model.cause import Cause, exit_words
from lib.model.fleet import FaultClass, Gpu
from lib.model.probe import Probe
from lib.model.wire import ShardOrder


@dataclass(frozen=True, slots=True)
class Launch:
    """One shard about to be started: the order, and what this node adds to it."""

    order: ShardOrder
    program: tuple[str, ...]               # the words that start the engine's program
    engine_host: str                       # loopback address that rank 0's engine listens on, at the order's port
    gpus: tuple[Gpu, ...] = ()             # all GPUs of the node; the order's UUIDs are looked up here
    interface: str = ""                    # network interface that holds the fabric's address
    address: str = ""                      # this node's own address on the fabric
    home: str = "/"                        # writable directory for what the engine caches between starts

    @property
    def served_name(self) -> str:
        """The name the model is listed under first."""
        return self.order.served_names[0] if self.order.served_names else self.order.model


class Engine(Protocol):
    """One inference engine."""

    name: str
    version_argv: tuple[str, ...]          # the words that make the program tell its version (on stdout or stderr) and end

    def rules(self) -> EngineRules:
        """What the catalog may say of it."""

    def parse_version(self, output: str) -> str:
        """The version in what the program said to `version_argv`, or an empty string."""

    def command(self, launch: Launch) -> list[str]:
        """The argv of one shard."""

    def environment(self, launch: Launch) -> dict[str, str]:
        """The whole environment of one shard; nothing is inherited."""

    def serves(self, rank: int) -> bool:
        """Whether this rank answers requests."""

    def readiness(self, launch: Launch) -> Probe | None:
        """What the shim asks before it calls the shard ready; None where a live process is all there is to see."""

    def source_fault(self, path: str) -> str:
        """Empty when the weights at `path` are there and complete, else what is wrong, in a sentence."""

    def classify(self, exit_code: int | None, log_tail: Sequence[str]) -> Cause:
        """Why an engine that nobody stopped has ended. A negative code is a signal; None: it could not be started."""


def classify_by_signs(signs: Mapping[str, FaultClass], exit_code: int | None, log_tail: Sequence[str]) -> Cause:
    """Judge by the first sign (lower case, the telling ones first) found in the log, else by the exit code alone."""
    for sign, fault in signs.items():
        for line in log_tail:
            if sign in line.lower():
                return Cause(fault, f"the engine {exit_words(exit_code)}: {line.strip()[-300:]}")
    return Cause(FaultClass.TRANSIENT, f"the engine {exit_words(exit_code)}")
