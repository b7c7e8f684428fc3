"""How a decision becomes a change: the rows before and after, what is held, and the sentence for people.

Room: rules. Every change of a replica's state goes through `Step.move`, which asks `lifecycle`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lib.model.catalog import Spec
from lib.model.committed import STAMP, Change, apply, ports_of
from lib.model.fleet import FaultClass, Held, Replica
from lib.model.fleet import ReplicaState as State
from lib.rules import lifecycle
from lib.rules.facts import Verdict
from lib.rules.observe import BACKOFF_MOST_S
from lib.rules.view import Now, View

BUDGET, BUDGET_S = 8, 3600.0               # so many failures in so long, and no more tries
BACKOFF_FIRST_S = 5.0


class Step:
    """One run of `decide`: the changes so far, and the view as it will be once they are committed."""

    def __init__(self, view: View, now: Now) -> None:
        self.view, self.now = view, now
        self.changes: list[Change] = []

    def emit(self, change: Change) -> None:
        """Add a change; what follows is decided on the state after it."""
        self.view = replace(self.view, committed=apply(self.view.committed, change))
        self.changes.append(change)

    def move(self, row: Replica, state: State, event: str, *, reason: str | None = None, hold: tuple[Held, ...] = (),
             spec: Spec | None = None, fields: Mapping[str, Any] | None = None) -> None:
        """Bring a replica into another state, with other `fields` too. What happened is also the reason, unless one is given."""
        lifecycle.check(row.state, state)
        after = replace(row, state=state, reason=event if reason is None else reason, **(fields or {}))
        self.emit(Change(row.id, event, before=row, replica=after, spec=spec, hold=hold))


def occupied(row: Replica, drain_s: float = 0.0) -> tuple[Held, ...]:
    """What the present epoch has, as held from now on."""
    epoch = row.epoch
    if epoch is None:
        return ()
    return tuple(Held(row.id, epoch, shard.rank, shard.node, shard.gpus, ports_of(shard), STAMP, drain_s) for shard in row.shards)


def end(step: Step, row: Replica, verdict: Verdict) -> None:
    """The whole group ends; the replica is rebuilt at once, later, or not before somebody acts."""
    wall = step.now.wall
    failures = (*recent(row, wall), wall)
    blamed = {**{node: at for node, at in row.blamed.items() if abs(wall - at) < BUDGET_S}, **dict.fromkeys(verdict.blamed, wall)}
    state, retry_at, what = _next(step, row, verdict, failures)
    step.move(row, state, f"{verdict.reason}; {what}", hold=occupied(row),
              fields={"shards": (), "attempts": failures, "retry_at": retry_at, "blamed": blamed})


def recent(row: Replica, wall: float) -> tuple[float, ...]:
    """Failures that still count. A wall clock that was set back makes none of them lie in the future."""
    return tuple(min(at, wall) for at in row.attempts if wall - at < BUDGET_S)


def _next(step: Step, row: Replica, verdict: Verdict, failures: tuple[float, ...]) -> tuple[State, float, str]:
    if verdict.fault is FaultClass.CONFIGURATION:
        return State.FAILED, 0.0, "not tried again until the profile changes"
    if len(failures) >= BUDGET:
        return State.FAILED, 0.0, f"given up after {len(failures)} failures within an hour"
    if row.was_ready and len(failures) == 1:
        return State.PENDING, 0.0, "rebuilt at once"
    longest = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** (len(failures) - 1))
    wait_s = longest * (0.5 + 0.5 * step.now.fraction("backoff", row.id, len(failures)))
    return State.BACKOFF, step.now.wall + wait_s, f"tried again in {wait_s:.0f} s (failure {len(failures)} of {BUDGET})"


def leave(step: Step, row: Replica, why: str) -> None:
    """The replica goes for good: out of the routers' table first where it is in it."""
    if row.state in lifecycle.ROUTED:
        step.move(row, State.DRAINING, why, fields={"cut_rev": STAMP})
    elif row.state not in lifecycle.LEAVING:
        step.move(row, State.STOPPING, why, hold=occupied(row), fields={"shards": (), "retry_at": 0.0})


def renew(step: Step, row: Replica, generation: str, why: str) -> None:
    """A replica that does not serve begins anew as what the catalog says now."""
    spec = step.view.catalog.spec(row.profile)
    step.move(row, State.PENDING, why, hold=occupied(row), fields={
        "shards": (), "attempts": (), "retry_at": 0.0, "blamed": {}, "generation": generation, "model": spec.model.name,
        "shard_count": spec.profile.shards})
