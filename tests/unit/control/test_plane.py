"""The shell around the rules: sessions, long polls and commits, with clocks that the test holds."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lib.base.errors import Blocked
from lib.control.catalogs import CatalogFile
from lib.control.plane import Plane
from lib.model.codec import encode
from lib.model.fleet import EngineFound, Epoch, Inventory, ReplicaState, ShardState
from lib.model.wire import Hello, Orders, RouterReport, ShardReport, Sync
from lib.store.db import Store
from tests.eventually import eventually

CATALOG = '[models.m]\n[profiles.solo]\nmodel = "m"\nengine = "sim"\n'


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    yield (made := make(tmp_path))
    made.stop()
    made.store.close()


def make(directory: Path, mono: Callable[[], float] = time.monotonic) -> Plane:
    """A control plane over the state in `directory`, whose loop the test turns by hand."""
    path = directory / "state.db"
    if not path.exists():
        Store.create(path, "demo")
        (directory / "catalog.toml").write_text(CATALOG)
    store = Store.open(path)
    return Plane(store, CatalogFile(directory / "catalog.toml", store.state(), lambda *_: None), b"s" * 32, mono=mono)


def inventory(node: str) -> Inventory:
    return Inventory(node, node, "10.0.0.1", 20000, 20009, engines={"sim": EngineFound("", "1")})


class Node:
    """An agent that runs whatever it is told, at once."""

    def __init__(self, plane: Plane, name: str = "node01") -> None:
        self.plane, self.name, self.seq, self.rev = plane, name, 0, 0
        self.shards: tuple[ShardReport, ...] = ()
        self.session = plane.hello(Hello(name, f"uid-{name}", "boot", "run", "1")).session

    def sync(self, hold_s: float = 0.0, state: ShardState = ShardState.READY) -> Orders:
        self.seq += 1
        report = Sync(self.session, "run", self.seq, self.rev, self.shards, inventory(self.name), hold_s)
        told = self.plane.sync(self.name, report)
        self.rev = told.rev
        self.shards = tuple(ShardReport(order.replica, order.counter, order.nonce, order.rank, state, pid=7)
                            for order in told.shards)
        return told


def settle(plane: Plane, node: Node) -> Orders:
    for _ in range(6):
        plane.tick()
        told = node.sync()
    return told


def test_a_replica_is_placed_ordered_reported_and_routed(plane: Plane) -> None:
    told = settle(plane, Node(plane))
    order = told.shards[0]
    table = plane.table(0, 0, 0.0)
    endpoint = table.models["m"].replicas[0]
    assert plane.store.state().replicas["solo-1"].state is ReplicaState.READY
    assert (endpoint.addr, endpoint.port, endpoint.engine_key) == ("10.0.0.1", order.port, order.engine_key)
    assert order.engine_key == plane.engine_key("solo-1", order.epoch)
    assert order.engine_key != plane.engine_key("solo-1", Epoch(order.counter, "0" * 16))


def test_a_poll_is_answered_when_there_is_news_and_not_before(plane: Plane) -> None:
    node = Node(plane)
    node.sync()
    answers: list[Orders] = []

    def poll() -> None:
        while not answers or not answers[-1].shards:
            answers.append(node.sync(hold_s=25.0))
    thread = threading.Thread(target=poll)
    thread.start()

    def placed() -> bool:
        plane.tick()
        return bool(answers and answers[-1].shards)
    eventually(placed, 10)                  # far below the hold
    thread.join()
    assert [order.replica for order in answers[-1].shards] == ["solo-1"]
    assert len(answers) <= 3                # joined, adoption over, placed: nothing in between


def test_a_poll_without_news_ends_with_its_hold(plane: Plane) -> None:
    node = Node(plane)
    told = settle(plane, node)
    again = node.sync(hold_s=0.05)
    assert encode(again) | {"rev": 0} == encode(told) | {"rev": 0}


def test_an_answer_that_was_lost_is_given_again_at_once(plane: Plane) -> None:
    node = Node(plane)
    settle(plane, node)
    node.rev = 1                            # as if nothing since had arrived
    assert node.sync(hold_s=25.0).shards


def test_a_table_is_given_at_once_where_the_router_has_another_one(plane: Plane) -> None:
    settle(plane, Node(plane))
    table = plane.table(0, 0, hold_s=25.0)
    assert table.models["m"].replicas
    assert plane.table(table.rev, table.cp_epoch - 1, hold_s=25.0).rev == table.rev
    assert plane.table(table.rev, table.cp_epoch, hold_s=0.02) == table


def test_a_session_of_an_earlier_control_plane_is_sent_back_to_hello(tmp_path: Path) -> None:
    first = make(tmp_path)
    node = Node(first)
    settle(first, node)
    first.store.close()
    second = make(tmp_path)
    node.plane = second
    with pytest.raises(Blocked, match="did not open"):
        node.sync()
    second.store.close()


def test_a_restart_keeps_the_route_and_says_adopting_until_all_ranks_have_reported(tmp_path: Path) -> None:
    first = make(tmp_path)
    node = Node(first)
    settle(first, node)
    table = first.table(0, 0, 0.0)
    first.store.close()
    second = make(tmp_path)
    assert second.table(0, 0, 0.0).models == table.models
    assert second.table(0, 0, 0.0).cp_epoch == table.cp_epoch + 1
    again = Node(second)
    again.shards, again.rev = node.shards, node.rev
    told = settle(second, again)
    assert [(order.replica, order.epoch) for order in told.shards] == [(node.shards[0].replica, node.shards[0].epoch)]
    second.store.close()


def test_a_node_that_falls_silent_and_comes_back_is_an_event(tmp_path: Path) -> None:
    clock = [1000.0]
    plane = make(tmp_path, mono=lambda: clock[0])
    node = Node(plane)
    settle(plane, node)
    for _ in range(50):                     # small steps: a large one would be a pause of ours
        clock[0] += 1.0
        plane.tick()
    node.sync()
    plane.tick()
    told = [event.text.split(":")[0] for event in plane.store.events() if event.target == "node01"]
    assert told == ["joined with 0 GPUs, on no fabric", "suspect", "lost", "is back"]
    plane.store.close()


def test_protocols_that_do_not_meet_are_refused_with_both_ranges(plane: Plane) -> None:
    with pytest.raises(Blocked, match=r"\[7, 9\], this control plane 1"):
        plane.hello(Hello("node01", "uid", "boot", "run", "1", proto=(7, 9)))


def test_a_bug_in_one_round_does_not_end_the_loop(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def broken() -> None:
        rounds.append(1)
        if len(rounds) < 3:
            plane.poke()
            raise ZeroDivisionError
        plane.stop()
    monkeypatch.setattr(plane, "tick", broken)
    plane.poke()
    plane.run()
    assert len(rounds) == 3


def test_a_router_is_counted_for_the_share_of_limits(plane: Plane) -> None:
    plane.report(RouterReport("r1", 1))
    plane.report(RouterReport("r2", 1))
    assert plane.table(0, 0, 0.0).routers == 2
