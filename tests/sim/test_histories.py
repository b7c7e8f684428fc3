"""Random histories of a whole cluster: whatever fails in whatever order, what must hold holds, and it converges.

A failing seed replays exactly: `World(seed).run()`. Seeds that ever failed are kept in KEPT.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from lib.model.fleet import ReplicaState
from tests.sim.parts import Rates
from tests.sim.world import World

BLOCK = 25
KEPT: tuple[int, ...] = (39, 69, 109, 1529, 1549)


def history(seed: int) -> World:
    """Every tenth one has its state file replaced by an old backup."""
    return World(seed, restore=seed % 10 == 9).run()


def broken_promise(seed: int) -> str:
    """What went wrong in a history, or nothing."""
    try:
        history(seed)
    except AssertionError as err:
        return f"seed {seed}: {err}"
    return ""


@pytest.mark.parametrize("first", range(0, 300, BLOCK))
def test_every_history_keeps_its_promises(first: int) -> None:
    assert [fault for seed in range(first, first + BLOCK) if (fault := broken_promise(seed))] == []


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_once_failed_stays_mended(seed: int) -> None:
    history(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(300, 10_000, 970))
def test_ten_thousand_histories_keep_their_promises(first: int) -> None:
    """On every core there is."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        faults = pool.map(broken_promise, range(first, first + 970), chunksize=10)
        assert [fault for fault in faults if fault] == []


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = history(7), history(7)
    assert first.committed == second.committed
    assert first.checks.placements == second.checks.placements > 0


def test_without_faults_every_replica_is_placed_once_and_nothing_fails() -> None:
    world = World(1, rates=Rates()).run(faults_s=100)
    assert (world.checks.placements, world.checks.failures) == (4, 0)


def test_a_control_plane_that_restarts_again_and_again_moves_nothing() -> None:
    world = World(2, rates=Rates())
    world.run(faults_s=100, healing_s=0)
    epochs = {row.id: row.epoch for row in world.committed.replicas.values()}
    for _ in range(20):
        world.crash_plane()
        world.plane_back_at = world.now + 10
        for _ in range(15):
            world.step()
    assert {row.id: row.epoch for row in world.committed.replicas.values()} == epochs
    assert world.checks.failures == 0


def test_a_control_plane_that_is_cut_from_every_node_replaces_nothing_and_keeps_the_routes() -> None:
    world = World(3, rates=Rates())
    world.run(faults_s=100, healing_s=0)
    for node in world.nodes.values():
        node.cut_until = world.now + 300
    for _ in range(150):
        world.step()
        assert all(len(route.replicas) == 2 for router in world.routers if router.table for route in router.table.models.values())
    assert world.checks.failures == 0


def test_a_cut_node_whose_engines_answer_the_routers_keeps_its_replica() -> None:
    world = World(4, rates=Rates())
    world.run(faults_s=100, healing_s=0)
    pair = next(row for row in world.committed.replicas.values() if row.profile == "pair")
    world.nodes[pair.nodes[0]].cut_until = world.now + 300
    for _ in range(120):
        world.step()
    assert world.committed.replicas[pair.id].epoch == pair.epoch


def test_a_cut_node_whose_engines_answer_nobody_loses_its_replica_to_another_place() -> None:
    world = World(4, rates=Rates())
    world.run(faults_s=100, healing_s=0)
    pair = next(row for row in world.committed.replicas.values() if row.profile == "pair" and "n1" in row.nodes)
    world.nodes["n1"].cut_until = world.now + 200
    for engine in world.nodes["n1"].shards.values():
        world.kill(engine, "the power failed")
    for _ in range(60):
        world.step()
    moved = world.committed.replicas[pair.id]
    assert moved.epoch is not None
    assert moved.epoch != pair.epoch
    assert "n1" not in moved.nodes


def test_half_of_a_pair_killed_while_the_control_plane_is_down_is_never_ready_and_is_rebuilt() -> None:
    for rank in (0, 1):
        world = World(5, rates=Rates())
        world.run(faults_s=100, healing_s=0)
        pair = next(row for row in world.committed.replicas.values() if row.profile == "pair")
        assert pair.epoch is not None
        world.crash_plane()
        node = world.nodes[pair.nodes[rank]]
        world.kill(node.shards[pair.id, pair.epoch.counter, rank], "killed")
        world.crash_agent(node)
        node.back_at = world.now + 20
        for _ in range(100):
            world.step()               # Checks: never shown as ready unless all ranks of its epoch were reported
        rebuilt = world.committed.replicas[pair.id]
        assert rebuilt.state is ReplicaState.READY
        assert rebuilt.epoch != pair.epoch


def test_an_old_state_file_is_noticed_and_then_nothing_moves() -> None:
    world = World(6, rates=Rates())
    world.run(faults_s=60, healing_s=0)
    world.backups = [world.committed]
    world.pair, world.solo, world.variant = 2, 1, "x"
    world.catalog = world.catalog_now()
    for _ in range(60):
        world.step()
    running = {key for node in world.nodes.values() for key, engine in node.shards.items() if engine.alive}
    world.restore()
    for _ in range(100):
        world.step()
    assert world.observed.rewound
    assert running == {key for node in world.nodes.values() for key, engine in node.shards.items() if engine.alive}
