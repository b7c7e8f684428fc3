"""Which replica gets a request: load, trust, pauses and limits, without any I/O."""

import random

import pytest

from lib.gateway.cells import REPLICA, REPLICA_CELLS, Cells
from lib.gateway.replica import Model, Replica
from lib.model.wire import Endpoint

CELLS = Cells(2)


@pytest.fixture(autouse=True)
def _no_load_from_other_tests() -> None:
    CELLS.wipe(REPLICA, 8 * REPLICA_CELLS)


def replica(number: int, state: str = "ready") -> Replica:
    return Replica(Endpoint(f"r{number}", 1, "aa", "127.0.0.1", 20000 + number, "n1", "k", state), number, CELLS)


def model(*replicas: Replica, max_inflight: int = 0) -> Model:
    return Model("m", (), replicas, max_inflight, "")


def test_the_least_loaded_replica_is_chosen_and_its_load_raised() -> None:
    replicas = [replica(1), replica(2), replica(3)]
    chosen = [model(*replicas).choose(0.0) for _ in range(3)]
    for one in chosen:
        assert one is not None
    pool = model(*replicas)
    more = [pool.choose(0.0) for _ in range(27)]
    assert {one.inflight for one in replicas} == {10}
    for one in [*chosen, *more]:
        assert one is not None
        one.lower_load()
    assert [one.inflight for one in replicas] == [0, 0, 0]
    assert CELLS.total(REPLICA + REPLICA_CELLS) == 0


def test_equals_take_turns() -> None:
    pool = model(replica(1), replica(2))
    seen = set()
    for _ in range(4):
        one = pool.choose(0.0)
        assert one is not None
        seen.add(one.endpoint.id)
        one.lower_load()
    assert seen == {"r1", "r2"}


def test_ready_before_degraded_however_busy() -> None:
    ready, degraded = replica(1), replica(2, "degraded")
    pool = model(degraded, ready)
    assert [pool.choose(0.0) for _ in range(5)] == [ready] * 5
    assert pool.choose(0.0, (ready,)) is degraded


def test_a_replica_that_was_tried_is_not_chosen_again() -> None:
    one, two = replica(1), replica(2)
    pool = model(one, two)
    assert pool.choose(0.0, (one,)) is two
    assert pool.choose(0.0, (one, two)) is None


def test_three_failures_in_a_row_eject_for_ten_seconds_then_twenty() -> None:
    one, two = replica(1), replica(2)
    pool = model(one, two)
    assert [one.failed(100.0) for _ in range(3)] == [False, False, True]
    assert {pool.choose(109.0) for _ in range(6)} == {two}
    assert one in {pool.choose(110.0) for _ in range(20)}
    for _ in range(3):
        one.failed(110.0)
    assert one.ejected_until == 130.0


def test_a_success_forgets_failures_and_client_errors_are_no_failures() -> None:
    one = replica(1)
    one.failed(0.0)
    one.failed(0.0)
    one.succeeded(1.0)
    assert not one.failed(2.0)
    assert [one.errored(3.0) for _ in range(5)] == [False] * 4 + [True]


def test_the_only_replica_is_tried_though_ejected() -> None:
    one = replica(1)
    for _ in range(3):
        one.failed(0.0)
    assert model(one).choose(1.0) is one


def test_when_most_are_ejected_all_are_tried() -> None:
    replicas = [replica(number) for number in range(1, 5)]
    for one in replicas[:3]:
        for _ in range(3):
            one.failed(0.0)
    pool = model(*replicas)
    assert {pool.choose(1.0) for _ in range(40)} == set(replicas)


def test_a_pause_is_kept_and_bounded() -> None:
    one, two = replica(1), replica(2)
    one.pause(0.0, 7)
    pool = model(one, two)
    assert {pool.choose(6.0) for _ in range(6)} == {two}
    one.pause(0.0, 100000)
    assert one.paused_until == 60.0


def test_a_full_replica_is_passed_over_counting_all_workers() -> None:
    one, two = replica(1), replica(2)
    pool = model(one, two, max_inflight=2)
    taken = [pool.choose(0.0) for _ in range(4)]
    assert pool.choose(0.0) is None
    assert {other.inflight for other in (one, two)} == {2}
    for other in taken:
        assert other is not None
        other.lower_load()


def test_random_histories_leave_no_load_behind() -> None:
    for seed in range(50):
        chance, replicas = random.Random(seed), [replica(number) for number in range(1, 5)]
        pool, held, now = model(*replicas, max_inflight=chance.choice([0, 1, 3])), list[Replica](), 0.0
        for _ in range(300):
            now += chance.random()
            one = pool.choose(now, chance.sample(replicas, chance.randint(0, 2))) if chance.random() < 0.6 else None
            if one is not None:
                held.append(one)
            elif held:
                other = held.pop(chance.randrange(len(held)))
                other.lower_load()
                chance.choice([other.succeeded, other.failed, other.errored])(now)
            assert all(each.inflight >= 0 for each in replicas)
        for one in held:
            one.lower_load()
        assert [each.inflight for each in replicas] == [0] * 4
        assert sum(CELLS.total(REPLICA + number * REPLICA_CELLS) for number in range(1, 5)) == 0
