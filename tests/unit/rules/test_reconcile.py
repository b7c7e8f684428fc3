"""What the control plane does each tick, told as the life of small clusters."""

from dataclasses import replace

import pytest

from lib.model.fleet import FaultClass, ReplicaState, ShardState
from lib.rules.explain import status
from tests.unit.rules.fleets import Cluster, catalog, inventory

READY, STARTING, PENDING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.PENDING
BACKOFF, FAILED, DRAINING = ReplicaState.BACKOFF, ReplicaState.FAILED, ReplicaState.DRAINING
PAIR = "pair shards=2 gpus=2"


def ready_pair() -> Cluster:
    cluster = Cluster(catalog(PAIR)).after(3)
    assert cluster.states() == {"pair-1": READY}
    return cluster


def test_a_wanted_replica_is_created_placed_started_and_ready() -> None:
    cluster = ready_pair()
    row = cluster.row("pair-1")
    assert [change.event for change in cluster.changes if change.target == "pair-1"] == [
        "created: 1 of pair wanted", f"placed on {', '.join(row.nodes)}", "ready"]
    assert row.shard_count == 2
    assert row.created_rev < row.ready_rev <= cluster.committed.rev


def test_a_converged_cluster_is_left_alone() -> None:
    cluster = ready_pair()
    rev = cluster.committed.rev
    cluster.after(60)
    assert cluster.committed.rev == rev


def test_the_same_moment_gives_the_same_decision() -> None:
    one, other = ready_pair(), ready_pair()
    assert one.committed == other.committed


def test_a_replica_is_not_ready_before_every_rank_has_been_reported_ready() -> None:
    cluster = Cluster(catalog(PAIR))
    cluster.deaf = set(cluster.inventories)
    cluster.after(2)
    first = cluster.row("pair-1").nodes[0]
    cluster.deaf.discard(first)
    cluster.after(5)
    assert cluster.states() == {"pair-1": STARTING}
    assert "rank 1 on " in status(cluster.view, cluster.row("pair-1"), 0.0)[1]
    cluster.deaf.clear()
    cluster.after(1)
    assert cluster.states() == {"pair-1": READY}


def test_a_shard_its_node_has_not_been_told_of_is_not_missing() -> None:
    cluster = Cluster(catalog(PAIR))
    cluster.deaf = set(cluster.inventories)
    cluster.after(30)
    assert cluster.states() == {"pair-1": STARTING}


@pytest.mark.parametrize("rank", [0, 1])
def test_one_failed_shard_ends_the_whole_group_and_it_is_rebuilt_at_once(rank: int) -> None:
    cluster = ready_pair()
    before = cluster.row("pair-1")
    cluster.fail("pair-1", rank)
    cluster.report(before.nodes[rank])
    cluster.decide()
    row = cluster.row("pair-1")
    assert row.state is STARTING
    assert row.epoch != before.epoch
    assert {held.rank for held in cluster.committed.held.values()} == {0, 1}
    event = next(change.event for change in cluster.changes if "failed" in change.event)
    assert event == f"rank {rank} on {before.nodes[rank]} failed: exited with code 1: boom; rebuilt at once"
    cluster.after(2)
    assert cluster.states() == {"pair-1": READY}


def test_a_shard_that_is_no_longer_reported_is_missing_by_name() -> None:
    cluster = ready_pair()
    cluster.lose("pair-1", 0)
    cluster.after(1)
    assert any(change.event.startswith("1 of 2 shards, missing rank 0; ") for change in cluster.changes)


def test_a_rebuild_that_fails_too_waits_and_each_time_longer() -> None:
    cluster = ready_pair()
    waits = []
    for _ in range(5):
        cluster.fail("pair-1", 0)
        cluster.after(1)
        row = cluster.row("pair-1")
        waits.append(row.retry_at - cluster.wall)
        cluster.after(0 if row.state is STARTING else max(1.0, waits[-1] + 2))
        cluster.after(1)
    assert waits[0] < 0
    assert all(0.5 * 5 * 2**n - 1 <= wait <= 5 * 2**n for n, wait in enumerate(waits[1:], 1))


def test_eight_failures_within_an_hour_are_enough() -> None:
    cluster = ready_pair()
    for _ in range(8):
        cluster.fail("pair-1", 0)
        cluster.after(1)
        for _ in range(400):
            if cluster.row("pair-1").state in (READY, FAILED):
                break
            cluster.after(1)
    row = cluster.row("pair-1")
    assert row.state is FAILED
    assert row.reason.endswith("given up after 8 failures within an hour")


def test_a_fault_of_configuration_is_not_tried_again_until_the_profile_changes() -> None:
    cluster = ready_pair()
    cluster.fail("pair-1", 1, "no such file: /srv/w", FaultClass.CONFIGURATION)
    cluster.after(5)
    assert cluster.states() == {"pair-1": FAILED}
    cluster.after(3600)
    assert cluster.states() == {"pair-1": FAILED}
    cluster.catalog = catalog(PAIR + ' args=["x"]')
    cluster.after(3)
    assert cluster.states() == {"pair-1": READY}


def test_failures_are_forgotten_after_ten_minutes_of_being_ready() -> None:
    cluster = ready_pair()
    cluster.fail("pair-1", 0)
    cluster.after(3)
    assert len(cluster.row("pair-1").attempts) == 1
    cluster.after(605)
    assert cluster.row("pair-1").attempts == ()


def test_a_node_that_failed_a_replica_is_avoided_where_there_is_another() -> None:
    cluster = Cluster(catalog("solo gpus=1"), [inventory("n6"), inventory("n7")]).after(3)
    (node,) = cluster.row("solo-1").nodes
    cluster.fail("solo-1", 0, "CUDA out of memory", FaultClass.RESOURCE)
    cluster.after(3)
    assert cluster.row("solo-1").nodes != (node,)
    assert cluster.states() == {"solo-1": READY}


def test_a_wall_clock_that_is_set_back_a_day_delays_no_backoff() -> None:
    cluster = ready_pair()
    for _ in range(2):
        cluster.fail("pair-1", 0)
        cluster.after(2)
    assert cluster.row("pair-1").state is BACKOFF
    cluster.wall -= 86_400
    cluster.after(15)
    assert cluster.row("pair-1").state is READY


def test_a_replica_that_does_not_become_ready_in_its_time_says_which_rank_was_late() -> None:
    cluster = Cluster(catalog(PAIR + " start_timeout=30"))
    cluster.after(1)
    cluster.after(1)
    cluster.set_state("pair-1", 1, ShardState.STARTING, "loading shard 3 of 9")
    late = cluster.row("pair-1").nodes[1]
    cluster.committed = replace(cluster.committed, replicas={"pair-1": replace(cluster.row("pair-1"), state=STARTING)})
    cluster.after(32)
    assert any(change.event.startswith(f"not ready within 30 s: rank 1 on {late} starting: loading shard 3 of 9")
               for change in cluster.changes)


def test_a_replica_that_became_ready_while_the_control_plane_was_down_is_taken_however_long_that_took() -> None:
    cluster = Cluster(catalog(PAIR + " start_timeout=30"))
    cluster.deaf = set(cluster.inventories)
    cluster.after(2)
    cluster.deaf.clear()
    for node in cluster.row("pair-1").nodes:
        cluster.obey(node)
        cluster.shards[node] = {key: replace(report, age_s=100.0) for key, report in cluster.shards[node].items()}
    cluster.restart()
    cluster.after(2)
    assert cluster.states() == {"pair-1": READY}


def test_an_unwell_shard_makes_the_replica_degraded_and_keeps_its_route() -> None:
    cluster = ready_pair()
    cluster.set_state("pair-1", 0, ShardState.DEGRADED, "no answer to a probe")
    cluster.after(1)
    assert cluster.row("pair-1").state is ReplicaState.DEGRADED
    assert "no answer to a probe" in cluster.row("pair-1").reason
    cluster.set_state("pair-1", 0, ShardState.READY)
    cluster.after(1)
    assert cluster.row("pair-1").state is READY


def test_what_an_ended_epoch_held_is_free_when_its_node_says_so_and_its_ports_a_minute_later() -> None:
    cluster = ready_pair()
    cluster.deaf = {cluster.row("pair-1").nodes[0]}
    cluster.fail("pair-1", 1)
    cluster.after(5)
    held = [item for item in cluster.committed.held.values() if item.node in cluster.deaf]
    assert [item.gone for item in held] == [False]
    assert held[0].gpus
    cluster.deaf.clear()
    cluster.after(2)
    assert all(item.gone and not item.gpus and item.ports for item in cluster.committed.held.values())
    cluster.after(62)
    assert not cluster.committed.held


def test_fewer_wanted_removes_what_does_not_serve_first() -> None:
    cluster = Cluster(catalog("solo gpus=4 replicas=3"), [inventory("n1"), inventory("n2")]).after(3)
    assert sorted(cluster.states().values()) == [PENDING, READY, READY]
    waiting = next(id for id, state in cluster.states().items() if state is PENDING)
    cluster.catalog = catalog("solo gpus=4 replicas=2")
    cluster.after(2)
    assert cluster.states()[waiting] is ReplicaState.STOPPED
    assert list(cluster.states().values()).count(READY) == 2
    cluster.catalog = catalog("solo gpus=4 replicas=0")
    cluster.after(40)
    assert set(cluster.states().values()) == {ReplicaState.STOPPED}


def test_a_profile_that_is_gone_takes_its_replicas_out_of_the_table_and_then_stops_them() -> None:
    cluster = ready_pair()
    cluster.after(30)
    cluster.router(cluster.committed.rev)
    cluster.catalog = catalog()
    cluster.after(1)
    row = cluster.row("pair-1")
    assert row.state is DRAINING
    assert row.cut_rev > row.ready_rev
    cluster.after(5)
    assert cluster.row("pair-1").state is DRAINING         # the router still has the old table
    cluster.router(row.cut_rev)
    cluster.after(1)
    assert cluster.row("pair-1").state is ReplicaState.STOPPING
    assert all(held.drain_s == 120 for held in cluster.committed.held.values())
    cluster.after(2)
    assert cluster.row("pair-1").state is ReplicaState.STOPPED


def test_a_renamed_profile_serves_until_its_successor_does_where_there_is_room_for_both() -> None:
    cluster = Cluster(catalog("old gpus=1")).after(40)
    cluster.catalog = catalog("new gpus=1")
    for _ in range(60):
        cluster.after(1)
        assert any(row.state is READY for row in cluster.committed.replicas.values())
    assert cluster.states() == {"new-1": READY, "old-1": ReplicaState.STOPPED}


def test_a_renamed_profile_makes_room_where_there_is_none() -> None:
    cluster = Cluster(catalog("old gpus=4"), [inventory("n1")]).after(40)
    cluster.catalog = catalog("new gpus=4")
    cluster.after(100)
    assert cluster.states() == {"new-1": READY, "old-1": ReplicaState.STOPPED}


def test_a_silent_router_is_waited_for_half_a_minute_only() -> None:
    cluster = ready_pair()
    cluster.router(cluster.committed.rev)
    cluster.catalog = catalog()
    cluster.after(29)
    assert cluster.row("pair-1").state is DRAINING
    cluster.after(4)
    assert cluster.row("pair-1").state is ReplicaState.STOPPED


def test_a_changed_profile_is_exchanged_one_by_one_the_new_one_first() -> None:
    cluster = Cluster(catalog("solo gpus=1 replicas=2")).after(40)
    cluster.catalog = catalog('solo gpus=1 replicas=2 args=["x"]')
    fewest = 2
    for _ in range(150):
        cluster.after(1)
        fewest = min(fewest, sum(row.state is READY for row in cluster.committed.replicas.values()))
    new = cluster.catalog.generation("solo")
    assert fewest == 2
    assert sorted(row.state for row in cluster.committed.replicas.values() if row.generation == new) == [READY, READY]
    assert all(row.state is ReplicaState.STOPPED for row in cluster.committed.replicas.values() if row.generation != new)


def test_a_changed_profile_without_room_for_both_goes_one_at_a_time() -> None:
    cluster = Cluster(catalog("solo gpus=4 replicas=2"), [inventory("n1"), inventory("n2")]).after(40)
    cluster.catalog = catalog('solo gpus=4 replicas=2 args=["x"]')
    fewest = 2
    for _ in range(200):
        cluster.after(1)
        fewest = min(fewest, sum(row.state is READY for row in cluster.committed.replicas.values()))
    ready = [row for row in cluster.committed.replicas.values() if row.state is READY]
    assert fewest == 1
    assert {row.generation for row in ready} == {cluster.catalog.generation("solo")}
    assert len(ready) == 2


def test_two_profiles_of_a_model_that_change_at_once_are_not_both_away() -> None:
    profiles = ['left shards=2 gpus=4 fabric="ib-a"', 'right shards=2 gpus=4 fabric="ib-b"']
    cluster = Cluster(catalog(*profiles), [inventory(name) for name in ("n1", "n2", "n4", "n5")]).after(40)
    cluster.catalog = catalog(*(words + ' args=["x"]' for words in profiles))
    fewest = 2
    for _ in range(200):
        cluster.after(1)
        fewest = min(fewest, sum(row.state is READY for row in cluster.committed.replicas.values()))
    ready = [row for row in cluster.committed.replicas.values() if row.state is READY]
    assert fewest == 1
    assert {row.generation for row in ready} == {cluster.catalog.generation("left"), cluster.catalog.generation("right")}


def test_an_old_replica_stays_where_its_going_would_not_help() -> None:
    cluster = Cluster(catalog("solo gpus=1")).after(40)
    cluster.catalog = catalog("solo gpus=8")
    cluster.after(200)
    assert cluster.row("solo-1").state is READY
    assert cluster.row("solo-2").state is PENDING


def test_what_changes_no_engine_restarts_none() -> None:
    cluster = Cluster(catalog("solo gpus=1")).after(40)
    before = cluster.row("solo-1").epoch
    cluster.catalog = catalog("solo gpus=1 max_inflight=5 stop_timeout=3 spread=false")
    cluster.after(60)
    assert cluster.row("solo-1").epoch == before


def test_numbers_are_the_lowest_that_nobody_has() -> None:
    cluster = Cluster(catalog("solo replicas=3")).after(3)
    assert sorted(cluster.states()) == ["solo-1", "solo-2", "solo-3"]


def test_an_order_does_not_change_with_the_catalog() -> None:
    cluster = Cluster(catalog('solo gpus=1 args=["a"]')).after(3)
    (node,) = cluster.row("solo-1").nodes
    cluster.catalog = catalog()
    assert cluster.orders(node).shards[0].args == ("a",)


def test_fifty_stopped_replicas_are_remembered_and_no_more() -> None:
    cluster = Cluster(catalog("solo replicas=60"), [inventory("n1", ports=200)]).after(9)
    cluster.catalog = catalog()
    cluster.after(40)
    assert len(cluster.committed.replicas) == 50
