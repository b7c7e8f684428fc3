"""What follows from the removal of a node, and when certificates are renewed and warned of."""

from dataclasses import replace

import pytest

from lib.model.catalog import Catalog
from lib.model.certificate import Certificate
from lib.model.committed import Committed, apply
from lib.model.fleet import Epoch, Held, KnownNode, Placed, Replica, ReplicaState, ShardState
from lib.model.identity import Role
from lib.model.wire import Hello, ShardReport, Sync
from lib.rules import observe, orders, reconcile, removal, renewal
from lib.rules.view import NodeSeen, Now, Observed, View
from tests.unit.rules.fleets import inventory

DAY = 86400.0
BEGIN, END = 1_000_000.0 - 300.0, 1_000_000.0 + 90 * DAY


def fleet(state: ReplicaState, *, removed: frozenset[str] = frozenset({"node02"})) -> Committed:
    """A replica of two shards on node01 and node02."""
    shards = (Placed(0, "node01", ("g1",), port=20000), Placed(1, "node02", ("g2",), port=20001))
    row = Replica("duo-1", "duo", "m", 2, state, epoch=Epoch(3, "aa"), shards=shards)
    return Committed("demo", counter=3, rev=9, replicas={"duo-1": row}, removed=removed,
                     nodes={"node01": KnownNode("node01"), "node02": KnownNode("node02")})


def decide(committed: Committed, observed: Observed | None = None) -> Committed:
    """The state after one round."""
    for change in reconcile.decide(View(committed, Catalog(), observed or Observed()), Now(1.0, 1.0)):
        committed = apply(committed, change)
    return committed


@pytest.mark.parametrize("before, after", [
    (ReplicaState.STARTING, ReplicaState.PENDING), (ReplicaState.READY, ReplicaState.PENDING),
    (ReplicaState.DEGRADED, ReplicaState.PENDING), (ReplicaState.DRAINING, ReplicaState.STOPPING)])
def test_no_replica_stays_on_a_removed_node(before: ReplicaState, after: ReplicaState) -> None:
    state = decide(fleet(before))
    row = state.replicas["duo-1"]
    assert (row.state, row.shards, list(state.nodes)) == (after, (), ["node01"])
    assert "node node02 was removed" in row.reason or before is ReplicaState.DRAINING


def test_what_its_shards_had_stays_held_so_that_a_machine_that_comes_back_is_understood() -> None:
    state = decide(fleet(ReplicaState.READY))
    assert {(held.node, held.gpus) for held in state.held.values()} == {("node01", ("g1",)), ("node02", ("g2",))}


def test_a_machine_that_is_onboarded_again_with_its_engines_running_is_told_to_end_them_and_alarms_nobody() -> None:
    committed = replace(decide(fleet(ReplicaState.READY)), removed=frozenset())
    now, hello = Now(1.0, 1.0), Hello("node02", "uid", "boot", "run", "1")
    observed = observe.hello(observe.begin(now), committed, hello, "session", now)
    report = Sync("session", "run", 1, 0, (ShardReport("duo-1", 3, "aa", 1, ShardState.READY, pid=7),), inventory("n2"))
    observed = observe.sync(observed, committed, "node02", report, now)
    assert not observed.rewound
    told = orders.orders(View(committed, Catalog(), observed), "node02", "run", lambda *_: "key")
    assert [ended.key for ended in told.ended] == [("duo-1", 3, 1)]


def test_nobody_waits_for_a_removed_node_to_report_a_shard_gone() -> None:
    committed = fleet(ReplicaState.STOPPING)
    held = Held("duo-1", Epoch(3, "aa"), 1, "node02", ("g2",), (20001,), 5)
    row = replace(committed.replicas["duo-1"], shards=())
    state = decide(replace(committed, replicas={"duo-1": row}, held={held.key: held}))
    assert state.replicas["duo-1"].state is ReplicaState.STOPPED


def test_a_removed_node_that_was_heard_of_does_not_join_again_and_is_forgotten_with_the_next_look() -> None:
    has = inventory("n2")
    observed = Observed(nodes={"node02": NodeSeen("node02", heard=1.0, inventory=has, lasting=has)})
    committed = fleet(ReplicaState.READY)
    assert "node02" not in decide(committed, observed).nodes
    assert not observe.tick(observed, committed, Now(1.0, 1.0)).nodes


def test_only_what_is_placed_stands_in_the_way_of_a_removal() -> None:
    assert removal.placed_on(fleet(ReplicaState.READY), "node01") == ["duo-1"]
    assert removal.placed_on(fleet(ReplicaState.READY), "node03") == []


def test_a_certificate_is_renewed_at_two_thirds_of_the_life_it_was_given() -> None:
    early, middle, late = (renewal.due_at(BEGIN, END, fraction) - 1_000_000.0 for fraction in (0.0, 0.5, 1.0))
    assert middle == pytest.approx(60 * DAY)
    assert early == pytest.approx(90 * DAY * (2 / 3 - 0.05))
    assert late == pytest.approx(90 * DAY * (2 / 3 + 0.05))


def test_a_short_life_is_not_mistaken_for_one_that_is_over_because_it_began_in_the_past() -> None:
    assert renewal.due_at(1000.0 - 300.0, 1030.0, 0.5) == pytest.approx(1020.0)


@pytest.mark.parametrize("age_days, words", [(0, ""), (64, ""), (65, "ends on 1970-04-12 and has not been renewed"),
                                             (91, "expired on 1970-04-12")])
def test_a_warning_comes_once_renewal_is_overdue(age_days: float, words: str) -> None:
    known = Certificate("a1", Role.NODE, "node01", BEGIN, END)
    said = renewal.warning(known, 1_000_000.0 + age_days * DAY)
    assert said.endswith(words) if words else not said


def test_a_holder_has_the_certificate_it_showed_last_else_the_newest_that_is_good() -> None:
    old, new = (Certificate(serial, Role.ROUTER, "r1", BEGIN, end) for serial, end in (("a1", END), ("a2", END + DAY)))
    committed = Committed(certificates={"a1": old, "a2": new})
    holder = (Role.ROUTER, "r1")
    assert renewal.present(committed, {}, holder) == new
    assert renewal.present(replace(committed, revoked=("a2",)), {}, holder) == old
    assert renewal.present(committed, {holder: old}, holder) == old
    assert renewal.overdue(committed, {}, END + 2 * DAY) == ["router r1: its certificate expired on 1970-04-13"]
