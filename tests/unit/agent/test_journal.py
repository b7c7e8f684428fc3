"""The journal: nothing is ever started twice, and damage is refused."""

from pathlib import Path

import pytest

from lib.agent.journal import KEPT, Journal
from lib.base.errors import ConfigError
from lib.model.wire import Seen


def test_what_was_started_is_known_to_the_next_agent(tmp_path: Path) -> None:
    first = Journal(tmp_path / "journal.json")
    first.note_start(("chat-1", 57, 0))
    second = Journal(tmp_path / "journal.json")
    assert ("chat-1", 57, 0) in second.started
    assert second.node_uid == first.node_uid


def test_a_new_control_plane_start_is_on_disk_before_it_is_obeyed(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.json").obey(Seen("lineage", 3, 118))
    assert Journal(tmp_path / "journal.json").seen == Seen("lineage", 3, 118)


def test_the_oldest_entries_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.agent.journal.KEPT", 3)
    journal = Journal(tmp_path / "journal.json")
    for counter in range(5):
        journal.note_start(("a b", counter, 0))
    assert [counter for _, counter, _ in Journal(tmp_path / "journal.json").started] == [2, 3, 4]
    assert KEPT == 10_000


@pytest.mark.parametrize("damage", ["", "{", '{"node_uid": 7}', "[]"])
def test_a_damaged_journal_is_refused_because_it_may_have_known_something(tmp_path: Path, damage: str) -> None:
    (tmp_path / "journal.json").write_text(damage)
    with pytest.raises(ConfigError, match=r"journal\.json"):
        Journal(tmp_path / "journal.json")
