"""Limits of API keys, and the shared cells they are counted in."""

from contextlib import suppress

import pytest

from lib.gateway.answers import Refusal
from lib.gateway.cells import KEY, KEY_CELLS, REPLICA, REPLICA_CELLS, Cells, Numbers
from lib.gateway.limits import Key
from lib.model.wire import KeyEntry, KeyLimits


def key(cells: Cells, routers: int = 1, *, concurrency: int = 0, requests_per_minute: int = 0) -> Key:
    limits = KeyLimits(concurrency=concurrency, requests_per_minute=requests_per_minute)
    return Key(KeyEntry("k", "0" * 64, limits), 1, routers, cells)


def admitted(one: Key, now: float, tries: int) -> int:
    count = 0
    for _ in range(tries):
        with suppress(Refusal):
            one.admit(now)
            count += 1
    return count


def test_concurrency_counts_the_requests_of_every_worker() -> None:
    cells = Cells(2)
    one = key(cells, concurrency=3)
    assert admitted(one, 0.0, 2) == 2
    cells.take(1)
    assert admitted(one, 0.0, 5) == 1
    one.release()
    assert admitted(one, 0.0, 5) == 1


def test_each_router_grants_its_share_rounded_up() -> None:
    assert admitted(key(Cells(1), routers=2, concurrency=5), 0.0, 9) == 3
    assert admitted(key(Cells(1), routers=10, concurrency=1), 0.0, 9) == 1


def test_a_minute_slides() -> None:
    one = key(Cells(1), requests_per_minute=10)
    assert admitted(one, 59.0, 20) == 10
    assert admitted(one, 61.0, 20) <= 1     # nearly all of the last minute still counts
    assert admitted(one, 90.0, 20) in range(4, 7)
    assert admitted(one, 300.0, 20) == 10


def test_requests_of_all_workers_count_into_the_minute() -> None:
    cells = Cells(2)
    one = key(cells, requests_per_minute=4)
    assert admitted(one, 10.0, 3) == 3
    cells.take(1)
    assert admitted(one, 10.0, 3) == 1


def test_a_key_without_limits_is_not_counted() -> None:
    assert not key(Cells(1)).limited


def test_models_of_a_key() -> None:
    one = Key(KeyEntry("k", "0" * 64, KeyLimits(models=("a",))), 0, 1, Cells(1))
    assert one.may_use("a")
    assert not one.may_use("b")


def test_numbers_are_given_back_only_when_nothing_counts_under_them() -> None:
    cells = Cells(1)
    numbers = Numbers(cells, REPLICA, REPLICA_CELLS, 3)
    first = numbers.give(["a", "b"])
    assert sorted(first.values()) == [1, 2]
    cells.mine[REPLICA + first["a"] * REPLICA_CELLS] = 1       # a request is still under way
    assert numbers.give(["c"]) == {"c": first["b"]}
    assert numbers.give(["c", "d"])["d"] == 0                  # none left
    cells.mine[REPLICA + first["a"] * REPLICA_CELLS] = 0
    assert numbers.give(["c", "d"])["d"] == first["a"]


def test_a_number_starts_from_zero_for_its_next_owner() -> None:
    cells = Cells(1)
    numbers = Numbers(cells, KEY, KEY_CELLS, 2)
    numbers.give(["a"])
    cells.mine[KEY + KEY_CELLS + 2] = 99
    numbers.give([])
    numbers.give(["b"])
    assert cells.mine[KEY + KEY_CELLS + 2] == 0


def test_gauges_of_a_dead_worker_are_cleared_and_its_counters_stay() -> None:
    cells = Cells(2)
    cells.take(1)
    one = key(cells, concurrency=1)
    one.admit(0.0)
    cells.observe(20, 0.1)
    cells.clear_gauges(1)
    assert admitted(one, 0.0, 1) == 1
    assert sum(cells.total(20 + index) for index in range(15)) == 1


def test_a_refusal_is_openai_shaped() -> None:
    one = key(Cells(1), concurrency=1)
    one.admit(0.0)
    with pytest.raises(Refusal) as refused:
        one.admit(0.0)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    assert b'"type": "rate_limit_error"' in refused.value.answer().body
