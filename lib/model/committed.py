"""What the control plane has committed, as one immutable value, and the one way from such a value to the next.

Room: model. `rules` decides changes, `store` makes them durable, and both ask `apply` what the state is afterwards; what
must never be true (a GPU or a port booked twice, a group placed in part) is refused here, always.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lib.base.errors import Blocked, LlmgwError
from lib.model.catalog import Spec
from lib.model.certificate import Certificate
from lib.model.fleet import Held, KnownNode, Placed, Replica, ShardKey
from lib.model.wire import KeyEntry, KeyLimits

STAMP = -1                                 # in a rev field of a change: the rev of the transaction that commits it


class Impossible(LlmgwError):
    """A change would have broken an invariant: a fault of ours, and better a stopped decision than a GPU booked twice."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as stored: never the key itself."""

    id: str
    name: str
    sha256: str                            # of the whole key text, hex
    limits: KeyLimits = field(default_factory=KeyLimits)

    @property
    def entry(self) -> KeyEntry:
        return KeyEntry(self.id, self.sha256, self.limits)


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything decisions rest on that survives the control plane. `rev` counts transactions, `counter` epochs."""

    cluster: str = ""
    lineage: str = ""
    cp_epoch: int = 0
    counter: int = 0
    rev: int = 0
    nodes: Mapping[str, KnownNode] = field(default_factory=dict)
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    specs: Mapping[str, Spec] = field(default_factory=dict)      # by replica: what its present epoch was made from
    held: Mapping[ShardKey, Held] = field(default_factory=dict)
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    certificates: Mapping[str, Certificate] = field(default_factory=dict)     # by serial: all that are known
    revoked: tuple[str, ...] = ()          # serials, lower-case hex
    removed: frozenset[str] = frozenset()  # ids of nodes that were taken out of the cluster
    catalog: str = ""                      # the last good text
    catalog_file: str = ""                 # digest of what the file held when that text was committed

    def held_of(self, replica: str) -> tuple[Held, ...]:
        """What ended epochs of this replica still occupy, on nodes that can ever tell."""
        return tuple(held for held in self.held.values() if held.replica == replica and held.node not in self.removed)


@dataclass(frozen=True, slots=True)
class Change:
    """One decision: all of it is committed in one transaction, or none."""

    target: str                            # the replica or node it is about
    event: str = ""                        # the sentence for `llmgw-ctl events`; empty: not worth one
    before: Replica | None = None          # the row it was decided from (None: there was none)
    replica: Replica | None = None         # the row as it shall be; None: untouched
    spec: Spec | None = None               # with a placement: what it is made from
    node: KnownNode | None = None
    hold: tuple[Held, ...] = ()            # added, or replaced where the key exists
    release: tuple[ShardKey, ...] = ()
    remove: bool = False                   # the replica's row goes
    forget: bool = False                   # the node's row goes

    def __str__(self) -> str:
        return f"{self.target}: {self.event}" if self.event else f"{self.target}: noted"


def stamped(change: Change, rev: int) -> Change:
    """The change with the rev of its transaction in place of every STAMP."""
    hold = tuple(replace(held, since_rev=rev) if held.since_rev == STAMP else held for held in change.hold)
    row = change.replica
    if row is None:
        return replace(change, hold=hold)
    created, ready, cut = (rev if value == STAMP else value for value in (row.created_rev, row.ready_rev, row.cut_rev))
    return replace(change, hold=hold, replica=replace(row, created_rev=created, ready_rev=ready, cut_rev=cut))


def apply(state: Committed, change: Change) -> Committed:
    """The state after `change` as the next transaction. Blocked where its ground is gone, Impossible where it breaks a rule."""
    done = stamped(change, state.rev + 1)
    if done.replica is not None or done.remove:
        _check_ground(state, done)
    replicas, specs, held, nodes = dict(state.replicas), dict(state.specs), dict(state.held), dict(state.nodes)
    if done.remove:
        replicas.pop(done.target, None)
        specs.pop(done.target, None)
    elif done.replica is not None:
        replicas[done.replica.id] = done.replica
        if done.spec is not None:
            specs[done.replica.id] = done.spec
    for item in done.hold:
        held[item.key] = item
    for key in done.release:
        held.pop(key, None)
    if done.node is not None:
        nodes[done.node.id] = done.node
    if done.forget:
        nodes.pop(done.target, None)
    counter = max(state.counter, done.replica.epoch.counter if done.replica and done.replica.epoch else 0)
    after = replace(state, rev=state.rev + 1, counter=counter, replicas=replicas, specs=specs, held=held, nodes=nodes)
    if done.replica is not None and done.replica.shards:
        check_booking(after, done.replica)
    return after


def _check_ground(state: Committed, change: Change) -> None:
    if state.replicas.get(change.target) != change.before:
        raise Blocked(f"{change.target} has changed since that was decided", hint="it is decided again at once")
    epoch = change.replica.epoch if change.replica else None
    if epoch and epoch != (change.before.epoch if change.before else None) and epoch.counter <= state.counter:
        raise Blocked(f"epoch {epoch} of {change.target} is not above {state.counter}", hint="it is decided again at once")


def booked(state: Committed, nodes: Iterable[str], *, but: str = "") -> tuple[set[tuple[str, str]], set[tuple[str, int]]]:
    """(node, GPU) and (node, port) taken on these nodes by live and ended epochs, replica `but` left out of the live ones."""
    wanted = set(nodes)
    gpus = {(shard.node, gpu) for row in state.replicas.values() if row.id != but
            for shard in row.shards if shard.node in wanted for gpu in shard.gpus}
    ports = {(shard.node, port) for row in state.replicas.values() if row.id != but
             for shard in row.shards if shard.node in wanted for port in ports_of(shard)}
    for item in state.held.values():
        if item.node in wanted:
            gpus.update((item.node, gpu) for gpu in item.gpus)
            ports.update((item.node, port) for port in item.ports)
    return gpus, ports


def ports_of(shard: Placed) -> tuple[int, ...]:
    """Every port of its node that a shard takes: its own, and the rendezvous where it is rank 0."""
    if shard.rank == 0 and shard.rendezvous:
        return shard.port, int(shard.rendezvous.rpartition(":")[2])
    return (shard.port,)


def check_booking(state: Committed, row: Replica) -> None:
    """Impossible unless this placed replica is whole, on nodes of its own each, and shares nothing with anybody."""
    if [shard.rank for shard in row.shards] != list(range(row.shard_count)):
        raise Impossible(f"{row.id} placed with ranks {[shard.rank for shard in row.shards]} of {row.shard_count}")
    if len(set(row.nodes)) != len(row.nodes):
        raise Impossible(f"{row.id} placed twice on one of {', '.join(row.nodes)}")
    gpus, ports = booked(state, row.nodes, but=row.id)
    for shard in row.shards:
        if clash := [gpu for gpu in shard.gpus if (shard.node, gpu) in gpus]:
            raise Impossible(f"{row.id} rank {shard.rank}: {', '.join(clash)} on {shard.node} already booked")
        if taken := [port for port in ports_of(shard) if (shard.node, port) in ports]:
            raise Impossible(f"{row.id} rank {shard.rank}: port {taken[0]} on {shard.node} already booked")
