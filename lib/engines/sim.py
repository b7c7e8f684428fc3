"""The sim engine as llmgw starts it: true launch order, lost shards and bad engines, without a GPU or weights.

Room: engines. The process itself is `sim_engine`, carried by the agent.
"""

from collections.abc import Sequence

from lib.base.version import VERSION
from lib.engines.environment import bad_variable, environment
from lib.engines.interface import Launch, classify_by_signs
from lib.engines.sim_flags import KEY_VARIABLE, bad_argument
from lib.model.catalog import EngineRules
from lib.model.cause import Cause
from lib.model.fleet import FaultClass
from lib.model.probe import Probe

SUBCOMMAND = "sim-engine"                  # of the agent's program
_SIGNS = {
    "cannot bind": FaultClass.RESOURCE,
    "did not join within": FaultClass.TRANSIENT,
    "could not join": FaultClass.TRANSIENT,
    "the sim engine has no argument": FaultClass.CONFIGURATION,
}


class Sim:
    """An engine that holds no model."""

    name = "sim"
    version_argv: tuple[str, ...] = ()

    def rules(self) -> EngineRules:
        return EngineRules(needs_source=False, multi_shard=True, bad_argument=bad_argument,
                           bad_variable=lambda name: bad_variable(name, {}))

    def parse_version(self, output: str) -> str:
        return output.strip() or VERSION

    def command(self, launch: Launch) -> list[str]:
        """The same words on every rank but for --rank. The profile's come first: of two, the last one counts."""
        order = launch.order
        names = [word for name in order.served_names or (order.model,) for word in ("--model-name", name)]
        argv = [*launch.program, SUBCOMMAND, *order.args, *names, "--host", launch.engine_host, "--port", str(order.port),
                "--rank", str(order.rank), "--shards", str(order.shard_count), "--group", f"{order.replica}.{order.epoch}"]
        return [*argv, "--rendezvous", order.rdzv] if order.shard_count > 1 else argv

    def environment(self, launch: Launch) -> dict[str, str]:
        return environment(launch, {KEY_VARIABLE: launch.order.engine_key})

    def serves(self, rank: int) -> bool:
        return rank == 0

    def readiness(self, launch: Launch) -> Probe | None:
        return Probe(served_name=launch.served_name) if self.serves(launch.order.rank) else None

    def source_fault(self, path: str) -> str:      # noqa: ARG002 - it reads no weights
        return ""

    def classify(self, exit_code: int | None, log_tail: Sequence[str]) -> Cause:
        fault, sentence = classify_by_signs(_SIGNS, exit_code, log_tail)
        return Cause(FaultClass.CONFIGURATION if exit_code == 2 else fault, sentence)
