"""Which nodes, GPUs, adapters and ports a replica gets, or why it gets none, node by node.

Room: rules. No clock, socket, file, database or log here: every fact arrives as an argument.
A replica never spans two fabrics, and a fabric is what the operator named, never what a subnet prefix suggests. Same input,
same placement. Live and ended epochs count alike: what an ended one holds is not free.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lib.base.address import host_port
from lib.model.catalog import Spec
from lib.model.committed import Committed, ports_of
from lib.model.fleet import Fabric, Gpu, Inventory, NodeState, Placed
from lib.rules.leases import why_not_ready

PORT_REST_S = 60.0                         # how long a port rests after its engine is gone
MOST_REASONS = 6                           # so many different refusals are told in one line
ELSEWHERE_S = 600.0                        # how long a node that failed a replica sorts last for it


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node as placement sees it."""

    inventory: Inventory
    state: NodeState
    cordoned: bool = False
    gpus_taken: frozenset[str] = frozenset()
    ports_taken: frozenset[int] = frozenset()
    shards: int = 0                        # how many live shards lie there
    siblings: int = 0                      # how many of them are of the same profile
    blamed: float = 0.0                    # how lately it failed this replica: 1 just now, 0 not for ELSEWHERE_S

    @property
    def free_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.inventory.usable_gpus if gpu.uuid not in self.gpus_taken)

    @property
    def untouched(self) -> bool:
        return len(self.free_gpus) == len(self.inventory.gpus)

    def free_ports(self, count: int, start: int) -> tuple[int, ...]:
        """Up to `count` free ports, looked for from `start` on and round, so that a port comes back as late as it can."""
        low, size = self.inventory.port_low, self.inventory.port_high - self.inventory.port_low + 1
        found: list[int] = []
        for step in range(size):
            port = low + (start + step) % size
            if port not in self.ports_taken:
                found.append(port)
                if len(found) == count:
                    break
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why a replica cannot be placed: what it needs, and for each node the first rule that turned it away."""

    needs: str
    nodes: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = 1000) -> str:
        """In words, with at most so many nodes named for each rule; the rarest first, since few nodes get as far as that."""
        groups: dict[str, list[str]] = {}
        for node, why in sorted(self.nodes.items()):
            groups.setdefault(why, []).append(node)
        rarest = sorted(groups, key=lambda why: (len(groups[why]), groups[why]))
        told = [f"{_some(groups[why], most)}: {why}" for why in rarest]
        more = [f"and {len(told) - MOST_REASONS} more reasons"] if len(told) > MOST_REASONS else []
        return f"needs {self.needs}: " + ("; ".join(told[:MOST_REASONS] + more) or "there is no node")


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def place(spec: Spec, candidates: Mapping[str, Candidate], turn: int = 0) -> tuple[Placed, ...] | Refusals:
    """The shards of a new epoch, by rank, all or none. `turn` moves the search for ports; use the epoch's counter."""
    refused = {name: why for name, candidate in candidates.items() if (why := refusal(spec, candidate))}
    fit = {name: candidate for name, candidate in candidates.items() if name not in refused}
    if spec.profile.shards == 1:
        whole = _untouched(candidates.values())
        order = sorted(fit, key=lambda name: _single_rank(spec, fit[name], whole, name))
        return _shards(spec, "", [fit[order[0]]], turn) if order else Refusals(needs(spec), refused)
    chosen = _group(spec, fit)
    if chosen is None:
        short = {name: _too_few(spec, candidate, fit.values()) for name, candidate in fit.items()}
        return Refusals(needs(spec), {**refused, **short})
    fabric, nodes = chosen
    return _shards(spec, fabric, nodes, turn)


def _too_few(spec: Spec, candidate: Candidate, fit: Collection[Candidate]) -> str:
    """Why a node that would do by itself does not: the company on its fabrics."""
    counts = {fabric.name: sum(other.inventory.fabric(fabric.name) is not None for other in fit)
              for fabric in candidate.inventory.fabrics if spec.profile.fabric in ("", fabric.name)}
    return "; ".join(f"{fabric} has only {count} such node{'' if count == 1 else 's'}"
                     for fabric, count in sorted(counts.items()))


def needs(spec: Spec) -> str:
    """What a replica asks of the cluster, in words."""
    profile = spec.profile
    gpus = f" and {profile.gpus} free GPUs" if profile.gpus else ""
    gpus = gpus.replace("1 free GPUs", "1 free GPU") if profile.gpus == 1 else gpus
    if profile.shards == 1:
        place = f" on fabric {profile.fabric}" if profile.fabric else ""
        return f"1 node{place} with {profile.engine}{gpus}"
    where = f"fabric {profile.fabric}" if profile.fabric else "one fabric"
    return f"{profile.shards} nodes on {where} with {profile.engine}{gpus}{' each' if gpus else ''}"


def refusal(spec: Spec, candidate: Candidate) -> str:
    """The first rule that turns this node away for one shard of `spec`; empty where none does."""
    profile, inventory = spec.profile, candidate.inventory
    for why in (why_not_ready(candidate.state), "cordoned" if candidate.cordoned else "",
                _labels(profile.node_labels, inventory.labels), _fabric(spec, inventory), _engine(profile.engine, inventory),
                _source(spec.model.source, inventory), _gpus(profile.gpus, candidate), _ports(spec, candidate)):
        if why:
            return why
    return ""


def _labels(wanted: Mapping[str, str], have: Mapping[str, str]) -> str:
    wrong = [f"{key}={value}" for key, value in wanted.items() if have.get(key) != value]
    return f"is not labelled {', '.join(wrong)}" if wrong else ""


def _fabric(spec: Spec, inventory: Inventory) -> str:
    wanted = spec.profile.fabric
    if spec.profile.shards > 1 and not inventory.fabrics:
        return "is on no fabric"
    if wanted and inventory.fabric(wanted) is None:
        return f"is not on fabric {wanted}"
    usable = (_linked(inventory, fabric) for fabric in inventory.fabrics if wanted in ("", fabric.name))
    if spec.profile.shards > 1 and not any(usable):
        return "no adapter of its fabric is ACTIVE"
    return ""


def _linked(inventory: Inventory, fabric: Fabric) -> bool:
    return any(adapter.name in fabric.adapters and adapter.state == "ACTIVE" for adapter in inventory.adapters)


def _engine(name: str, inventory: Inventory) -> str:
    found = inventory.engines.get(name)
    if found is None:
        return f"has no {name}"
    return f"{name} does not run: {found.fault}" if found.fault else ""


def _source(path: str, inventory: Inventory) -> str:
    if not path:
        return ""
    fault = inventory.sources.get(path, f"has not looked for {path} yet")
    return f"{path}: {fault}" if fault and path not in fault else fault


def _gpus(wanted: int, candidate: Candidate) -> str:
    free = len(candidate.free_gpus)
    if free >= wanted:
        return ""
    broken = len(candidate.inventory.gpus) - len(candidate.inventory.usable_gpus)
    return (f"{free} of {len(candidate.inventory.gpus)} GPUs free, needs {wanted}"
            + (f" ({broken} out of order)" if broken else ""))


def _ports(spec: Spec, candidate: Candidate) -> str:
    wanted = _port_count(spec)
    free = candidate.free_ports(wanted, 0)
    inventory = candidate.inventory
    if len(free) >= wanted:
        return ""
    return (f"{len(free)} free ports in {inventory.port_low}-{inventory.port_high}, needs {wanted} "
            f"(a used one rests for {PORT_REST_S:g} s)")


def _port_count(spec: Spec) -> int:
    return 1 if spec.profile.shards == 1 else 2


def _quality(spec: Spec, candidate: Candidate) -> tuple[float, int, int, int]:
    """Less is better: blamed never or longest ago, away from siblings where it should spread, the tightest fit, few shards."""
    return (candidate.blamed, candidate.siblings if spec.profile.spread else 0,
            len(candidate.free_gpus) if spec.profile.gpus else 0, candidate.shards)


def _single_rank(spec: Spec, candidate: Candidate, whole: Mapping[str, int], name: str) -> tuple[object, ...]:
    """Nodes without a fabric first, then those of the fabric that has the fewest untouched nodes left to lose."""
    harm = max((whole.get(fabric.name, 0) for fabric in candidate.inventory.fabrics), default=-1)
    blamed, siblings, *fit = _quality(spec, candidate)
    return (blamed, siblings, harm, *fit, name)


def _untouched(candidates: Iterable[Candidate]) -> Mapping[str, int]:
    return Counter(fabric.name for one in candidates if one.untouched for fabric in one.inventory.fabrics)


def _group(spec: Spec, fit: Mapping[str, Candidate]) -> tuple[str, list[Candidate]] | None:
    """The fabric and the nodes that suit best: the best nodes of each fabric are compared as a group."""
    groups: list[tuple[tuple[float, ...], str, list[Candidate]]] = []
    for fabric in _fabrics_of(fit.values()):
        if spec.profile.fabric in ("", fabric):
            on_it = [name for name, one in fit.items()
                     if (found := one.inventory.fabric(fabric)) and _linked(one.inventory, found)]
            best = sorted(on_it, key=lambda name: (*_quality(spec, fit[name]), name))[:spec.profile.shards]
            if len(best) == spec.profile.shards:
                cost = tuple(map(sum, zip(*(_quality(spec, fit[name]) for name in best), strict=True)))
                groups.append(((*cost[:2], len(on_it), *cost[2:]), fabric, [fit[name] for name in best]))
    if not groups:
        return None
    _, fabric, nodes = min(groups, key=lambda group: group[:2])
    return fabric, nodes


def _fabrics_of(candidates: Iterable[Candidate]) -> list[str]:
    return sorted({fabric.name for candidate in candidates for fabric in candidate.inventory.fabrics})


def _shards(spec: Spec, fabric_name: str, nodes: Sequence[Candidate], turn: int) -> tuple[Placed, ...]:
    shards = []
    rendezvous = ""
    for rank, candidate in enumerate(nodes):
        inventory, fabric = candidate.inventory, candidate.inventory.fabric(fabric_name)
        port, *spare = candidate.free_ports(_port_count(spec), turn * 2)
        if rank == 0 and fabric is not None:
            rendezvous = host_port(fabric.address, spare[0])
        shards.append(Placed(rank, inventory.node, tuple(gpu.uuid for gpu in candidate.free_gpus[:spec.profile.gpus]),
                             fabric.adapters if fabric else (), inventory.address, port, rendezvous))
    return tuple(shards)


def candidates_of(committed: Committed, inventories: Mapping[str, Inventory], states: Mapping[str, NodeState], profile: str, *,
                  blamed: Mapping[str, float], wall: float, but: str = "") -> dict[str, Candidate]:
    """Every known node as a candidate for a replica of `profile`; `but` names a replica to be thought away."""
    taken = _Taken(committed, but)
    return {
        name: Candidate(
            inventories[name], states[name], committed.nodes[name].cordoned, frozenset(taken.gpus.get(name, ())),
            frozenset(taken.ports.get(name, ())), taken.shards.get(name, 0), taken.profiles.get((name, profile), 0),
            max(0.0, 1 - abs(wall - blamed[name]) / ELSEWHERE_S) if name in blamed else 0.0)
        for name in committed.nodes if name in inventories}


class _Taken:
    """What is booked on each node, in one pass over the replicas."""

    def __init__(self, committed: Committed, but: str) -> None:
        self.gpus: dict[str, set[str]] = {}
        self.ports: dict[str, set[int]] = {}
        self.shards: dict[str, int] = {}
        self.profiles: dict[tuple[str, str], int] = {}
        for row in committed.replicas.values():
            for shard in row.shards if row.id != but else ():
                self._book(shard.node, shard.gpus, ports_of(shard))
                self.shards[shard.node] = self.shards.get(shard.node, 0) + 1
                self.profiles[shard.node, row.profile] = self.profiles.get((shard.node, row.profile), 0) + 1
        for held in committed.held.values():
            self._book(held.node, held.gpus, held.ports)

    def _book(self, node: str, gpus: Iterable[str], ports: Iterable[int]) -> None:
        self.gpus.setdefault(node, set()).update(gpus)
        self.ports.setdefault(node, set()).update(ports)
