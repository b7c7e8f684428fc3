"""What the documents promise about themselves: the two commands, a page a role, no dead link, no word about anything else."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.imports import ROOT

PAGES = ("ctl", "agent", "router", "onboard", "provision")
SUFFIXES = {".py", ".md", ".sh", ".toml", ".lock", ".in", ".txt", ""}
# Spelt in pieces, so that this file does not find itself.
NOT_OURS = [re.compile(first + second) for first, second in (
    ("py", r"pi\.org"), ("python", "hosted"), ("registry", r"\.npm"), ("/wo", "rk/"), ("/tmp/", "plan"),
    (r"\biss", r"ue #?\d"), ("/opt/", "pypi"))]


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def own_files() -> Iterator[Path]:
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and path.suffix in SUFFIXES and parts[0] not in ("build", "dist", ".git") and "cache" not in str(parts):
            yield path


def test_the_readme_names_the_two_commands_before_anything_else_to_type() -> None:
    commands = re.findall(r"^\s*(\./build\.sh.*?)\s*(?:#.*)?$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands[:2] == ["./build.sh", "./build.sh demo"]


@pytest.mark.parametrize("name", PAGES)
def test_every_role_has_a_page_and_the_readme_leads_to_it(name: str) -> None:
    assert (ROOT / "docs" / f"{name}.md").is_file()
    assert f"docs/{name}.md" in (ROOT / "README.md").read_text()


def test_no_link_of_a_document_leads_nowhere() -> None:
    for page in documents():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_project_speaks_of_itself_alone() -> None:
    for path in own_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for word in NOT_OURS:
            assert not word.search(text), f"{path.relative_to(ROOT)} says {word.search(text)}"


def test_the_changelog_names_the_version_of_this_build() -> None:
    version = re.search(r'VERSION = "(.+)"', (ROOT / "lib" / "base" / "version.py").read_text())
    assert version
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_what_ships_has_the_versions_that_are_tested() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z][\w-]*)==([^\s;]+)", lock, flags=re.MULTILINE):
        pins.setdefault(name, set()).add(version)
    assert not {name: versions for name, versions in pins.items() if len(versions) > 1}
