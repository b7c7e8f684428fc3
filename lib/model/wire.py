"""The messages between the roles, as types (docs/protocol.md tells their order).

Room: model. JSON through `model.codec`; ages in seconds, never timestamps; unknown fields ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.model.fleet import Epoch, FaultClass, Inventory, ShardKey, ShardState

EVENTS_AT_ONCE = 10_000                    # the most events in one answer
PROTOCOL = 1                               # the newest protocol this build speaks; peers send the range they speak


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest control-plane state an agent has ever obeyed."""

    lineage: str = ""
    cp_epoch: int = 0
    rev: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """POST /agent/v1/hello: opens a session bound to this run of the control plane."""

    node: str
    node_uid: str
    boot_id: str
    agent_run: str                         # random, new with each agent start
    version: str
    proto: tuple[int, ...] = (PROTOCOL, PROTOCOL)
    seen: Seen = Seen()


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to Hello."""

    proto: int
    session: str
    lineage: str
    cp_epoch: int
    rev: int


@dataclass(frozen=True, slots=True)
class ShardMessage:
    """Which shard a report or an order is about."""

    replica: str
    counter: int
    nonce: str
    rank: int

    @property
    def key(self) -> ShardKey:
        return self.replica, self.counter, self.rank

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.counter, self.nonce)


@dataclass(frozen=True, slots=True)
class ShardReport(ShardMessage):
    """What an agent says of one shard it has, or once had and was not told to forget."""

    state: ShardState
    pid: int = 0                           # of the engine
    port: int = 0
    age_s: float = 0.0                     # since the engine started
    detail: str = ""                       # last log line while starting, or why it failed, in a sentence
    fault: FaultClass = FaultClass.TRANSIENT
    exit_code: int | None = None           # negative: signal
    log_tail: tuple[str, ...] = ()         # of a failed shard


@dataclass(frozen=True, slots=True)
class Sync:
    """POST /agent/v1/sync: everything the node has and runs. Held up to `hold_s` unless there is news past `applied_rev`."""

    session: str
    agent_run: str
    seq: int                               # rises within one agent_run; an older one arriving late is ignored
    applied_rev: int
    shards: tuple[ShardReport, ...] = ()
    inventory: Inventory | None = None     # None: as in the last sync of this session
    hold_s: float = 0.0
    seen: Seen = Seen()


@dataclass(frozen=True, slots=True)
class ShardOrder(ShardMessage):
    """One shard that a node should run."""

    shard_count: int
    may_start: bool
    profile: str
    model: str
    engine: str
    source: str
    served_names: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    addr: str = ""                         # rank 0's guard listens here; the engine on loopback, same port
    port: int = 0
    rdzv: str = ""                         # "address:port" of rank 0 on the fabric; empty for one shard
    engine_key: str = ""
    stop_grace_s: float = 30.0
    drain_s: float = 120.0                 # how long its running requests may take when it is to stop


@dataclass(frozen=True, slots=True)
class Ended:
    """A shard that must not run, and may be forgotten once it is reported gone."""

    replica: str
    counter: int
    rank: int
    drain_s: float = 0.0                   # how long its streams may still take before it is stopped

    @property
    def key(self) -> ShardKey:
        return self.replica, self.counter, self.rank


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Weights that an engine is to read: it knows what completeness means."""

    path: str
    engine: str


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer to Sync: the complete set of what the node should run."""

    proto: int
    agent_run: str                         # whose answer this is; another run's is ignored
    lineage: str
    cp_epoch: int
    rev: int
    authoritative: bool                    # false while adopting: stop nothing because it is not listed
    lease_s: float
    shards: tuple[ShardOrder, ...] = ()
    ended: tuple[Ended, ...] = ()
    sources: tuple[Source, ...] = ()       # whose presence on the node the control plane wants to know
    revoked: tuple[str, ...] = ()          # serials, lower-case hex


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica in the router table."""

    id: str
    counter: int
    nonce: str
    addr: str
    port: int
    node: str
    engine_key: str
    state: str                             # ready | degraded
    served: tuple[str, ...] = ()           # names its engine was started with; empty: not told, and any may be sent

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.counter, self.nonce)


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """One model in the router table; no replicas means that it is known and not ready."""

    aliases: tuple[str, ...] = ()
    replicas: tuple[Endpoint, ...] = ()
    max_inflight: int = 0                  # per replica; 0: no limit
    state: str = ""                        # why there is no replica, for the 503


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What an API key may do; 0 and empty mean no limit."""

    models: tuple[str, ...] = ()
    concurrency: int = 0
    requests_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One API key in the router table."""

    id: str
    sha256: str                            # of the whole key text, hex
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True, slots=True)
class RouterTable:
    """GET /router/v1/table?rev=N&cp_epoch=E&hold=S: answered at once where it differs from what the router has."""

    rev: int
    cluster: str
    models: Mapping[str, ModelRoute] = field(default_factory=dict)
    keys: tuple[KeyEntry, ...] = ()
    revoked: tuple[str, ...] = ()
    routers: int = 1                       # how many routers report, so that each can enforce its share of a limit
    cp_epoch: int = 0
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class SeenGood:
    """A router's evidence that an epoch answers."""

    replica: str
    counter: int
    ok_age_s: float


@dataclass(frozen=True, slots=True)
class RouterReport:
    """POST /router/v1/report."""

    router: str
    applied_rev: int
    applied_cp_epoch: int = 0
    seen: tuple[SeenGood, ...] = ()
