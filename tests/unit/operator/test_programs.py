"""Finding the other programs of this build."""

import sys
from pathlib import Path

import pytest

from lib.base.errors import NotFound
from lib.operator.programs import command, typed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def as_program(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "demo"])


def test_a_pyz_runs_the_pyz_beside_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(monkeypatch, here / "llmgw-ctl.pyz")
    (here / "llmgw-agent.pyz").touch()
    (here / "llmgw_agent.py").touch()
    assert command("llmgw-agent") == (sys.executable, str(here / "llmgw-agent.pyz"))


def test_a_source_tree_runs_its_doors(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(monkeypatch, here / "llmgw_ctl.py")
    (here / "llmgw-agent.pyz").touch()
    (here / "llmgw_agent.py").touch()
    assert command("llmgw-agent") == (sys.executable, str(here / "llmgw_agent.py"))


def test_a_missing_one_is_named_with_the_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(monkeypatch, here / "llmgw-ctl.pyz")
    with pytest.raises(NotFound, match=rf"llmgw-router\.pyz is not in {here}"):
        command("llmgw-router")


def test_what_to_type_is_the_name_where_the_shell_finds_it_and_else_the_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(monkeypatch, here / "llmgw-ctl.pyz")
    assert typed() == str(here / "llmgw-ctl.pyz")
    (here / "bin").mkdir()
    (here / "bin" / "llmgw-ctl").symlink_to(here / "llmgw-ctl.pyz")
    assert typed() == "llmgw-ctl"
