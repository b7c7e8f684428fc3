"""What is known of each shard of a placed replica, and what that makes of the replica.

Room: rules. Completeness is always judged against `shard_count`, never against the number of shards that were seen.
"""

from dataclasses import dataclass
from enum import StrEnum

from lib.model.cause import exit_words
from lib.model.fleet import FaultClass, Placed, Replica, ReplicaState, ShardState
from lib.model.wire import ShardReport
from lib.rules import leases
from lib.rules.lifecycle import PLACED
from lib.rules.view import NodeSeen, View, state_timer


class Word(StrEnum):
    """What is known of one shard."""

    READY, DEGRADED, STARTING, FAILED = "ready", "degraded", "starting", "failed"      # its agent says so
    GONE = "gone"                          # its agent knows of its placement and does not have it
    UNTOLD = "untold"                      # its agent has not applied the placement yet
    SILENT = "silent"                      # its node has not reported to this control plane
    LOST = "lost"                          # its node is lost, and nobody else vouches for it


REPORTED = {ShardState.READY: Word.READY, ShardState.STARTING: Word.STARTING, ShardState.FAILED: Word.FAILED}


@dataclass(frozen=True, slots=True)
class ShardFact:
    """One rank of the present epoch: where it was put, and what is known of it."""

    placed: Placed
    word: Word
    report: ShardReport | None = None

    @property
    def rank(self) -> int:
        return self.placed.rank

    def __str__(self) -> str:
        detail = f": {self.report.detail}" if self.report and self.report.detail else ""
        return f"rank {self.rank} on {self.placed.node} {self.word}{detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a group must end. `blamed` are the nodes that it should avoid for a while."""

    reason: str
    fault: FaultClass = FaultClass.TRANSIENT
    blamed: tuple[str, ...] = ()


def shard_facts(view: View, replica: Replica) -> tuple[ShardFact, ...]:
    """What is known of every rank of the present epoch, by rank."""
    return tuple(_fact(view, replica, placed) for placed in replica.shards)


def _fact(view: View, replica: Replica, placed: Placed) -> ShardFact:
    assert replica.epoch is not None
    node = view.observed.nodes.get(placed.node)
    report = node.shards.get((replica.id, replica.epoch.counter, placed.rank)) if node else None
    if report is not None and report.epoch != replica.epoch:
        report = None
    if report is not None and report.state is ShardState.FAILED:
        return ShardFact(placed, Word.FAILED, report)
    if leases.given_up(view, placed.node, replica.id, replica.epoch.counter):
        return ShardFact(placed, Word.LOST, report)
    if node is None or node.heard is None:
        return ShardFact(placed, Word.SILENT)
    if report is None:
        return ShardFact(placed, _absence(node, replica))
    return ShardFact(placed, REPORTED.get(report.state, Word.DEGRADED), report)


def _absence(node: NodeSeen, replica: Replica) -> Word:
    return Word.GONE if node.applied_rev >= replica.created_rev else Word.UNTOLD


def whole(replica: Replica, facts: tuple[ShardFact, ...]) -> bool:
    """Whether every rank 0 … shard_count-1 was reported ready to this control plane."""
    return [fact.rank for fact in facts if fact.word is Word.READY] == list(range(replica.shard_count))


def shortage(replica: Replica, facts: tuple[ShardFact, ...]) -> str:
    """ "1 of 2 shards, missing rank 0": empty when none is failed, gone or lost."""
    there = {fact.rank for fact in facts if fact.word not in (Word.FAILED, Word.GONE, Word.LOST)}
    missing = [str(rank) for rank in range(replica.shard_count) if rank not in there]
    if not missing:
        return ""
    return (f"{replica.shard_count - len(missing)} of {replica.shard_count} shards, "
            f"missing rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}")


def verdict(view: View, replica: Replica, facts: tuple[ShardFact, ...]) -> Verdict | None:
    """Why this placed replica must end as a whole, if it must.

    A failed shard counts at once. A shard that is merely not there counts once the adoption window is over: a node that is
    coming back may still be looking around.
    """
    if failed := [fact for fact in facts if fact.word is Word.FAILED]:
        return _failed(failed[0])
    if view.observed.adopted and (short := shortage(replica, facts)):
        lost = sorted({fact.placed.node for fact in facts if fact.word is Word.LOST})
        return Verdict(short + (f" (not heard from {', '.join(lost)} for {leases.LOST_S:g} s)" if lost else ""))
    return _overdue(view, replica, facts)


def _failed(fact: ShardFact) -> Verdict:
    assert fact.report is not None
    fault = FaultClass.TRANSIENT if fact.report.fault is FaultClass.UNKNOWN else fact.report.fault
    how = fact.report.detail or exit_words(fact.report.exit_code)
    return Verdict(f"rank {fact.rank} on {fact.placed.node} failed: {how}", fault, (fact.placed.node,))


def _overdue(view: View, replica: Replica, facts: tuple[ShardFact, ...]) -> Verdict | None:
    spec = view.spec(replica)
    if replica.state is not ReplicaState.STARTING or spec is None or not view.observed.adopted:
        return None
    ages = [fact.report.age_s for fact in facts if fact.report]
    if max([starting_for(view, replica), *ages]) < spec.profile.start_timeout:
        return None
    late = [fact for fact in facts if fact.word is not Word.READY]
    if not late:                           # it became ready while nobody looked
        return None
    return Verdict(f"not ready within {spec.profile.start_timeout:g} s: {'; '.join(map(str, late))}",
                   blamed=tuple(fact.placed.node for fact in late))


def starting_for(view: View, replica: Replica) -> float:
    """How long this control plane has seen the replica in its present state."""
    return view.observed.elapsed_s(state_timer(replica, replica.state))


def adopting(view: View, replica: Replica) -> bool:
    """Whether a replica committed as serving has yet to be seen whole by this control plane: then it shows as `starting`."""
    if replica.state not in (ReplicaState.READY, ReplicaState.DEGRADED):
        return False
    return any(fact.word in (Word.SILENT, Word.LOST, Word.UNTOLD) or
               (fact.word is Word.GONE and not view.observed.adopted) for fact in shard_facts(view, replica))


def public_state(view: View, replica: Replica) -> tuple[ReplicaState, str]:
    """The state and the reason that people are shown. Never `ready` but where every rank was reported so, whatever is committed:
    what follows from a failed shard may have to wait, for a disk that is full or an operator who must decide.
    """
    if adopting(view, replica):
        return ReplicaState.STARTING, "adopting"
    if replica.state not in (ReplicaState.STARTING, ReplicaState.READY):
        return replica.state, replica.reason
    facts = shard_facts(view, replica)
    unwell = "; ".join(str(fact) for fact in facts if fact.word is not Word.READY)
    if replica.state is ReplicaState.READY and unwell:
        return ReplicaState.DEGRADED, unwell
    return replica.state, unwell or replica.reason


def whereabouts(view: View, replica: Replica) -> str:
    """What still holds on to an ended replica, for people: "waiting for llmgw-node02 to report rank 1 gone"."""
    waiting = [f"{held.node} to report rank {held.rank} gone" for held in view.committed.held_of(replica.id)
               if not held.gone and _is_of(held.epoch.counter, replica)]
    return f"waiting for {', '.join(waiting)}" if waiting else ""


def _is_of(counter: int, replica: Replica) -> bool:
    return replica.state not in PLACED and replica.epoch is not None and counter <= replica.epoch.counter
