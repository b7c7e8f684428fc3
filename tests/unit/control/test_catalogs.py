"""The catalog file: followed, never believed half-written, and never replaced by something that does not parse."""

from pathlib import Path

import pytest

from lib.base.errors import ConfigError
from lib.control.catalogs import CatalogFile
from lib.model.committed import Committed

ONE = '[models.m]\n[profiles.p]\nmodel = "m"\nengine = "sim"\n'
TWO = ONE + '[profiles.q]\nmodel = "m"\nengine = "sim"\n'


def follow(path: Path, last_good: str = "") -> tuple[CatalogFile, list[str]]:
    kept: list[str] = []
    return CatalogFile(path, Committed(catalog=last_good), lambda text, _: kept.append(text)), kept


def test_a_changed_file_is_taken_once_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(ONE)
    catalog, kept = follow(path)
    assert list(catalog.current.profiles) == ["p"]
    path.write_text(TWO)
    assert not catalog.poll()               # it may still be being written
    assert catalog.poll()
    assert list(catalog.current.profiles) == ["p", "q"]
    assert not catalog.poll()
    assert kept == [ONE, TWO]


def test_a_file_that_grows_between_two_looks_is_not_read_in_between(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(TWO)
    catalog, _ = follow(path)
    path.write_text(ONE)                    # the first half of an edit that is a valid catalog by itself
    assert not catalog.poll()
    path.write_text(TWO + "# done\n")
    assert not catalog.poll()
    assert catalog.poll()
    assert list(catalog.current.profiles) == ["p", "q"]


def test_a_catalog_that_does_not_parse_leaves_the_last_good_one_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(ONE)
    catalog, kept = follow(path)
    for bad in ("[profiles.", '[profiles.p]\nmodel = "gone"\nengine = "sim"\n', "\0"):
        path.write_text(bad)
        catalog.poll()
        assert not catalog.poll()
        assert list(catalog.current.profiles) == ["p"]
        assert str(path) in catalog.fault
    path.unlink()
    catalog.poll()
    catalog.poll()
    assert "cannot be read" in catalog.fault
    path.write_text(ONE + "\n")
    catalog.poll()
    assert catalog.poll()
    assert catalog.fault == ""
    assert kept == [ONE, ONE + "\n"]


def test_a_bad_file_at_the_start_leaves_what_the_state_file_knows(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text("nonsense")
    catalog, kept = follow(path, last_good=TWO)
    assert list(catalog.current.profiles) == ["p", "q"]
    assert kept == []
    assert "catalog.toml:1" in catalog.fault


def test_a_file_without_a_profile_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(ONE)
    catalog, kept = follow(path)
    for empty in ("", "# all gone\n", "[models.m]\n"):
        path.write_text(empty)
        catalog.poll()
        assert not catalog.poll()
        assert list(catalog.current.profiles) == ["p"]
        assert "no profile is left" in catalog.fault
    catalog.take(catalog.check("", "x"), "")            # said outright, by `ctl catalog apply`
    assert (catalog.current.profiles, catalog.fault, kept) == ({}, "", [ONE])


@pytest.mark.parametrize("file", ["[profiles.", "", ONE.replace("sim", "newer-engine")])
def test_where_neither_file_nor_state_can_be_used_nothing_begins(tmp_path: Path, file: str) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(file)
    with pytest.raises(ConfigError, match="neither this file nor the state file"):
        follow(path, last_good=ONE.replace("sim", "newer-engine"))
    path.write_text(ONE)
    catalog, kept = follow(path, last_good=ONE.replace("sim", "newer-engine"))
    assert (list(catalog.current.profiles), kept) == (["p"], [ONE])


def test_an_apply_that_was_committed_and_not_written_is_written_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(ONE)
    before = follow(path)[0].digest()
    catalog = CatalogFile(path, Committed(catalog=TWO, catalog_file=before), lambda *_: None)
    assert list(catalog.current.profiles) == ["p", "q"]
    assert path.read_text() == TWO


def test_a_file_edited_while_nobody_looked_wins_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(TWO)
    seen = follow(path)[0].digest()
    path.write_text(ONE)
    assert list(CatalogFile(path, Committed(catalog=TWO, catalog_file=seen), lambda *_: None).current.profiles) == ["p"]
