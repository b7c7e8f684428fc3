"""A file is the old one or the new one, and what cannot be read is named."""

import json
import os
from pathlib import Path

import pytest

from lib.base.errors import ConfigError, LlmgwError
from lib.base.files import create_atomic, read_json, read_text, stamp, write_atomic, write_json


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "state"
    write_atomic(file, "old")
    write_atomic(file, b"new")
    assert file.read_text() == "new"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_mode_is_the_one_asked_for_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    old = os.umask(0o077)
    try:
        write_atomic(tmp_path / "file", "x", mode=mode)
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_reader_that_opened_the_old_file_keeps_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "old")
    with open(tmp_path / "file") as reader:
        write_atomic(tmp_path / "file", "new")
        assert reader.read() == "old"


def test_a_directory_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match=r"^cannot write .*/nowhere/file: No such file or directory$"):
        write_atomic(tmp_path / "nowhere" / "file", "x")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()            # a directory cannot be replaced by a file: the rename fails, after the write
    with pytest.raises(LlmgwError, match="cannot write"):
        write_atomic(tmp_path / "file", "x")
    assert os.listdir(tmp_path) == ["file"]


def test_json_is_sorted_so_that_equal_values_are_equal_files(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": [2]})
    write_json(tmp_path / "b", {"a": [2], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": [2], "b": 1}


def test_a_half_written_json_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"a": 1, "b": 2}, indent=1)[:-4])
    with pytest.raises(ConfigError, match=r"a\.json:3: is not JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("data, says", [(None, "cannot be read: No such file"), (b"\xff\xfe", "is not UTF-8 text")])
def test_what_cannot_be_read_is_named(tmp_path: Path, data: bytes | None, says: str) -> None:
    if data is not None:
        (tmp_path / "a").write_bytes(data)
    with pytest.raises(ConfigError, match=f"{tmp_path}/a: {says}"):
        read_text(tmp_path / "a")


def test_what_exists_is_not_created_again(tmp_path: Path) -> None:
    create_atomic(tmp_path / "once", "first")
    with pytest.raises(FileExistsError):
        create_atomic(tmp_path / "once", "second")
    assert (tmp_path / "once").read_text() == "first"
    assert os.listdir(tmp_path) == ["once"]


def test_a_stamp_tells_that_a_file_was_replaced(tmp_path: Path) -> None:
    assert stamp(tmp_path / "file") == ()
    write_atomic(tmp_path / "file", "one")
    before = stamp(tmp_path / "file")
    assert before == stamp(tmp_path / "file")
    write_atomic(tmp_path / "file", "two")
    assert before != stamp(tmp_path / "file")
