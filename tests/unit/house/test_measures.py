"""The measures of the house: small modules, small functions, everything annotated, every room named."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.imports import DOORS, MODULES, ROOT

BUILDERS = tuple(sorted(path.relative_to(ROOT) for path in (ROOT / "packaging").glob("*.py") if path.name != "main_template.py"))
OURS = (*MODULES, *DOORS, *BUILDERS)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


@pytest.mark.parametrize("path", OURS, ids=str)
def test_a_module_says_which_room_it_is_in(path: Path) -> None:
    room = path.parent.name or "root"
    text = ast.get_docstring(tree(path)) or ""
    assert f"Room: {room}" in text or (path.name == "__init__.py" and f"Room {room}:" in text)


@pytest.mark.parametrize("path", OURS, ids=str)
def test_a_module_has_at_most_400_lines(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", OURS, ids=str)
def test_no_function_has_more_than_60_lines(path: Path) -> None:
    assert not [f"{path}:{one.lineno} {one.name}: {length(one)}" for one in functions(path) if length(one) > 60]


def test_half_of_all_functions_have_at_most_10_lines() -> None:
    assert statistics.median(length(function) for path in OURS for function in functions(path)) <= 10


@pytest.mark.parametrize("path", OURS, ids=str)
def test_everything_is_annotated(path: Path) -> None:
    for function in functions(path):
        words = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        bare = [word.arg for word in words if word.annotation is None and word.arg not in ("self", "cls")]
        assert (function.returns is not None, bare) == (True, []), f"{path}:{function.lineno} {function.name}"
