"""What routers and agents are told."""

import pytest

from lib.model.committed import Impossible
from lib.model.fleet import ReplicaState
from lib.model.wire import Source
from lib.rules import lifecycle, orders, routing
from lib.rules.explain import refusals, shard_lines, status
from tests.unit.rules.fleets import FABRICS, Cluster, catalog, inventory


def test_the_table_names_the_endpoint_the_node_and_the_key_of_each_ready_replica() -> None:
    cluster = Cluster(catalog("pair shards=2 max_inflight=7")).after(3)
    row = cluster.row("pair-1")
    route = routing.table(cluster.view, lambda replica, epoch: f"{replica} {epoch}").models["m"]
    (one,) = route.replicas
    assert (one.id, one.node, one.addr, one.port) == ("pair-1", row.nodes[0], row.shards[0].address, row.shards[0].port)
    assert one.engine_key == f"pair-1 {row.epoch}"
    assert (route.aliases, route.max_inflight, route.state) == (("short",), 7, "")


def test_a_model_without_a_ready_replica_is_known_and_says_why() -> None:
    cluster = Cluster(catalog("solo gpus=9")).after(2)
    assert routing.table(cluster.view, lambda replica, epoch: "").models["m"].state == "solo-1 is pending"
    empty = Cluster(catalog()).after(2)
    assert routing.table(empty.view, lambda replica, epoch: "").models["m"].state == "no profile runs it"


def test_two_tables_that_route_alike_have_one_essence() -> None:
    cluster = Cluster(catalog("solo")).after(3)
    before = routing.essence(routing.table(cluster.view, lambda replica, epoch: "k"))
    cluster.restart()
    assert routing.essence(routing.table(cluster.view, lambda replica, epoch: "k")) == before


def test_a_node_is_told_all_it_should_run_and_nothing_of_others() -> None:
    nodes = [inventory(name, sources={"/srv/w": ""}) for name in FABRICS]
    cluster = Cluster(catalog("pair shards=2 gpus=1", source="/srv/w"), nodes).after(3)
    row = cluster.row("pair-1")
    told = {name: orders.orders(cluster.view, name, "run", lambda replica, epoch: "k") for name in cluster.inventories}
    assert {name for name, one in told.items() if one.shards} == {*row.nodes}
    (order,) = told[row.nodes[1]].shards
    assert (order.rank, order.shard_count, order.may_start, order.rdzv) == (1, 2, False, row.shards[0].rendezvous)
    assert order.served_names == ("m", "short")
    assert told["n6"].sources == (Source("/srv/w", "sim"),)


def test_why_a_replica_is_pending_is_told_node_by_node() -> None:
    cluster = Cluster(catalog("pair shards=2 gpus=4"), [inventory("n1"), inventory("n2", gpus=2), inventory("n6")]).after(2)
    row = cluster.row("pair-1")
    assert status(cluster.view, row, cluster.wall)[1] == (
        "needs 2 nodes on one fabric with sim and 4 free GPUs each: n1: ib-a has only 1 such node; "
        "n2: 2 of 2 GPUs free, needs 4; n6: is on no fabric")
    why = refusals(cluster.view, row, cluster.wall)
    assert why is not None
    assert set(why.nodes) == {"n1", "n2", "n6"}


def test_a_stopping_replica_says_which_node_it_waits_for() -> None:
    cluster = Cluster(catalog("solo")).after(3)
    (node,) = cluster.row("solo-1").nodes
    cluster.deaf = {node}
    cluster.catalog = catalog()
    cluster.after(40)
    state, reason = status(cluster.view, cluster.row("solo-1"), cluster.wall)
    assert state is ReplicaState.STOPPING
    assert reason.endswith(f"waiting for {node} to report rank 0 gone")
    assert [line.state for line in shard_lines(cluster.view, cluster.row("solo-1"))] == ["ended"]


def test_every_state_has_its_successors_and_no_other() -> None:
    assert set(lifecycle.NEXT) == set(ReplicaState)
    lifecycle.check(ReplicaState.READY, ReplicaState.DRAINING)
    with pytest.raises(Impossible):
        lifecycle.check(ReplicaState.STOPPED, ReplicaState.READY)
