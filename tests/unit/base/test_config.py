"""Checked TOML: every fault at once, each with its line, and a suggestion where a word is nearly right."""

from pathlib import Path

import pytest

from lib.base.config import Table, did_you_mean, line_of, parse_toml, read_toml
from lib.base.errors import ConfigError

TEXT = """\
name = "a"            # line 1
count = 3
ratio = 0.5
on = true
words = ["x", "y"]
file = "sub/file"

[env]
KEY = "value"

[models.one]
source = "/one"

[models."two.b"]
source = "/two"
"""


def table(text: str = TEXT) -> Table:
    return parse_toml(text, "/etc/llmgw/a.toml")


def faults(read: Table) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read.settle()
    return str(caught.value).split("\n")


def test_values_come_by_their_type() -> None:
    read = table()
    assert (read.text("name"), read.integer("count"), read.number("ratio"), read.flag("on", False)) == ("a", 3, 0.5, True)
    assert (read.texts("words"), read.text_map("env")) == (("x", "y"), {"KEY": "value"})
    assert read.file_path("file") == Path("/etc/llmgw/sub/file")
    assert {name: model.text("source") for name, model in read.tables("models").items()} == {"one": "/one", "two.b": "/two"}
    read.settle()


def test_defaults_stand_in_for_what_is_missing() -> None:
    read = table("")
    assert (read.text("a", "x"), read.integer("b", 2), read.number("c", 1.5), read.flag("d", True)) == ("x", 2, 1.5, True)
    assert (read.texts("e", ("z",)), read.text_map("f"), read.table("g").keys(), read.tables("h")) == (("z",), {}, [], {})
    read.settle()


def test_a_whole_number_does_for_a_number_but_not_the_other_way() -> None:
    read = table("a = 2\nb = 2.0\n")
    assert read.number("a") == 2.0
    read.integer("b")
    assert faults(read) == ["/etc/llmgw/a.toml:2: b: must be a whole number, not a number"]


def test_every_fault_is_listed_in_the_order_of_the_file() -> None:
    read = table('port = 70000\nname = 7\nflag = "yes"\nlist = [1]\n[env]\nA = 1\n')
    read.text_map("env"), read.texts("list"), read.flag("flag", False), read.text("name"), read.integer("port", high=65535)
    assert faults(read) == [
        "/etc/llmgw/a.toml:1: port: 70000 is outside 0 to 65535",
        "/etc/llmgw/a.toml:2: name: must be a string, not a whole number",
        "/etc/llmgw/a.toml:3: flag: must be true or false, not a string",
        "/etc/llmgw/a.toml:4: list: must be a list of strings",
        "/etc/llmgw/a.toml:5: env: must be a table of strings"]


def test_true_is_not_a_number() -> None:
    read = table("a = true\nb = true\n")
    read.integer("a"), read.number("b")
    assert len(faults(read)) == 2


def test_a_missing_key_is_a_fault_without_a_line() -> None:
    read = table("")
    read.text("server")
    assert faults(read) == ["/etc/llmgw/a.toml: server: is missing"]


def test_an_unknown_key_is_refused_with_the_word_that_was_meant() -> None:
    read = table('nmae = "a"\n[pki]\nkye = "b"\n')
    read.text("name", "")
    read.table("pki").text("key", "")
    assert faults(read) == ['/etc/llmgw/a.toml:1: nmae: unknown key (did you mean "name"?)',
                            '/etc/llmgw/a.toml:3: pki.kye: unknown key (did you mean "key"?)']


def test_a_pattern_refuses_in_the_words_it_was_given() -> None:
    read = table('url = "ftp://x"\n')
    read.text("url", pattern="https://.+", expect="an https URL")
    assert faults(read) == ["/etc/llmgw/a.toml:1: url: 'ftp://x' is not an https URL"]


def test_a_table_that_is_a_value_says_how_to_write_it() -> None:
    read = table('[models]\none = "x"\n')
    read.tables("models")
    assert faults(read) == ["/etc/llmgw/a.toml:1: models: one must be a table (write [models.one])"]


@pytest.mark.parametrize("text, line", [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ('a = "x', 1), ("[t\n", 1)])
def test_what_is_not_toml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"^/etc/llmgw/a\.toml:{line}: is not TOML: "):
        table(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: cannot be read: No such file"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("path, line", [
    (("name",), 1), (("env",), 8), (("env", "KEY"), 9), (("models", "one"), 11), (("models", "one", "source"), 12),
    (("models", "two.b", "source"), 15), (("models", "one", "missing"), 11), (("nowhere",), 0)])
def test_a_key_is_found_in_the_text_or_its_table_is(path: tuple[str, ...], line: int) -> None:
    assert line_of(TEXT, path) == line


def test_a_suggestion_is_made_only_where_a_word_is_near() -> None:
    assert did_you_mean("shrads", ("shards", "gpus")) == 'did you mean "shards"?'
    assert did_you_mean("xyz", ("shards", "gpus")) == ""


def test_a_relative_path_is_absolute_once_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_toml('state_dir = "state"', "agent.toml").file_path("state_dir") == tmp_path / "state"
