"""Whether a GGUF file is complete, told from its header."""

import os
import struct
from pathlib import Path

import pytest

from lib.engines import ENGINES
from lib.engines.gguf import source_fault
from tests.tiny_gguf import gguf, write_split_model, write_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


def test_a_complete_file_has_no_fault(model: Path) -> None:
    assert source_fault(str(model)) == ""
    assert ENGINES["llama-server"].source_fault(str(model)) == ""


@pytest.mark.parametrize("missing", [1, 100, 100_000, 371_000])
def test_a_file_cut_anywhere_is_not_complete(model: Path, missing: int) -> None:
    os.truncate(model, model.stat().st_size - missing)
    assert "is not complete" in source_fault(str(model))


def test_a_file_cut_at_any_place_of_its_header_never_crashes_the_check(tmp_path: Path) -> None:
    whole = gguf({"general.alignment": 32, "names": ["a", "b"]}, [("t", (4, 4), bytes(64))])
    for length in range(len(whole)):
        path = tmp_path / f"{length}.gguf"
        path.write_bytes(whole[:length])
        assert source_fault(str(path)), length


@pytest.mark.parametrize("content,problem", [
    (b"", "is empty"), (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    (b"PK\x03\x04" + bytes(64), "not a GGUF"),
    (b"GGUF" + struct.pack("<I", 9) + bytes(64), "version 9"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63), "is not complete"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "is not complete")])
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert problem in source_fault(str(path))


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert "No such file" in source_fault(str(tmp_path / "none.gguf"))
    assert "is not a file" in source_fault(str(tmp_path))


def test_a_file_that_was_completed_is_looked_at_again(model: Path) -> None:
    whole = model.read_bytes()
    os.truncate(model, 1000)
    assert source_fault(str(model))
    model.write_bytes(whole)
    assert source_fault(str(model)) == ""


def test_a_split_model_is_complete_with_all_its_parts(tmp_path: Path) -> None:
    first, second = write_split_model(tmp_path)
    assert source_fault(str(first)) == ""
    assert "name the first part" in source_fault(str(second))


def test_a_split_model_short_of_a_part_is_not_complete(tmp_path: Path) -> None:
    first, _, last = write_split_model(tmp_path, 3)
    os.truncate(last, last.stat().st_size - 1)
    assert "is not complete" in source_fault(str(first))
    last.unlink()
    assert "00003-of-00003" in source_fault(str(first))


def test_a_part_of_another_model_is_noticed(tmp_path: Path) -> None:
    first, second = write_split_model(tmp_path)
    second.write_bytes(first.read_bytes())
    assert "says it is part 1" in source_fault(str(first))
