"""The checks notice when a safeguard is missing: each one switched off makes a history fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lib.model.committed import Impossible
from lib.model.fleet import Held, Replica
from lib.model.wire import ShardOrder, ShardReport
from lib.rules import changes, desired, facts, node, observe, orders, reconcile
from lib.rules.facts import ShardFact, Verdict, Word
from lib.rules.view import NodeSeen, Observed, View
from tests.sim.world import World

Patch = Callable[[pytest.MonkeyPatch], None]
TRIES = 60


def forget_profile_count(patch: pytest.MonkeyPatch) -> None:
    """Ready means that all shards seen are ready, however many there should be."""
    def whole(replica: Replica, found: tuple[ShardFact, ...]) -> bool:
        seen = [fact for fact in found if fact.report]
        return bool(seen) and all(fact.word is Word.READY for fact in seen)
    patch.setattr(reconcile, "whole", whole)
    patch.setattr(facts, "shortage", lambda replica, found: "")


def forget_group_restart(patch: pytest.MonkeyPatch) -> None:
    """A failed shard is not the end of its group."""
    def verdict(view: View, replica: Replica, found: tuple[ShardFact, ...]) -> Verdict | None:
        down = [fact for fact in found if fact.word in (Word.FAILED, Word.GONE, Word.LOST)]
        return real(view, replica, found) if len(down) == len(found) else None
    real = facts.verdict
    patch.setattr(reconcile, "verdict", verdict)


def forget_held(patch: pytest.MonkeyPatch) -> None:
    """What an ended epoch occupied is free at once."""
    def occupied(row: Replica, drain_s: float = 0.0) -> tuple[Held, ...]:
        return ()
    patch.setattr(changes, "occupied", occupied)
    patch.setattr(reconcile, "occupied", occupied)


def forget_stop_before_start(patch: pytest.MonkeyPatch) -> None:
    """GPUs of an ended epoch are free at once, and the agent does not look either."""
    real_missing, real_occupied = node._missing, changes.occupied

    def missing(order: ShardOrder, journalled: bool, busy: object) -> node.Start | ShardReport:
        return real_missing(order, journalled, ())

    def occupied(row: Replica, drain_s: float = 0.0) -> tuple[Held, ...]:
        return tuple(replace(held, gpus=()) for held in real_occupied(row, drain_s))
    patch.setattr(node, "_missing", missing)
    patch.setattr(changes, "occupied", occupied)
    patch.setattr(reconcile, "occupied", occupied)


def forget_ports(patch: pytest.MonkeyPatch) -> None:
    """Ports of an ended epoch are free at once, and always looked for from the first."""
    real = changes.occupied

    def occupied(row: Replica, drain_s: float = 0.0) -> tuple[Held, ...]:
        return tuple(replace(held, ports=()) for held in real(row, drain_s))
    patch.setattr(changes, "occupied", occupied)
    patch.setattr(reconcile, "occupied", occupied)
    patch.setattr(node, "_missing", lambda order, journalled, busy: node.Start(order))
    patch.setattr(desired, "where", _first_port)


def _first_port(view: View, row: Replica, wall: float, *, turn: int = 0, but: str = "") -> object:
    return _where(view, row, wall, but=but)


def forget_applied_rev(patch: pytest.MonkeyPatch) -> None:
    """A shard that is not reported is gone, even where its node cannot have heard of it."""
    def absence(seen: NodeSeen, replica: Replica) -> Word:
        return Word.GONE
    patch.setattr(facts, "_absence", absence)


def forget_rewound(patch: pytest.MonkeyPatch) -> None:
    """An old state file is taken for a new one, by everybody."""
    def judge(observed: Observed, name: str, news: str) -> Observed:
        return observed
    patch.setattr(observe, "_judge", judge)


def forget_adoption(patch: pytest.MonkeyPatch) -> None:
    """What was ready before the restart is ready after it, whoever has reported."""
    patch.setattr(facts, "public_state", lambda view, replica: (replica.state, replica.reason))
    patch.setattr("tests.sim.checks.public_state", lambda view, replica: (replica.state, replica.reason))


def forget_authority(patch: pytest.MonkeyPatch) -> None:
    """Orders given before all is known are obeyed to the letter, and given from half of the state."""
    real = orders.orders

    def blind(view: View, name: str, run: str, key: Callable[..., str]) -> object:
        told = real(view, name, run, key)
        return told if view.observed.adopted else replace(told, authoritative=True, shards=())
    patch.setattr(orders, "orders", blind)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The safeguard lies in the world, not in the rules."""


_where = desired.where
MUTATIONS: dict[str, tuple[Patch, str, bool]] = {
    "profile count": (forget_profile_count, "", False),
    "group restart": (forget_group_restart, "", False),
    "held": (forget_held, "", False),
    "stop before start": (forget_stop_before_start, "", False),
    "ports": (forget_ports, "", False),
    "applied rev": (forget_applied_rev, "", False),
    "rewound": (forget_rewound, "", True),
    "adoption": (forget_adoption, "", False),
    "authority": (forget_authority, "", False),
    "commit before answer": (nothing, "commit-before-answer", False),
    "ordered revisions": (nothing, "ordered-revisions", False),
    "start once": (nothing, "start-once", False),
}


def first_failure(without: str, restore: bool) -> str:
    for seed in range(TRIES):
        try:
            World(seed, without=[without] if without else [], restore=restore).run()
        except (AssertionError, Impossible) as err:
            return f"seed {seed}: {err!r}"
    return ""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_history_fails_without_this_safeguard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, without, restore = MUTATIONS[name]
    patch(monkeypatch)
    assert first_failure(without, restore), f"nothing noticed that {name} is switched off"
