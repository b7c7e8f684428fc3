"""Reads who imports what, whatever way it is written."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULES = tuple(sorted(path.relative_to(ROOT) for path in (ROOT / "lib").glob("*/*.py")))
DOORS = tuple(sorted(path.relative_to(ROOT) for path in ROOT.glob("llmgw_*.py")))


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the tree, as text; tests make their own."""

    name: str               # lib.rules.placement; lib.rules for a room's __init__
    text: str
    is_package: bool = False


def read_module(path: Path) -> Module:
    """A module by its path from the root."""
    parts = path.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), (ROOT / path).read_text(encoding="utf-8"), is_package)


def imported(module: Module) -> Iterator[str]:
    """Every dotted name it imports: `import a.b`, `from a.b import c` (as a.b.c), `from a import b`, relative; at any depth."""
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what a `from` statement names."""
    if not node.level:
        return node.module or ""
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def rooms_imported(module: Module) -> set[str]:
    """The rooms of lib it imports from; a bare `import lib`, which may reach into any, is a room `lib` that nobody may import."""
    return {name.split(".")[1] if "." in name else name for name in imported(module) if name.split(".")[0] == "lib"}
