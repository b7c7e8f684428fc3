"""The nouns: nodes, adapters, GPUs, shards and replicas, and the words for their states.

Room: model. Frozen values only; whatever can be derived is a property, so that no flag can disagree with the facts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lib.base.address import host_port
from lib.base.errors import UsageError
from lib.base.names import DNS_LABEL

ShardKey = tuple[str, int, int]            # replica, epoch counter, rank: one shard of one epoch, and no other


def check_node_id(text: str) -> str:
    """`text` if it can be a node id (a DNS label, not all digits); UsageError otherwise."""
    if not re.fullmatch(DNS_LABEL, text) or text.isdigit():
        raise UsageError(f"{text!r} cannot be a node id",
                         hint="use lower-case letters, digits and '-', at most 63, no '-' at either end, not digits alone")
    return text


class ShardState(StrEnum):
    """What a shim says of its shard."""

    STARTING, READY, DEGRADED, STOPPING, FAILED = "starting", "ready", "degraded", "stopping", "failed"
    UNKNOWN = "unknown"


class ReplicaState(StrEnum):
    """Where a replica is in its life (`rules.lifecycle` says what may follow what)."""

    PENDING, STARTING, READY, DEGRADED = "pending", "starting", "ready", "degraded"
    DRAINING, STOPPING, STOPPED = "draining", "stopping", "stopped"
    BACKOFF, FAILED = "backoff", "failed"


class NodeState(StrEnum):
    """How well the control plane knows a node: `unreported` means not heard from since this control plane started."""

    READY, SUSPECT, LOST, UNREPORTED = "ready", "suspect", "lost", "unreported"


class FaultClass(StrEnum):
    """What a failure says about trying again: not until someone changes something; elsewhere; later."""

    CONFIGURATION, RESOURCE, TRANSIENT = "configuration", "resource", "transient"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One incarnation of a replica. The counter rises with each placement in the cluster; the nonce is 16 hex digits."""

    counter: int
    nonce: str

    @property
    def server_name(self) -> str:
        """What the router asks for in the TLS SNI, and the guard insists on."""
        return f"e{self.counter}-{self.nonce}"

    def __str__(self) -> str:
        return self.server_name


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi tells it. `memory_mib` None means that it does not say, which is neither 0 nor healthy."""

    uuid: str
    index: int
    name: str
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    pci: str = ""
    fault: str = ""                        # why it cannot be booked: "MIG enabled", …


@dataclass(frozen=True, slots=True)
class Adapter:
    """One port of an HCA as /sys/class/infiniband tells it."""

    name: str
    port: int = 1
    link_layer: str = ""                   # InfiniBand | Ethernet | Unknown
    state: str = ""                        # ACTIVE | INIT | DOWN | …
    physical: str = ""                     # LinkUp | Polling | Disabled | …
    rate: str = ""                         # "400 Gb/sec (4X NDR)"
    guid: str = ""
    netdev: str = ""

    @property
    def is_infiniband(self) -> bool:
        return self.link_layer == "InfiniBand"


@dataclass(frozen=True, slots=True)
class Fabric:
    """A node's place on a fabric: the adapters it uses there and the address that rendezvous ports bind."""

    name: str
    adapters: tuple[str, ...]
    address: str


@dataclass(frozen=True, slots=True)
class EngineFound:
    """One engine program of a node. `fault` empty means that it ran and told its version."""

    path: str
    version: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node has, as its agent found it."""

    node: str
    hostname: str
    address: str
    port_low: int
    port_high: int                         # inclusive
    gpus: tuple[Gpu, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    fabrics: tuple[Fabric, ...] = ()
    engines: Mapping[str, EngineFound] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)     # path -> "" when complete, else what is wrong with it
    conditions: tuple[str, ...] = ()       # sentences for `llmgw-ctl nodes`: "nvidia-smi not found at /usr/bin/nvidia-smi"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if not gpu.fault)

    def fabric(self, name: str) -> Fabric | None:
        return next((fabric for fabric in self.fabrics if fabric.name == name), None)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one shard of an epoch was put, committed before anybody was told."""

    rank: int
    node: str
    gpus: tuple[str, ...] = ()             # UUIDs
    adapters: tuple[str, ...] = ()
    address: str = ""                      # where rank 0's guard listens
    port: int = 0
    rendezvous: str = ""                   # "address:port" of rank 0 on the fabric; empty for one shard


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as committed: what must be, not what was seen."""

    id: str
    profile: str
    model: str
    shard_count: int                       # how many shards there must be (from the profile), not how many are seen
    state: ReplicaState
    reason: str = ""
    epoch: Epoch | None = None             # None while never placed
    shards: tuple[Placed, ...] = ()        # by rank; empty while pending, in backoff, failed or stopped
    created_rev: int = 0                   # the rev that committed this epoch's placement
    ready_rev: int = 0                     # the rev that put it into the router table
    cut_rev: int = 0                       # the rev that took it out of the router table (draining)
    attempts: tuple[float, ...] = ()       # wall-clock seconds of recent failures, oldest first
    retry_at: float = 0.0                  # wall clock; backoff ends then
    was_ready: bool = False                # whether this epoch has ever been ready
    blamed: Mapping[str, float] = field(default_factory=dict)    # node -> wall clock of the last failure blamed on it
    generation: str = ""                   # digest of the profile and model it was made from

    @property
    def endpoint(self) -> str:
        """ADDRESS:PORT of rank 0's guard, or empty while not placed."""
        return host_port(self.shards[0].address, self.shards[0].port) if self.shards else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(shard.node for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of an ended epoch on one node: nobody gets them until that node has said that the shard is gone.

    Its ports stay held for a while after that (`gone`), so that a late connection cannot meet another engine there.
    """

    replica: str
    epoch: Epoch
    rank: int
    node: str
    gpus: tuple[str, ...]
    ports: tuple[int, ...]
    since_rev: int
    drain_s: float = 0.0                   # how long its streams may still take; 0 where the group has failed anyway
    gone: bool = False

    @property
    def key(self) -> ShardKey:
        return self.replica, self.epoch.counter, self.rank


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node as committed: that it belongs to the cluster, and what it last said of itself."""

    id: str
    node_uid: str = ""
    inventory: Inventory | None = None
    cordoned: bool = False
