"""What an agent does about its orders."""

from dataclasses import replace

import pytest

from lib.model.fleet import ShardState
from lib.model.wire import Ended, Orders, Seen, ShardOrder
from lib.rules.node import Forget, Mine, Plan, Start, Stop, obeyed, plan, refusal

ORDER = ShardOrder("a-1", 5, "n", 0, 1, True, "a", "m", "sim", "", ("m",), gpus=("g0",), port=20000)
ALIVE = Mine(ORDER.key, "n", True, ("g0",), (20000,))


def orders(*shards: ShardOrder, authoritative: bool = True, ended: tuple[Ended, ...] = ()) -> Orders:
    return Orders(1, "run", "L", 3, 10, authoritative, 45.0, shards, ended)


def test_what_is_wanted_and_was_never_started_is_started() -> None:
    assert plan(orders(ORDER), [], ()) == Plan((Start(ORDER),))


def test_what_runs_as_wanted_is_left_alone() -> None:
    assert plan(orders(ORDER), [ALIVE], {ORDER.key}) == Plan()


def test_what_died_is_not_started_again() -> None:
    assert plan(orders(ORDER), [replace(ALIVE, alive=False)], {ORDER.key}) == Plan()


def test_what_the_journal_knows_and_is_not_here_is_reported_failed_and_not_started() -> None:
    done = plan(orders(ORDER), [], {ORDER.key})
    assert done.actions == ()
    assert [(report.key, report.nonce, report.state) for report in done.reports] == [(ORDER.key, "n", ShardState.FAILED)]


def test_what_may_not_start_is_reported_failed() -> None:
    done = plan(orders(replace(ORDER, may_start=False)), [], ())
    assert done.actions == ()
    assert done.reports[0].state is ShardState.FAILED


@pytest.mark.parametrize("other", [Mine(("b-1", 4, 0), "x", True, ("g0",)), Mine(("b-1", 4, 0), "x", True, (), (20000,))])
def test_a_start_waits_for_its_gpus_and_its_port(other: Mine) -> None:
    done = plan(orders(ORDER, ended=(Ended("b-1", 4, 0),)), [other], ())
    assert done.actions == (Stop(other.key, 0.0, "its epoch has ended"),)
    assert done.reports[0].state is ShardState.STARTING
    assert "b-1.4.0 still uses" in done.reports[0].detail


def test_an_unlisted_shard_is_stopped_on_authority_only() -> None:
    assert plan(orders(authoritative=False), [ALIVE], ()) == Plan()
    assert plan(orders(), [ALIVE], ()).actions == (Stop(ORDER.key, 0.0, "nobody wants it"),)


def test_an_ended_shard_is_stopped_without_authority_and_may_finish_its_streams() -> None:
    told = orders(authoritative=False, ended=(Ended("a-1", 5, 0, 120.0),))
    assert plan(told, [ALIVE], ()).actions == (Stop(ORDER.key, 120.0, "its epoch has ended"),)
    assert plan(told, [replace(ALIVE, stopping=True)], ()) == Plan()
    assert plan(told, [replace(ALIVE, alive=False)], ()).actions == (Forget(ORDER.key),)


def test_another_nonce_is_another_shard() -> None:
    done = plan(orders(ORDER), [replace(ALIVE, nonce="old")], ())
    assert done.actions == (Stop(ORDER.key, 0.0, "nobody wants it"),)
    assert done.reports[0].state is ShardState.STARTING


@pytest.mark.parametrize(("told", "seen", "words"), [
    (replace(orders(), agent_run="other"), Seen(), "another run"),
    (orders(), Seen("K", 1, 1), "another history"),
    (orders(), Seen("L", 4, 1), "control-plane start 3"),
    (orders(), Seen("L", 3, 11), "revision 11"),
    (orders(), Seen("L", 2, 11), "revision 11"),
    (orders(), Seen("L", 3, 10), ""), (orders(), Seen("L", 2, 9), ""), (orders(), Seen(), "")])
def test_orders_of_another_run_another_history_or_the_past_are_refused(told: Orders, seen: Seen, words: str) -> None:
    reason = refusal(told, "run", seen)
    assert words in reason
    assert bool(reason) is bool(words)
    assert refusal(told, told.agent_run, obeyed(told)) == ""
