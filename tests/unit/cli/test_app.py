"""From words to an exit code."""

import argparse
import io
import sys

import pytest

from lib.base.errors import Blocked, Cancelled, ConfigError, Fault, LlmgwError, NotFound, Refused
from lib.cli import app
from lib.cli.app import Command, Given, arg

SEEN: list[argparse.Namespace] = []


def note(given: Given) -> None:
    SEEN.append(given)


def fail_with(error: BaseException) -> Command:
    def fail(_: Given) -> None:
        raise error
    return Command("fail", fail, "fail")


COMMANDS = (
    Command("nodes", note, "list nodes", (arg("--all", action="store_true", help="all of them"),)),
    Command("keys create", note, "make a key", (arg("name", metavar="NAME"), arg("--limit", type=app.count, default=0))),
    Command("keys revoke", note, "end a key", (arg("id", metavar="ID"),)),
    Command("engine", note, "", raw=True),
    Command("code", lambda _: 5, "end with 5"),
)
OPTIONS = (arg("--dir", metavar="DIR", default="/etc/x", help="where"),)


@pytest.fixture(autouse=True)
def _forget() -> None:
    SEEN.clear()


def run(*words: str, commands: tuple[Command, ...] = COMMANDS) -> int:
    return app.run("prog", commands, words, about="What it is for.", options=OPTIONS)


@pytest.mark.parametrize("words", [("--dir", "d", "nodes", "--all"), ("--dir=d", "nodes", "--all"),
                                   ("nodes", "--dir", "d", "--all"), ("nodes", "--all", "--dir=d")])
def test_a_flag_of_all_commands_may_stand_before_and_after_the_command(words: tuple[str, ...]) -> None:
    assert run(*words) == 0
    assert (SEEN[0].dir, SEEN[0].all) == ("d", True)


def test_a_command_may_have_two_words() -> None:
    assert run("keys", "create", "me", "--limit", "3") == 0
    assert (SEEN[0].name, SEEN[0].limit, SEEN[0].dir) == ("me", 3, "/etc/x")


def test_the_exit_code_is_what_the_command_returns() -> None:
    assert run("code") == 5


def test_a_raw_command_gets_its_words_untouched() -> None:
    assert run("engine", "--help", "--dir", "x", "-q") == 0
    assert SEEN[0].words == ["--help", "--dir", "x", "-q"]


@pytest.mark.parametrize(("words", "said", "hint"), [
    (("nods",), "there is no command 'nods'", 'did you mean "nodes"?'),
    (("nodes", "--al"), "unknown flag --al", 'did you mean "--all"?'),
    (("nodes", "--dri=x"), "unknown flag --dri", 'did you mean "--dir"?'),
    (("--dri", "x", "nodes"), "unknown flag --dri", 'did you mean "--dir"?'),
    (("--all", "nodes"), "--all comes before the command", "prog COMMAND --all"),
    (("keys",), "keys: what of it?", "create|revoke"),
    (("keys", "creat"), "keys: there is no 'creat'", 'did you mean "create"?'),
    (("keys", "create"), "required: NAME", "prog keys create --help"),
    (("keys", "create", "a", "b"), "'b' is one word too many", "prog keys create --help"),
    (("keys", "create", "a", "--limit", "x"), "argument --limit: 'x' is not a whole number", "prog keys create --help"),
    (("keys", "create", "a", "--limit=-1"), "argument --limit: '-1' is not a whole number", "prog keys create --help"),
    (("--dir",), "argument --dir: expected one argument", "prog --help"),
    (("--dir", "x"), "no command", "prog --help"),
])
def test_a_wrong_word_is_one_line_a_hint_and_exit_code_2(words: tuple[str, ...], said: str, hint: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("prog: ")
    assert said in first
    assert second.startswith("  hint: ")
    assert hint in second
    assert SEEN == []


@pytest.mark.parametrize(("error", "code"), [(LlmgwError("broken"), 1), (NotFound("broken"), 3), (Refused("broken"), 4),
                                             (Blocked("broken", hint="wait"), 5)])
def test_an_error_is_one_line_and_its_exit_code(error: LlmgwError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fail", commands=(fail_with(error),)) == code
    assert capsys.readouterr().err == "prog: broken\n" + (f"  hint: {error.hint}\n" if error.hint else "")


def test_every_fault_of_a_configuration_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError([Fault("f.toml", 2, "a", "is missing"), Fault("f.toml", 3, "b", "unknown key", "did you mean c?")])
    assert run("fail", commands=(fail_with(error),)) == 78
    assert capsys.readouterr().err == "prog: f.toml:2: a: is missing\nprog: f.toml:3: b: unknown key (did you mean c?)\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run("fail", commands=(fail_with(ZeroDivisionError()),))


def test_an_interrupt_is_130_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fail", commands=(fail_with(KeyboardInterrupt()),)) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",), ("--dir", "x", "--help")])
def test_help_lists_what_there_is_and_no_more(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "What it is for." in out
    assert all(command.name in out for command in COMMANDS if command.help)
    assert "engine" not in out


@pytest.mark.parametrize("words", [("nodes", "--help"), ("help", "nodes"), ("nodes", "-h")])
def test_a_command_tells_of_itself_and_of_the_flags_of_all(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "List nodes." in out
    assert "--all" in out
    assert "--dir DIR" in out


def test_help_of_a_family_lists_its_members(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "--help") == 0
    out = capsys.readouterr().out
    assert "keys create" in out
    assert "nodes" not in out


@pytest.mark.parametrize("words", [("version",), ("--version",), ("-V",), ("--dir", "x", "version")])
def test_the_version_can_be_asked_for_in_every_usual_way(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    assert capsys.readouterr().out.startswith("prog ")


def test_without_a_terminal_nobody_is_asked() -> None:
    app.confirm("really?", yes=False)


class Terminal(io.StringIO):
    """A person at a terminal who has typed this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "goes_on"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_at_a_terminal_only_a_yes_destroys(typed: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", Terminal())
    app.confirm("really?", yes=True)
    if goes_on:
        app.confirm("really?", yes=False)
    else:
        with pytest.raises(Cancelled):
            app.confirm("really?", yes=False)


def single(*words: str) -> int:
    """A program that is one command."""
    def work(given: app.Given) -> None:
        sys.stdout.write(f"{given.name}\n")
    name = app.arg("--name", required=True, help="of it")
    return app.run_single("one", app.Command("one", work, "do one thing", (name,)), words)


def test_a_program_that_is_one_command_takes_its_flags_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert (single("--name", "x"), capsys.readouterr().out) == (0, "x\n")
    for words in ((), ("help",), ("--help",)):
        assert single(*words) == 0
        assert "usage: one" in capsys.readouterr().out
    for words in (("version",), ("--version",)):
        assert single(*words) == 0
        assert capsys.readouterr().out.startswith("one ")


def test_a_program_that_is_one_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert single("--nam", "x", "--name", "y") == 2
    assert "did you mean" in capsys.readouterr().err
    assert single("word") == 2
