"""The run directory of a shard: the contract between an agent, which writes `spec.json`, and the shim, which writes the rest.

Room: model. Both sit on one floor and know nothing else of each other. Times named `_mono` are this machine's monotonic clock,
which all processes of one boot share; `_wall` is for people only. Every file is replaced as a whole, so that a reader sees the
old one or the new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.model.fleet import FaultClass, ShardState
from lib.model.identity import Identity
from lib.model.probe import Probe
from lib.model.wire import ShardOrder

SPEC, SHIM, STATE, EXIT = "spec.json", "shim.json", "state.json", "exit.json"
LOG, OLD_LOG, SHIM_LOG = "log", "log.1", "shim.log"


def shard_name(replica: str, counter: int, rank: int) -> str:
    """The name of the run directory."""
    return f"{replica}.{counter}.{rank}"


def shard_marker(replica: str, counter: int, rank: int, nonce: str) -> str:
    """The environment variable that every process of the shard carries, as NAME=value.

    With the nonce, because two clusters on one machine may well have a replica, a counter and a rank in common.
    """
    return f"LLMGW_SHARD={shard_name(replica, counter, rank)}.{nonce}"


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """spec.json: everything a shim needs to know. Written by the agent before it starts the shim, never changed."""

    order: ShardOrder
    node: str
    cluster: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)     # the engine's whole environment; the shim adds the marker
    probe: Probe | None = None             # None: ready as soon as the process is alive
    engine_host: str = "127.0.0.1"         # where rank 0's engine listens, on order.port
    certificate: str = ""                  # the node's; rank 0 only, like the three below
    key: str = ""
    ca: str = ""
    revoked: str = ""                      # JSON {"serials": [...], "ids": [...]}; read again within a second of a change
    notify: str = ""                       # UNIX datagram socket of the agent, told when state.json has news
    drain_s: float = 120.0                 # how long a stop waits for the guard's connections to end
    log_bytes: int = 16 * 1024 * 1024      # `log` and `log.1` grow to this much each

    @property
    def guarded(self) -> bool:
        """Rank 0 of an engine that listens: only it has a guard."""
        return self.order.rank == 0 and self.order.port > 0

    @property
    def name(self) -> str:
        return shard_name(*self.order.key)

    @property
    def marker(self) -> str:
        return shard_marker(*self.order.key, self.order.nonce)


@dataclass(frozen=True, slots=True)
class RevokedList:
    """revoked.json of a node: who is let in no more, by certificate or altogether."""

    serials: tuple[str, ...] = ()          # hex
    ids: tuple[str, ...] = ()              # of removed nodes and routers

    def covers(self, identity: Identity) -> bool:
        serials = {serial.lower().lstrip("0") for serial in self.serials}
        return identity.serial in serials or identity.id in self.ids


@dataclass(frozen=True, slots=True)
class ShimRecord:
    """shim.json: who the shim is. Its being there means that this shard was started once and never will be again."""

    pid: int
    start: int                             # clock ticks since boot
    boot: str
    version: str = ""                      # of the build that runs in it


@dataclass(frozen=True, slots=True)
class GuardCounts:
    """What went through the guard."""

    connections: int = 0                   # live ones
    accepted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # reason -> how often
    expired: int = 0                       # let in although past their date: "serving never stops for a date"


@dataclass(frozen=True, slots=True)
class StateRecord:
    """state.json: how the shard is. `detail` is the last line of the log while starting, else what is wrong."""

    state: ShardState
    since_mono: float
    engine_pid: int = 0
    engine_start: int = 0                  # clock ticks since boot
    engine_since_mono: float = 0.0
    detail: str = ""
    guard: GuardCounts = GuardCounts()
    survivors: tuple[int, ...] = ()        # pids that SIGKILL did not end: their GPUs are not free


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """exit.json: how the shard ended. Written only once every process of it has gone."""

    requested: bool                        # somebody asked for it; otherwise it is a failure, whatever the code
    detail: str
    exit_code: int | None = None           # negative: signal; None: the engine never ran
    fault: FaultClass = FaultClass.UNKNOWN
    out_of_memory: bool = False            # the kernel killed something for want of memory while the engine ran
    ran_s: float = 0.0
    ended_wall: float = 0.0
    log_tail: tuple[str, ...] = ()
