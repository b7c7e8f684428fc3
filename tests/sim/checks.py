"""What must hold in every simulated history, judged from the truth and not from what the rules believe."""

from typing import TYPE_CHECKING

from lib.model.committed import Change, Committed, check_booking
from lib.model.fleet import Replica, ReplicaState, ShardKey, ShardState
from lib.model.wire import Sync
from lib.rules.facts import public_state
from lib.rules.lifecycle import LEAVING, PLACED
from lib.rules.node import Start, Stop
from tests.sim.parts import FABRICS, Node

if TYPE_CHECKING:
    from tests.sim.world import World


class Checks:
    """The checks of one world, and the little they remember."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.ready_told: set[tuple[ShardKey, str]] = set()     # (shard, nonce) reported ready to this control-plane run
        self.started: set[tuple[ShardKey, str]] = set()
        self.before_restore: Committed | None = None
        self.failures = 0                  # epochs that ended by a failure
        self.placements = 0

    # -- called as things happen -------------------------------------------------------------------------------------

    def plane_started(self) -> None:
        self.ready_told.clear()

    def restored(self, lost: Committed) -> None:
        self.before_restore = lost

    def told(self, node: Node, message: Sync) -> None:
        for report in message.shards:
            if report.state is ShardState.READY:
                self.ready_told.add((report.key, report.nonce))

    def starting(self, node: Node, action: Start) -> None:
        key = (action.order.key, action.order.nonce)
        assert key not in self.started, f"{key} started a second time, on {node.name}"
        self.started.add(key)
        busy = {gpu for engine in node.shards.values() if engine.alive for gpu in engine.order.gpus}
        assert not busy & {*action.order.gpus}, f"{key} started on GPUs in use on {node.name}"
        ports = {engine.order.port for engine in node.shards.values() if engine.alive}
        assert action.order.port not in ports, f"{key} started on a port in use on {node.name}"

    def stopping(self, node: Node, action: Stop) -> None:
        states = [self.world.committed] if self.before_restore is None or not self.world.observed.rewound else []
        states += [self.before_restore] if self.before_restore else []     # its last orders may still be on their way
        replica, counter, _ = action.key
        rows = [state.replicas.get(replica) for state in states]
        wanted = all(row and row.epoch and row.epoch.counter == counter and row.state in PLACED for row in rows)
        assert not wanted, f"{action.key} is stopped on {node.name} and wanted: {action.why}"

    def committed(self, before: Committed, change: Change) -> None:
        row, last = change.replica, change.before
        if row is not None and row.state is ReplicaState.STARTING and row.shards:
            self.placements += 1
            self._placed_well(change)
        if row is not None and row.state is ReplicaState.READY:
            self._reported(row)
        if last is not None and row is not None and last.state in PLACED and row.state in (
                ReplicaState.BACKOFF, ReplicaState.PENDING, ReplicaState.FAILED):
            self.failures += 1
            self._failed_rightly(change)

    def _placed_well(self, change: Change) -> None:
        row = change.replica
        assert row is not None
        check_booking(self.world.committed, row)
        fabrics = {FABRICS[shard.node] for shard in row.shards}
        assert row.shard_count == self.world.catalog.profiles[row.profile].shards
        if row.shard_count > 1:
            assert len(fabrics) == 1, f"{row.id} spans {fabrics}"
            assert "" not in fabrics, f"{row.id} has two shards on an island"

    def _failed_rightly(self, change: Change) -> None:
        """A shard said to be missing on a node that is not lost must really not be there."""
        row, last = change.replica, change.before
        assert row is not None
        assert last is not None
        if "missing rank" not in row.reason or "not heard from" in row.reason or last.epoch is None:
            return
        there = [self._there(node, (last.id, last.epoch.counter, shard.rank))
                 for shard in last.shards for node in (self.world.nodes[shard.node],)]
        assert not all(there), f"{last.id} of {last.epoch} ended as {row.reason!r}, and all of it was there"

    @staticmethod
    def _there(node: Node, key: ShardKey) -> bool:
        if key in node.shards:
            return node.shards[key].alive and node.shards[key].stop_at is None
        return key not in node.journal     # not told yet: it would have been started

    # -- called each step --------------------------------------------------------------------------------------------

    def step(self) -> None:
        self._gpu_truth()
        if self.world.plane_listens:
            self._readiness()
            assert self.before_restore or not self.world.observed.rewound, f"false alarm: {self.world.observed.rewound}"

    def _gpu_truth(self) -> None:
        for node in self.world.nodes.values():
            used = [gpu for engine in node.shards.values() if engine.alive for gpu in engine.order.gpus]
            assert len(used) == len(set(used)), f"a GPU of {node.name} is used twice: {used}"

    def _readiness(self) -> None:
        for row in self.world.committed.replicas.values():
            if row.state in PLACED and public_state(self.world.view, row)[0] is ReplicaState.READY:
                self._reported(row)

    def _reported(self, row: Replica) -> None:
        assert row.epoch is not None
        count = self.world.committed.specs[row.id].profile.shards
        needed = {((row.id, row.epoch.counter, rank), row.epoch.nonce) for rank in range(count)}
        assert needed <= self.ready_told, f"{row.id} is ready, and not reported: {needed - self.ready_told}"

    # -- called at the end -------------------------------------------------------------------------------------------

    def converged(self) -> None:
        """After healing: as many as wanted, all ready, nothing else alive, nothing held, the routers up to date."""
        world = self.world
        if world.observed.rewound:
            return
        for name, profile in world.catalog.profiles.items():
            rows = [row for row in world.committed.replicas.values() if row.profile == name and row.state not in LEAVING]
            assert len(rows) == profile.replicas, f"{len(rows)} of {profile.replicas} {name}: {rows}"
            for row in rows:
                given_up = row.state is ReplicaState.FAILED and "given up" in row.reason
                assert row.state is ReplicaState.READY or given_up or row.state is ReplicaState.BACKOFF, f"{row}"
                assert row.generation == world.catalog.generation(name), f"{row.id} is of an old generation"
        self._no_strays()
        ready = {row.id for row in world.committed.replicas.values() if row.state is ReplicaState.READY}
        for router in world.routers:
            assert router.table is not None
            assert ready == {one.id for route in router.table.models.values() for one in route.replicas}

    def _no_strays(self) -> None:
        wanted = {(row.id, row.epoch.counter, shard.rank) for row in self.world.committed.replicas.values() if row.epoch
                  for shard in row.shards}
        alive = {key for node in self.world.nodes.values() for key, engine in node.shards.items() if engine.alive}
        assert alive == wanted, f"strays {alive - wanted}, missing {wanted - alive}"
        assert all(held.gone for held in self.world.committed.held.values()), f"still held: {self.world.committed.held}"
