"""How many replicas of each profile there should be, and how they are exchanged when the profile changes.

Room: rules. A replica that serves is exchanged one at a time, the new one first. Only where there is no room for that, and
there would be without it, an old one goes first.
"""

from lib.model.committed import Change
from lib.model.fleet import Placed, Replica
from lib.model.fleet import ReplicaState as State
from lib.rules import leases, lifecycle, routing
from lib.rules.changes import Step, leave, renew
from lib.rules.placement import Refusals, candidates_of, place
from lib.rules.view import View

GOES_FIRST = (State.FAILED, State.BACKOFF, State.PENDING, State.STARTING, State.DEGRADED, State.READY)
ON_THEIR_WAY = (State.STARTING, State.BACKOFF, State.DRAINING, State.STOPPING)      # or room for one is


def size(step: Step) -> None:
    """Create, remove and exchange replicas until the numbers are those of the catalog."""
    for profile in sorted(step.view.catalog.profiles):
        _size_one(step, profile)
    for row in list(step.view.committed.replicas.values()):
        if row.profile not in step.view.catalog.profiles and row.state not in lifecycle.LEAVING and not _renamed(step, row):
            leave(step, row, f"profile {row.profile} is no longer in the catalog")


def _size_one(step: Step, profile: str) -> None:
    generation, want = step.view.catalog.generation(profile), step.view.catalog.profiles[profile].replicas
    for row in _rows(step, profile):
        if row.generation != generation and row.state not in lifecycle.ROUTED:
            renew(step, row, generation, "its profile changed")
    rows = _rows(step, profile)
    old = [row for row in rows if row.generation != generation]
    new = [row for row in rows if row.generation == generation]
    if old:
        _exchange(step, old, new, want)
    else:
        for _ in range(want - len(new)):
            _create(step, profile, generation)
        for row in _by_worth(new)[:max(0, len(new) - want)]:
            leave(step, row, f"{want} wanted, {len(new)} there")


def _exchange(step: Step, old: list[Replica], new: list[Replica], want: int) -> None:
    """One step of the way from `old` to `new`; every tick takes at most one."""
    profile = old[0].profile
    settled = all(row.state in lifecycle.ROUTED and routing.routers_have(step.view.observed, row.ready_rev) for row in new)
    if len(old) + len(new) > want + 1 or (settled and len(old) + len(new) > want):
        leave(step, _by_worth(old)[0], "its profile changed")
    elif settled and len(new) < want:
        _create(step, profile, step.view.catalog.generation(profile))
    elif not _leaving(step, profile) and (first := _in_the_way(step, old, new)) and not _worth_waiting(step, first):
        leave(step, first, "its profile changed, and there is no room for both")


def _in_the_way(step: Step, old: list[Replica], new: list[Replica]) -> Replica | None:
    """The old replica whose going would make room for a new one that has none."""
    for row in new:
        if row.state is State.PENDING and isinstance(where(step.view, row, step.now.wall), Refusals):
            for other in _by_worth(old):
                if not isinstance(where(step.view, row, step.now.wall, but=other.id), Refusals):
                    return other
    return None


def _worth_waiting(step: Step, row: Replica) -> bool:
    """Whether `row` is all that serves its model while another replica of it, of another profile it may be, is on its way."""
    others = [other for other in step.view.committed.replicas.values() if other.model == row.model and other.id != row.id]
    return not any(other.state in lifecycle.ROUTED for other in others) and any(other.state in ON_THEIR_WAY for other in others)


def _renamed(step: Step, row: Replica) -> bool:
    """Whether `row`, of a profile that is gone, is all that serves a model which another profile is about to serve."""
    heirs = [other for other in step.view.committed.replicas.values()
             if other.model == row.model and other.profile in step.view.catalog.profiles]
    served = any(other.state in lifecycle.ROUTED and routing.routers_have(step.view.observed, other.ready_rev) for other in heirs)
    return row.state in lifecycle.ROUTED and not served and any(
        other.state in (State.STARTING, State.BACKOFF, *lifecycle.ROUTED)
        or (other.state is State.PENDING and not isinstance(where(step.view, other, step.now.wall), Refusals)) for other in heirs)


def where(view: View, row: Replica, wall: float, *, turn: int = 0, but: str = "") -> tuple[Placed, ...] | Refusals:
    """Where a pending replica would go now, or why nowhere. `but` names a replica to be thought away."""
    committed, observed = view.committed, view.observed
    inventories = {name: seen.inventory for name, seen in observed.nodes.items() if seen.inventory is not None}
    inventories = {**{name: known.inventory for name, known in committed.nodes.items() if known.inventory}, **inventories}
    states = {name: leases.state(observed, name) for name in committed.nodes}
    candidates = candidates_of(committed, inventories, states, row.profile, blamed=row.blamed, wall=wall, but=but)
    return place(view.catalog.spec(row.profile), candidates, turn)


def _rows(step: Step, profile: str) -> list[Replica]:
    return [row for row in step.view.committed.replicas.values() if row.profile == profile and row.state not in lifecycle.LEAVING]


def _leaving(step: Step, profile: str) -> bool:
    return any(row.profile == profile and row.state in (State.DRAINING, State.STOPPING)
               for row in step.view.committed.replicas.values())


def _by_worth(rows: list[Replica]) -> list[Replica]:
    """Those that are missed least first: what does not serve, then the newest."""
    return sorted(rows, key=lambda row: (GOES_FIRST.index(row.state), -number_of(row.id)))


def number_of(id: str) -> int:
    """The n of `<profile>-<n>`."""
    return int(id.rpartition("-")[2])


def _create(step: Step, profile: str, generation: str) -> None:
    committed, spec = step.view.committed, step.view.catalog.spec(profile)
    used = {*committed.replicas, *(held.replica for held in committed.held.values())}
    number = next(n for n in range(1, len(used) + 2) if f"{profile}-{n}" not in used)
    row = Replica(f"{profile}-{number}", profile, spec.model.name, spec.profile.shards, State.PENDING, "waits for a place",
                  generation=generation)
    step.emit(Change(row.id, f"created: {spec.profile.replicas} of {profile} wanted", replica=row))
