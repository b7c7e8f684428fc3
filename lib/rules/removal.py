"""What it means that a node is taken out of the cluster.

Room: rules. The node is known no longer, and no replica stays on it. What its ended shards had stays held under its name:
should the machine be onboarded again with engines that still run, they are known for what they are, and it ends them.
"""

from lib.model.committed import Change, Committed
from lib.model.fleet import Replica
from lib.model.fleet import ReplicaState as State
from lib.rules import lifecycle
from lib.rules.changes import Step, occupied


def placed_on(committed: Committed, node: str) -> list[str]:
    """The replicas that have a shard there: what stands in the way of a removal, unless it is forced."""
    return [row.id for _, row in sorted(committed.replicas.items()) if row.state in lifecycle.PLACED and node in row.nodes]


def settle(step: Step) -> None:
    """Let go of every node that was removed."""
    gone = step.view.committed.removed
    for row in list(step.view.committed.replicas.values()):
        if row.state in lifecycle.PLACED and (lost := sorted(gone & set(row.nodes))):
            _rebuild(step, row, f"node {lost[0]} was removed")
    for node in sorted(gone & step.view.committed.nodes.keys()):
        step.emit(Change(node, "removed", forget=True))


def _rebuild(step: Step, row: Replica, why: str) -> None:
    if row.state is State.DRAINING:
        step.move(row, State.STOPPING, why, reason=row.reason, hold=occupied(row), fields={"shards": ()})
    else:
        step.move(row, State.PENDING, f"{why}; placed anew", reason=why, hold=occupied(row), fields={"shards": ()})
