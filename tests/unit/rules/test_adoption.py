"""A restart of the control plane, silent nodes, and a state file that is too old."""

import pytest

from lib.base.errors import Blocked, Refused
from lib.model.fleet import NodeState, ReplicaState, ShardState
from lib.model.wire import Hello, Seen, ShardReport, Sync
from lib.rules import leases, observe, routing
from lib.rules.explain import alarms, status
from lib.rules.facts import public_state
from tests.unit.rules.fleets import Cluster, catalog

READY, STARTING = ReplicaState.READY, ReplicaState.STARTING
PAIR = "pair shards=2 gpus=2"


def ready_pair() -> Cluster:
    return Cluster(catalog(PAIR)).after(3)


def routed(cluster: Cluster) -> set[str]:
    table = routing.table(cluster.view, lambda replica, epoch: "key")
    return {one.id for route in table.models.values() for one in route.replicas}


def test_until_all_its_ranks_have_reported_a_replica_shows_adopting_and_keeps_its_route() -> None:
    cluster = ready_pair()
    first, second = cluster.row("pair-1").nodes
    cluster.silent = {second}
    cluster.restart()
    cluster.after(10)
    assert public_state(cluster.view, cluster.row("pair-1")) == (STARTING, "adopting")
    assert routed(cluster) == {"pair-1"}
    assert cluster.observed.nodes[first].heard is not None
    cluster.silent.clear()
    cluster.greet()
    cluster.after(1)
    assert public_state(cluster.view, cluster.row("pair-1"))[0] is READY


def test_while_adopting_no_order_is_authoritative_and_nothing_is_placed() -> None:
    cluster = ready_pair()
    cluster.silent = {"n6"}
    cluster.restart()
    cluster.catalog = catalog(PAIR, "solo gpus=1")
    cluster.after(50)
    assert not cluster.orders("n1").authoritative
    assert set(cluster.states()) == {"pair-1"}
    cluster.after(12)
    assert cluster.orders("n1").authoritative
    assert cluster.states()["solo-1"] is READY


def test_adoption_ends_as_soon_as_every_known_node_has_reported() -> None:
    cluster = ready_pair()
    cluster.restart()
    cluster.after(1)
    assert cluster.observed.adopted


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_adopted_without_one_rank_fails_and_is_rebuilt_and_was_never_ready(rank: int) -> None:
    cluster = ready_pair()
    before = cluster.row("pair-1")
    cluster.lose("pair-1", rank)
    cluster.silent = {"n6"}
    cluster.restart()
    for _ in range(59):
        cluster.after(1)
        assert public_state(cluster.view, cluster.row("pair-1"))[0] is STARTING
    cluster.after(4)
    assert any(f"1 of 2 shards, missing rank {rank}" in change.event for change in cluster.changes)
    assert cluster.row("pair-1").state is READY
    assert cluster.row("pair-1").epoch != before.epoch


def test_a_failed_report_counts_while_adopting() -> None:
    cluster = ready_pair()
    cluster.fail("pair-1", 1)
    cluster.silent = {"n6"}
    cluster.restart()
    cluster.after(2)
    assert cluster.row("pair-1").state is ReplicaState.PENDING
    assert status(cluster.view, cluster.row("pair-1"), cluster.wall)[1].startswith("nothing is placed before every node")


def test_a_silent_node_is_suspect_and_then_lost() -> None:
    cluster = ready_pair()
    cluster.silent = {"n1"}
    cluster.after(14)
    assert leases.state(cluster.observed, "n1") is NodeState.READY
    cluster.after(2)
    assert leases.state(cluster.observed, "n1") is NodeState.SUSPECT
    cluster.after(30)
    assert leases.state(cluster.observed, "n1") is NodeState.LOST


def test_a_pause_of_the_control_plane_itself_makes_nobody_lost() -> None:
    cluster = ready_pair()
    cluster.mono += 600
    cluster.decide()
    assert leases.state(cluster.observed, "n1") is NodeState.READY


def test_a_replica_on_a_lost_node_is_rebuilt_elsewhere() -> None:
    cluster = ready_pair()
    lost = cluster.row("pair-1").nodes[0]
    cluster.silent = {lost}
    cluster.after(44)
    assert cluster.row("pair-1").state is READY
    cluster.after(4)
    assert any(change.event.startswith(f"1 of 2 shards, missing rank 0 (not heard from {lost} for 45 s)")
               for change in cluster.changes)
    assert lost not in cluster.row("pair-1").nodes
    assert cluster.row("pair-1").state is READY


def test_a_lost_node_whose_engine_answers_a_router_keeps_its_replica() -> None:
    cluster = ready_pair()
    before = cluster.epoch("pair-1")
    cluster.silent = {cluster.row("pair-1").nodes[0]}
    for _ in range(30):
        cluster.after(5)
        cluster.router(1, ("pair-1", before.counter))
    assert cluster.epoch("pair-1") == before
    cluster.after(14)
    assert cluster.epoch("pair-1") != before


def test_when_most_nodes_fall_silent_together_nothing_is_replaced_for_ten_minutes() -> None:
    cluster = ready_pair()
    before = cluster.epoch("pair-1")
    cluster.silent = {"n1", "n2", "n3", "n4"}
    cluster.after(500)
    assert cluster.epoch("pair-1") == before
    assert "4 of 6 nodes fell silent together" in leases.brake(cluster.observed, cluster.committed)
    cluster.after(150)
    assert cluster.row("pair-1").state is not READY or cluster.epoch("pair-1") != before


def test_half_of_the_nodes_is_not_most_of_them() -> None:
    cluster = ready_pair()
    cluster.silent = {"n1", "n2", "n3"}
    cluster.after(50)
    assert leases.brake(cluster.observed, cluster.committed) == ""


def test_a_sync_of_another_session_is_told_to_say_hello_again() -> None:
    cluster = ready_pair()
    with pytest.raises(Blocked, match="session"):
        observe.sync(cluster.observed, cluster.committed, "n1", Sync("other", "run", 999, 0), cluster.now)
    with pytest.raises(Blocked):
        observe.sync(cluster.observed, cluster.committed, "n9", Sync("1", "run", 1, 0), cluster.now)


def test_an_older_report_that_comes_late_changes_nothing() -> None:
    cluster = ready_pair()
    node = cluster.row("pair-1").nodes[0]
    late = Sync(str(cluster.session), "run", 0, 0)
    after = observe.sync(cluster.observed, cluster.committed, node, late, cluster.now)
    assert after.nodes[node] == cluster.observed.nodes[node]


def test_an_inventory_that_was_overtaken_is_still_taken() -> None:
    cluster = Cluster(catalog())
    session, have = str(cluster.session), cluster.inventories["n1"]
    seen = observe.sync(cluster.observed, cluster.committed, "n1", Sync(session, "run", 2, 0), cluster.now)
    seen = observe.sync(seen, cluster.committed, "n1", Sync(session, "run", 1, 0, inventory=have), cluster.now)
    assert seen.nodes["n1"].inventory == have
    assert seen.nodes["n1"].seq == 2


def test_a_second_machine_with_the_identity_of_a_living_one_is_refused() -> None:
    cluster = ready_pair()
    with pytest.raises(Refused, match="n1 is alive as installation n1"):
        observe.hello(cluster.observed, cluster.committed, Hello("n1", "clone", "b", "run2", "1"), "s", cluster.now)
    cluster.silent = {"n1"}
    cluster.after(60)
    assert observe.hello(cluster.observed, cluster.committed, Hello("n1", "new", "b", "run2", "1"), "s", cluster.now)


def test_a_copy_of_a_living_machine_s_disk_is_refused_and_its_own_reboot_is_not() -> None:
    cluster = ready_pair()
    copied = Hello("n1", "n1", "another boot", "run2", "1")
    with pytest.raises(Refused, match="two machines run copies of it"):
        observe.hello(cluster.observed, cluster.committed, copied, "s", cluster.now)
    assert observe.hello(cluster.observed, cluster.committed, Hello("n1", "n1", "boot", "run2", "1"), "s", cluster.now)
    cluster.silent = {"n1"}
    cluster.after(10)
    assert observe.hello(cluster.observed, cluster.committed, copied, "s", cluster.now)


@pytest.mark.parametrize(("seen", "words"), [
    (Seen("L", 1, 10_000), "has seen revision 10000"), (Seen("L", 99, 1), "has obeyed control-plane start 99"),
    (Seen("other", 1, 1), "another history")])
def test_an_agent_that_has_seen_more_freezes_everything(seen: Seen, words: str) -> None:
    cluster = ready_pair()
    hello = Hello("n1", "n1", "boot", "run", "1", seen=seen)
    cluster.observed = observe.hello(cluster.observed, cluster.committed, hello, str(cluster.session), cluster.now)
    assert words in cluster.observed.rewound
    cluster.catalog = catalog()
    cluster.fail("pair-1", 0)
    assert cluster.after(100).states() == {"pair-1": READY}        # committed; nothing is decided any more
    assert public_state(cluster.view, cluster.row("pair-1"))[0] is not READY
    told = cluster.orders("n1")
    assert (told.authoritative, told.ended) == (False, ())
    assert routed(cluster) == {"pair-1"}
    assert "newest copy is put back" in alarms(cluster.view)[0]


def test_a_running_shard_that_the_state_file_does_not_know_freezes_everything() -> None:
    cluster = ready_pair()
    stranger = ShardReport("pair-9", 900, "abc", 0, ShardState.READY, pid=1)
    cluster.shards["n6"][stranger.key] = stranger
    cluster.report("n6")
    assert "runs pair-9 rank 0 of epoch e900-abc" in cluster.observed.rewound


def test_a_shard_of_an_ended_epoch_is_no_cause_for_alarm() -> None:
    cluster = ready_pair()
    cluster.deaf = {cluster.row("pair-1").nodes[1]}
    cluster.fail("pair-1", 0)
    cluster.after(30)
    assert cluster.observed.rewound == ""
