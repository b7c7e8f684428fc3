"""How long a silent node is still believed, and when so many are silent that we doubt ourselves.

Room: rules.
"""

from lib.model.committed import Committed
from lib.model.fleet import NodeState
from lib.rules.view import Observed, View

SUSPECT_S, LOST_S = 15.0, 45.0
BRAKE_S = 600.0                            # how long a silence of most nodes at once is blamed on us
EVIDENCE_S = 12.0                          # a router's good answer younger than this outweighs a silent node


def silent_for(observed: Observed, node: str) -> float:
    """Seconds since its last sync; since our start where there was none."""
    seen = observed.nodes.get(node)
    heard = seen.heard if seen else None
    return observed.clock - (observed.started if heard is None else heard)


def state(observed: Observed, node: str) -> NodeState:
    """How well a node is known. Nobody is lost for silence while the adoption window is open."""
    seen, silent = observed.nodes.get(node), silent_for(observed, node)
    if not observed.adopted and (seen is None or seen.heard is None):
        return NodeState.UNREPORTED
    if silent >= LOST_S:
        return NodeState.LOST if observed.adopted else NodeState.SUSPECT
    if seen is None or seen.heard is None:
        return NodeState.UNREPORTED
    return NodeState.SUSPECT if silent >= SUSPECT_S else NodeState.READY


def why_not_ready(state: NodeState) -> str:
    """Why nothing is placed on a node in this state; empty for a ready one."""
    return {NodeState.READY: "", NodeState.SUSPECT: f"not heard from for {SUSPECT_S:g} s", NodeState.LOST: "lost",
            NodeState.UNREPORTED: "has not reported yet"}[state]


def brake(observed: Observed, committed: Committed) -> str:
    """Why no lost node's replica is replaced just now; empty when they may be.

    More than half of the nodes (two at least) lost within ten minutes are more likely our own cut than their deaths. Nodes
    lost for longer count neither as lost nor as nodes.
    """
    silences = [silent_for(observed, node) for node in committed.nodes if state(observed, node) is NodeState.LOST]
    fresh = sum(silence - LOST_S < BRAKE_S for silence in silences)
    among = len(committed.nodes) - (len(silences) - fresh)
    if fresh >= 2 and fresh * 2 > among:
        return (f"{fresh} of {among} nodes fell silent together, so nothing is replaced until they return "
                f"or {BRAKE_S / 60:g} min have passed")
    return ""


def given_up(view: View, node: str, replica: str, counter: int) -> bool:
    """Whether a shard on `node` is to be counted dead: lost, not braked, and no router has had a good answer of late."""
    observed = view.observed
    if state(observed, node) is not NodeState.LOST or brake(observed, view.committed):
        return False
    return observed.clock - observed.evidence.get((replica, counter), float("-inf")) >= EVIDENCE_S
