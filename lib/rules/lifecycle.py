"""What may follow what in a replica's life.

Room: rules. A pair that is not in the table is an error.
"""

from collections.abc import Mapping

from lib.model.committed import Impossible
from lib.model.fleet import ReplicaState as State

NEXT: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.STOPPING}),
    State.STARTING: frozenset({State.READY, State.BACKOFF, State.PENDING, State.FAILED, State.STOPPING}),
    State.READY: frozenset({State.DEGRADED, State.DRAINING, State.BACKOFF, State.PENDING, State.FAILED}),
    State.DEGRADED: frozenset({State.READY, State.DRAINING, State.BACKOFF, State.PENDING, State.FAILED}),
    State.DRAINING: frozenset({State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
    State.BACKOFF: frozenset({State.PENDING, State.STOPPING}),
    State.FAILED: frozenset({State.PENDING, State.STOPPING}),          # pending: the profile changed, or an operator said so
}

PLACED = frozenset({State.STARTING, State.READY, State.DEGRADED, State.DRAINING})      # it has shards
ROUTED = frozenset({State.READY, State.DEGRADED})                                      # it is in the router table
LEAVING = frozenset({State.DRAINING, State.STOPPING, State.STOPPED})                   # it no longer counts


def check(old: State, new: State) -> None:
    """Impossible unless `new` may follow `old` (staying is always allowed)."""
    if new is not old and new not in NEXT[old]:
        raise Impossible(f"a replica cannot go from {old} to {new}")
