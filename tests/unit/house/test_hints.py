"""A hint, and a command in a document, names a command that exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmgw_agent
import llmgw_ctl
import llmgw_router
from tests.unit.house.imports import DOORS, MODULES, ROOT

FIRST_WORDS = {program: {row.name.split()[0] for row in rows} | {"version", "help"} for program, rows in
               (("ctl", llmgw_ctl.COMMANDS), ("agent", llmgw_agent.COMMANDS), ("router", llmgw_router.COMMANDS))}
COMMAND = re.compile(r"(?<!-u )llmgw-(ctl|agent|router)(?:\.pyz)? (?:--\w+ \S+ )*([a-z][a-z-]*)")
PAGES = (Path("README.md"), Path("CHANGELOG.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")))


def hints(path: Path) -> Iterator[str]:
    """The constant parts of everything that is passed as `hint`."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            parts = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant))
            yield from (part for part in parts if isinstance(part, str))


def code(path: Path) -> Iterator[str]:
    """What stands in code blocks and between backticks."""
    yield from re.findall(r"```.*?```|`[^`\n]+`", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)


def unknown(texts: Iterator[str]) -> list[str]:
    found = (match for text in texts for match in COMMAND.finditer(text))
    return [match[0] for match in found if match[2] not in FIRST_WORDS[match[1]]]


@pytest.mark.parametrize("path", [*MODULES, *DOORS], ids=str)
def test_a_hint_names_no_command_that_does_not_exist(path: Path) -> None:
    assert not unknown(hints(path))


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_document_names_no_command_that_does_not_exist(path: Path) -> None:
    assert not unknown(code(path))


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert unknown(iter(["run llmgw-ctl --dir /etc/llmgw conjure first"])) == ["llmgw-ctl --dir /etc/llmgw conjure"]
