"""The catalog file: followed, never believed half-written, and never replaced by something that does not parse."""

from pathlib import Path

from lib.control.catalogs import CatalogFile

ONE = '[models.m]\n[profiles.p]\nmodel = "m"\nengine = "sim"\n'
TWO = ONE + '[profiles.q]\nmodel = "m"\nengine = "sim"\n'


def follow(path: Path, last_good: str = "") -> tuple[CatalogFile, list[str]]:
    kept: list[str] = []
    return CatalogFile(path, last_good, kept.append), kept


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
