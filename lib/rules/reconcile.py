"""Everything the control plane decides, once a tick: what is true against what is wanted.

Room: rules. Pure: the same view and moment give the same changes, and no changes mean that all is as it should be. The
changes are to be committed one after the other, in order. One that is refused (something else was committed meanwhile) is
dropped; those that built on it are refused likewise, and the next tick decides from what is true then.
"""

from dataclasses import replace

from lib.model.committed import STAMP, Change
from lib.model.fleet import Epoch, Held, KnownNode, Placed, Replica
from lib.model.fleet import ReplicaState as State
from lib.rules import desired, lifecycle, removal, routing
from lib.rules.changes import Step, end, occupied
from lib.rules.facts import ShardFact, Word, shard_facts, verdict, whole
from lib.rules.placement import PORT_REST_S, Refusals
from lib.rules.view import NodeSeen, Now, Observed, View, gone_timer, retry_timer, state_timer

PROVEN_S = 600.0                           # ready for so long, and earlier failures are forgotten
PLACED_AT_ONCE = 20                        # the next round, at once, places the next ones
STOPPED_KEPT = 50                          # rows of stopped replicas kept for people


def decide(view: View, now: Now) -> list[Change]:
    """What to commit now. Nothing at all while the state file may be older than what the agents have obeyed."""
    if view.observed.rewound:
        return []
    step = Step(view, now)
    removal.settle(step)
    _note_nodes(step)
    for id in sorted(view.committed.replicas):
        _follow(step, step.view.committed.replicas[id])
    _settle_held(step)
    if view.observed.adopted:
        desired.size(step)
        _place_pending(step)
    _prune(step)
    return step.changes


def worth_a_look(before: Observed, after: Observed, node: str) -> bool:
    """Whether a node's report says anything that a decision could follow from; ages and log lines do not."""
    return bool(after.rewound) or _essence(before, node) != _essence(after, node)


def _essence(observed: Observed, node: str) -> object:
    seen = observed.nodes.get(node)
    if seen is None or seen.heard is None:
        return None
    return seen.applied_rev, seen.lasting, {key: (report.nonce, report.state) for key, report in seen.shards.items()}


def _note_nodes(step: Step) -> None:
    for name, seen in sorted(step.view.observed.nodes.items()):
        known = step.view.committed.nodes.get(name)
        if seen.heard is None or seen.lasting is None or name in step.view.committed.removed:
            continue
        if known is None or (known.node_uid, known.inventory) != (seen.node_uid, seen.lasting):
            news = replace(known or KnownNode(name), node_uid=seen.node_uid, inventory=seen.lasting)
            step.emit(Change(name, "" if known else _joined(seen), node=news))


def _joined(seen: NodeSeen) -> str:
    assert seen.inventory is not None
    fabrics = ", ".join(fabric.name for fabric in seen.inventory.fabrics)
    return f"joined with {len(seen.inventory.gpus)} GPUs, {f'on {fabrics}' if fabrics else 'on no fabric'}"


def _follow(step: Step, row: Replica) -> None:
    """One replica's own life, as its shards tell it."""
    if row.state is State.BACKOFF:
        observed, timer = step.view.observed, retry_timer(row)
        if observed.adopted and timer in observed.since and observed.elapsed_s(timer) >= 0:
            step.move(row, State.PENDING, "tried again", reason=row.reason, fields={"retry_at": 0.0})
    elif row.state is State.STOPPING:
        if all(held.gone for held in step.view.committed.held_of(row.id)):
            step.move(row, State.STOPPED, "stopped", reason=row.reason)
    elif row.state in lifecycle.PLACED:
        _follow_placed(step, row, shard_facts(step.view, row))


def _follow_placed(step: Step, row: Replica, facts: tuple[ShardFact, ...]) -> None:
    over = verdict(step.view, row, facts)
    if row.state is State.DRAINING:
        if over or routers_without(step, row):
            spec = step.view.spec(row)
            drain_s = spec.profile.drain_timeout if spec and not over else 0.0
            step.move(row, State.STOPPING, "out of the routers' tables, stopping", reason=row.reason, hold=occupied(row, drain_s),
                      fields={"shards": ()})
    elif over:
        end(step, row, over)
    elif row.state is State.STARTING:
        if whole(row, facts):
            step.move(row, State.READY, "ready", reason="", fields={"was_ready": True, "ready_rev": STAMP})
    else:
        _follow_serving(step, row, facts)


def _follow_serving(step: Step, row: Replica, facts: tuple[ShardFact, ...]) -> None:
    unwell = [str(fact) for fact in facts if fact.word in (Word.DEGRADED, Word.STARTING)]
    if unwell and row.state is State.READY:
        step.move(row, State.DEGRADED, "; ".join(unwell))
    elif whole(row, facts) and row.state is State.DEGRADED:
        step.move(row, State.READY, "ready again", reason="")
    elif row.attempts and step.view.observed.elapsed_s(state_timer(row, State.READY)) >= PROVEN_S:
        step.emit(Change(row.id, before=row, replica=replace(row, attempts=(), blamed={})))


def routers_without(step: Step, row: Replica) -> bool:
    """Whether every router has a table without this draining replica, or has been silent for too long to be waited for."""
    observed = step.view.observed
    waited_s = observed.elapsed_s(state_timer(row, State.DRAINING))
    return waited_s >= routing.SILENT_ROUTER_S or routing.routers_have(observed, row.cut_rev)


def _settle_held(step: Step) -> None:
    """What an ended epoch occupied becomes free: the GPUs when its node says that the shard is gone, the ports a while later."""
    for held in sorted(step.view.committed.held.values(), key=lambda item: item.key):
        if held.gone:
            if step.view.observed.elapsed_s(gone_timer(held)) >= PORT_REST_S:
                step.emit(Change(held.replica, release=(held.key,)))
        elif _reported_gone(step, held):
            step.emit(Change(held.replica, hold=(replace(held, gone=True, gpus=()),)))


def _reported_gone(step: Step, held: Held) -> bool:
    node = step.view.observed.nodes.get(held.node)
    return (node is not None and node.heard is not None and node.applied_rev >= held.since_rev
            and held.key not in node.shards)


def _place_pending(step: Step) -> None:
    """The largest first: what needs most finds room least often. A few at a time, so that no decision takes long."""
    pending = [row for row in step.view.committed.replicas.values() if row.state is State.PENDING]
    homeless: set[str] = set()             # profiles that found no place: another replica of the same finds none either
    placed = 0
    for row in sorted(pending, key=lambda row: (-row.shard_count, row.id)):
        if row.profile not in homeless and placed < PLACED_AT_ONCE:
            found = desired.where(step.view, row, step.now.wall, turn=step.view.committed.counter + 1)
            if isinstance(found, Refusals):
                homeless.add(row.profile)
            else:
                _place(step, row, found)
                placed += 1


def _place(step: Step, row: Replica, shards: tuple[Placed, ...]) -> None:
    spec, counter = step.view.catalog.spec(row.profile), step.view.committed.counter + 1
    epoch = Epoch(counter, step.now.nonce(row.id, counter))
    step.move(row, State.STARTING, f"placed on {', '.join(shard.node for shard in shards)}", spec=spec, fields={
        **_fresh(shards, epoch), "model": spec.model.name, "shard_count": spec.profile.shards,
        "generation": step.view.catalog.generation(row.profile)})


def _fresh(shards: tuple[Placed, ...], epoch: Epoch) -> dict[str, object]:
    return {"epoch": epoch, "shards": shards, "created_rev": STAMP, "ready_rev": 0, "cut_rev": 0, "was_ready": False}


def _prune(step: Step) -> None:
    stopped = [row for row in step.view.committed.replicas.values() if row.state is State.STOPPED]
    stopped.sort(key=lambda row: (row.epoch.counter if row.epoch else 0, row.id))
    for row in stopped[:max(0, len(stopped) - STOPPED_KEPT)]:
        step.emit(Change(row.id, before=row, remove=True))
