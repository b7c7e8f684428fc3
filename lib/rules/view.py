"""What decisions rest on: what is committed, what is wanted, and what has been observed since this control plane started.

Room: rules. No clock, socket, file, database or log here. Values only; `observe` makes the next `Observed` from the last.

The shell around the rules is:
    observed = observe.hello | sync | router_report(observed, committed, …, now)      on each message, under a lock
    observed = observe.tick(observed, committed, now)                                 once a second, at least
    for change in reconcile.decide(View(committed, catalog, observed), now): commit it, in this order
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from lib.model.catalog import Catalog, Spec
from lib.model.committed import Committed
from lib.model.fleet import Held, Inventory, Replica, ReplicaState, ShardKey
from lib.model.wire import ShardReport

Timer = tuple[str, ...]


def state_timer(row: Replica, state: ReplicaState) -> Timer:
    """Runs while the present epoch of a replica is in `state`."""
    return "state", row.id, str(row.epoch.counter if row.epoch else 0), state.value


def retry_timer(row: Replica) -> Timer:
    """Is at 0 when the backoff of a replica is over."""
    return "retry", row.id, str(row.retry_at)


def gone_timer(held: Held) -> Timer:
    """Runs once the node has said that the shard is gone."""
    return "gone", held.replica, str(held.epoch.counter), str(held.rank)


@dataclass(frozen=True, slots=True)
class Now:
    """The moment of a decision. `chance` is 128 fresh random bits each time, so that the same Now gives the same answer."""

    mono: float                            # monotonic seconds, for every duration
    wall: float                            # seconds since 1970, for display and what must survive a restart
    chance: int = 0

    def dice(self, *about: object) -> int:
        """64 random bits for one purpose."""
        text = "|".join(str(part) for part in (self.chance, *about))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def nonce(self, *about: object) -> str:
        """A fresh epoch nonce: 16 hex digits."""
        return f"{self.dice('nonce', *about):016x}"

    def fraction(self, *about: object) -> float:
        """A number in [0, 1)."""
        return self.dice("fraction", *about) / 2.0**64


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """What an agent has told this control plane. `heard` None: it said hello, and has not reported yet."""

    node: str
    node_uid: str = ""
    boot_id: str = ""
    session: str = ""
    agent_run: str = ""
    version: str = ""
    seq: int = -1
    applied_rev: int = -1
    heard: float | None = None             # on the own clock (`Observed.clock`), of the last sync
    inventory: Inventory | None = None
    inventory_seq: int = -1                # of the sync that brought it
    lasting: Inventory | None = None       # `inventory` without what changes all the time
    shards: Mapping[ShardKey, ShardReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterSeen:
    """What a router has told this control plane."""

    router: str
    applied_rev: int
    applied_cp_epoch: int
    heard: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything seen since this control plane started; nothing of it survives a restart.

    `clock` is the own clock: monotonic seconds less those in which this process was not running, so that a pause of ours is
    never taken for the silence of others. All times in here are on it.
    """

    clock: float = 0.0
    started: float = 0.0
    stalled_s: float = 0.0
    adopted: bool = False                  # the adoption window is over
    rewound: str = ""                      # why the state file is taken to be older than what agents have seen; a sentence
    nodes: Mapping[str, NodeSeen] = field(default_factory=dict)
    routers: Mapping[str, RouterSeen] = field(default_factory=dict)
    evidence: Mapping[tuple[str, int], float] = field(default_factory=dict)     # (replica, counter) -> last good answer
    since: Mapping[Timer, float] = field(default_factory=dict)                  # see `observe.tick`

    def elapsed_s(self, timer: Timer) -> float:
        """Seconds since a condition was first seen, 0 where it was not; negative while a backoff lasts."""
        return self.clock - self.since.get(timer, self.clock)


@dataclass(frozen=True, slots=True)
class View:
    """One look at everything."""

    committed: Committed
    catalog: Catalog
    observed: Observed

    def spec(self, replica: Replica) -> Spec | None:
        """What this replica is made from: as the catalog has it now where that is the same thing, else as it was placed."""
        if replica.profile in self.catalog.profiles and self.catalog.generation(replica.profile) == replica.generation:
            return self.catalog.spec(replica.profile)
        return self.committed.specs.get(replica.id)
