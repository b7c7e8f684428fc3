"""The engine's output: bounded, private, and never a reason to wait."""

import os
from pathlib import Path

import pytest

from lib.shim.logbook import TAIL_LINES, LogBook, RotatedFile, Tail
from tests.eventually import eventually


def test_the_tail_holds_the_last_lines_however_they_were_cut() -> None:
    text = "".join(f"line {number}\n" for number in range(100)).encode() + b"unfinished"
    whole, bytewise = Tail(), Tail()
    whole.feed(text)
    for index in range(len(text)):
        bytewise.feed(text[index:index + 1])
    assert whole.lines() == bytewise.lines()
    assert len(whole.lines()) == TAIL_LINES
    assert whole.lines()[-2:] == ("line 99", "unfinished")


def test_progress_bars_and_colours_become_plain_lines() -> None:
    tail = Tail()
    tail.feed(b"loading 10%\rloading 20%\r\x1b[31mred\x1b[0m \x07\xff\n\n   \n")
    assert tail.lines() == ("loading 10%", "loading 20%", "red �")


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"x" * 100_000)
    assert len(tail.lines()) == 1
    assert len(tail.lines()[0]) <= 2000


def test_two_files_hold_the_newest_output_and_both_are_bounded(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", tmp_path / "log.1", 1000)
    for number in range(100):
        file.write(f"{number:099d}\n".encode())
    file.close()
    text = (tmp_path / "log.1").read_text() + (tmp_path / "log").read_text()
    assert text.endswith(f"{99:099d}\n")
    assert 1000 < len(text) <= 2000
    assert [int(line) for line in text.splitlines()] == list(range(100 - len(text) // 100, 100))
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("log", "log.1")} == {0o600}


@pytest.mark.parametrize("meddle", [
    lambda log: log.unlink(), lambda log: log.rename(log.with_suffix(".moved")), lambda log: os.truncate(log, 0),
], ids=["removed", "renamed", "emptied"])
def test_somebody_elses_rotation_does_not_lose_the_writer(tmp_path: Path, meddle: object) -> None:
    file = RotatedFile(tmp_path / "log", tmp_path / "log.1", 10_000)
    file.write(b"before\n")
    assert callable(meddle)
    meddle(tmp_path / "log")

    def written() -> bool:
        file.write(b"after\n")
        return (tmp_path / "log").exists() and "after" in (tmp_path / "log").read_text()
    eventually(written, 3.0, 0.2)
    assert "before" not in (tmp_path / "log").read_text()
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_what_the_disk_does_not_take_is_dropped_and_counted_and_said_later(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    file = RotatedFile(tmp_path / "log", tmp_path / "log.1", 10_000)
    file.write(b"lost\n")
    file.write(b"lost too\n")
    assert file.dropped_total == 14
    (tmp_path / "log").unlink()
    file.close()
    file.write(b"kept\n")
    file.close()
    assert (tmp_path / "log").read_text() == "\n[14 bytes of output were lost here: the disk did not take them]\nkept\n"


def test_a_directory_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "gone" / "log", tmp_path / "gone" / "log.1", 1000)
    file.write(b"lost")
    assert file.dropped_total == 4


def test_a_pipe_is_carried_to_the_file_until_its_last_writer_has_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    book = LogBook(RotatedFile(tmp_path / "log", tmp_path / "log.1", 1_000_000))
    book.start(reader)
    os.write(writer, b"first\nlast")
    eventually(lambda: book.last_line() == "last")
    os.close(writer)
    book.finish(5)
    assert (tmp_path / "log").read_text() == "first\nlast"
