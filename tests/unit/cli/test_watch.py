"""A view that is shown again: whole answers, changes only, and its age when nobody answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lib.base.errors import Refused, Unavailable
from lib.cli import watch
from lib.cli.watch import View, fit, show


class Script:
    """Answers one after the other; an exception is raised. KeyboardInterrupt at the end, as by Ctrl-C."""

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter([*answers, KeyboardInterrupt()])

    def __call__(self) -> Any:
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def draw(value: Any, _width: int | None) -> str:
    return f"<{value}>\n"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.0)


def watched(*answers: Any, output: str = "table") -> None:
    with pytest.raises(KeyboardInterrupt):
        show(View("title", Script(*answers), draw), output, watch=True)


def test_without_watch_it_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(View("title", Script([1]), draw), "table") == 0
    assert capsys.readouterr().out == "<[1]>\n"


def test_json_is_the_answer_as_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    show(View("title", Script([{"id": "ä", "n": None}]), draw), "json")
    assert json.loads(capsys.readouterr().out) == [{"id": "ä", "n": None}]


def test_into_a_pipe_only_changes_are_written_and_each_of_them_whole(capsys: pytest.CaptureFixture[str]) -> None:
    watched(["a"], ["a"], ["a", "b"], ["b"], ["b"])
    assert capsys.readouterr().out == "<['a']>\n\n<['a', 'b']>\n\n<['b']>\n\n"


def test_an_age_alone_is_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    watched({"x": [{"age_s": 1}]}, {"x": [{"age_s": 2}]}, {"x": [{"age_s": 2, "id": 1}]})
    assert capsys.readouterr().out.count("<") == 2


def test_a_lost_connection_is_said_once_and_its_return_too(capsys: pytest.CaptureFixture[str]) -> None:
    watched(["a"], Unavailable("refused"), Unavailable("refused"), ["a"], ["c"])
    out, err = capsys.readouterr()
    assert out == "<['a']>\n\n<['c']>\n\n"
    assert err.splitlines() == ["refused; what was shown last may be out of date", "answers again"]


def test_a_refusal_ends_the_watching() -> None:
    with pytest.raises(Refused):
        show(View("title", Script(["a"], Refused("no")), draw), "table", watch=True)


def test_a_stale_screen_says_how_old_it_is() -> None:
    line = watch._headline("nodes", Unavailable("connection refused"), 12.0)
    assert line == "nodes   STALE, 12 s old: connection refused"


def test_a_screen_never_scrolls_and_clears_what_was_there() -> None:
    text = fit("one\ntwo long\nthree\nfour\nfive\n", 5, 4)
    assert text == "\x1b[Hone\x1b[K\ntwo l\x1b[K\n... 3\x1b[K\n\x1b[J"
