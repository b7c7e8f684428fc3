"""Why a replica is as it is, in the operator's words.

Room: rules.
"""

from dataclasses import dataclass

from lib.model.fleet import Replica
from lib.model.fleet import ReplicaState as State
from lib.rules import desired, leases, observe
from lib.rules.facts import public_state, shard_facts, whereabouts
from lib.rules.placement import Refusals
from lib.rules.view import View

IN_A_ROW = 4                               # so many nodes are named where there is one line for it


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard as listed: the words of `llmgw-ctl replica`."""

    rank: int
    node: str
    state: str
    pid: int
    port: int
    detail: str


def status(view: View, row: Replica, wall: float) -> tuple[State, str]:
    """State and reason for one line of a listing."""
    state, reason = public_state(view, row)
    if row.state is State.PENDING:
        return state, _why_pending(view, row, wall)
    if row.state is State.STOPPING:
        return state, "; ".join(filter(None, (reason, whereabouts(view, row))))
    return state, reason


def refusals(view: View, row: Replica, wall: float) -> Refusals | None:
    """Node by node, why a pending replica is not placed; None where it is not pending, or has a place."""
    if row.state is not State.PENDING or row.profile not in view.catalog.profiles:
        return None
    found = desired.where(view, row, wall)
    return found if isinstance(found, Refusals) else None


def _why_pending(view: View, row: Replica, wall: float) -> str:
    if view.observed.rewound:
        return "nothing is placed: the state file is older than what the agents have obeyed"
    if not view.observed.adopted:
        return f"nothing is placed before every node has reported, or {observe.WINDOW_S:g} s have passed"
    why = refusals(view, row, wall)
    return why.text(IN_A_ROW) if why else row.reason


def shard_lines(view: View, row: Replica) -> tuple[ShardLine, ...]:
    """Every shard of the present epoch, by rank; of an ended one, what its nodes have not yet reported gone."""
    lines = [ShardLine(fact.rank, fact.placed.node, fact.word.value, fact.report.pid if fact.report else 0, fact.placed.port,
                       fact.report.detail if fact.report else "") for fact in shard_facts(view, row)]
    lines += [ShardLine(held.rank, held.node, "ended", 0, held.ports[0] if held.ports else 0, f"epoch {held.epoch}")
              for held in view.committed.held_of(row.id) if not held.gone]
    return tuple(lines)


def alarms(view: View) -> tuple[str, ...]:
    """What an operator should do something about."""
    found = []
    if view.observed.rewound:
        found.append(f"the state file is gone or older than what the agents have obeyed: {view.observed.rewound}; nothing is "
                     "started or stopped until its newest copy is put back")
    if brake := leases.brake(view.observed, view.committed):
        found.append(brake)
    return tuple(found)
