"""What is sent to whom when a process tree has to end."""

import random
import signal

from lib.shim.ending import ORPHAN_GRACE_S, SURVIVOR_S, Ending

Step = tuple[int, frozenset[int]]
NOBODY: Step = (0, frozenset())


def term(*pids: int) -> Step:
    return signal.SIGTERM, frozenset(pids)


def kill(*pids: int) -> Step:
    return signal.SIGKILL, frozenset(pids)


def test_first_only_the_main_process_is_asked_and_only_once() -> None:
    ending = Ending(10, 0.0, 20.0)
    assert ending.step(0.0, {10, 11, 12}) == term(10)
    assert ending.step(1.0, {10, 11, 12}) == NOBODY
    assert ending.step(19.9, {10, 11, 12}) == NOBODY


def test_after_the_grace_everything_is_killed_again_and_again() -> None:
    ending = Ending(10, 0.0, 20.0)
    ending.step(0.0, {10, 11})
    assert ending.step(20.0, {10, 11}) == kill(10, 11)
    assert ending.step(20.1, {11, 13}) == kill(11, 13)
    assert ending.step(20.2, set()) == NOBODY


def test_what_the_main_process_left_behind_is_asked_and_then_killed() -> None:
    ending = Ending(10, 0.0, 20.0)
    ending.step(0.0, {10, 11})
    assert ending.step(1.0, {11, 12}) == term(11, 12)
    assert ending.step(1.1, {11}) == NOBODY
    assert ending.step(1.0 + ORPHAN_GRACE_S, {11}) == kill(11)


def test_the_orphans_grace_does_not_lengthen_the_whole() -> None:
    ending = Ending(10, 0.0, 2.0)
    ending.step(0.0, {10, 11})
    ending.step(1.0, {11})
    assert ending.step(2.0, {11}) == kill(11)


def test_after_an_end_that_nobody_asked_for_the_rest_is_killed_at_once() -> None:
    assert Ending(10, 0.0, 20.0, gently=False).step(0.0, {11, 12}) == kill(11, 12)


def test_who_outlives_sigkill_is_told_only_after_a_while() -> None:
    ending = Ending(10, 0.0, 0.0)
    ending.step(0.0, {10})
    assert ending.survivors(SURVIVOR_S - 0.1, {10}) == ()
    assert ending.survivors(SURVIVOR_S, {12, 10}) == (10, 12)
    assert ending.survivors(SURVIVOR_S, set()) == ()


def test_whatever_the_processes_do_nobody_is_alive_unsignalled_for_longer_than_the_grace() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        ending = Ending(1, 0.0, grace := chance.uniform(0, 10))
        alive, now = set(range(1, chance.randint(2, 6))), 0.0
        while alive:
            signum, targets = ending.step(now, alive)
            assert targets <= alive
            assert now < grace or signum == signal.SIGKILL
            stubborn = {pid for pid in targets if chance.random() < 0.5}
            alive -= (targets - stubborn) if signum else {pid for pid in alive if chance.random() < 0.01}
            now += chance.uniform(0.01, 1)
            assert now < 100
