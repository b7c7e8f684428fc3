"""The floor plan of docs/architecture.md, as a test: imports go down only."""

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.unit.house.imports import DOORS, MODULES, ROOT, Module, imported, read_module, rooms_imported

MAY_IMPORT = {"base": "", "model": "base", "net": "base", "pki": "base", "rules": "base model",
              "store": "base model", "host": "base model", "cli": "base model", "engines": "base model net",
              "remote": "base model host", "control": "base model net rules store pki engines",
              "agent": "base model net rules host engines", "shim": "base model net host engines",
              "gateway": "base model net rules host", "operator": "base model net cli pki engines host",
              "provision": "base model host remote cli",
              "onboard": "base model net host pki rules remote engines cli"}
PURE = ("rules", "model")
IMPURE = {"os", "time", "random", "socket", "sqlite3", "subprocess", "threading", "logging"}
# Everything that is not the standard library, and the rooms that may know of it.
THIRD_PARTY = {"cryptography": ("pki",), "requests": ("net",), "urllib3": ("net",),
               "tomli_w": ("operator", "agent", "control", "onboard")}
FOR_ANOTHER_MACHINE = Path("lib/onboard/node_program.py")      # travels as text, and runs where none of our rooms are


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_room_imports_only_the_rooms_it_may(path: Path) -> None:
    room = path.parent.name
    strangers = rooms_imported(read_module(path)) - {room, *MAY_IMPORT[room].split()}
    assert not strangers, f"{path}: {room} may not import {', '.join(sorted(strangers))}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_room_imports_a_door(path: Path) -> None:
    assert not [name for name in imported(read_module(path)) if name.startswith("llmgw_")]


@pytest.mark.parametrize("path", [path for path in MODULES if path.parent.name in PURE], ids=str)
def test_decisions_and_nouns_know_no_clock_chance_socket_file_thread_or_log(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(read_module(path))} & IMPURE


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_commands_are_run_only_by_host_and_shim(path: Path) -> None:
    names = {name.split(".")[0] for name in imported(read_module(path))}
    assert "subprocess" not in names or path.parent.name in ("host", "shim") or path == FOR_ANOTHER_MACHINE


@pytest.mark.parametrize("path", [*MODULES, *DOORS], ids=str)
def test_what_is_not_standard_library_is_known_to_few(path: Path) -> None:
    for name in {name.split(".")[0] for name in imported(read_module(path))} - {"lib"} - sys.stdlib_module_names:
        assert path.parent.name in THIRD_PARTY.get(name, ()), f"{path} may not import {name}"


def test_every_room_is_in_the_plan_and_has_a_place_in_the_architecture_page() -> None:
    rooms = {path.name for path in (ROOT / "lib").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms <= MAY_IMPORT.keys()
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [room for room in MAY_IMPORT if f"`{room}`" not in page]


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_inside_a_room_no_two_modules_import_each_other(room: str) -> None:
    modules = {module.name: module for module in map(read_module, MODULES) if module.name.startswith(f"lib.{room}.")}
    graph = {name: {other for other in modules if other != name and _imports(module, other)} for name, module in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as err:
        pytest.fail(f"these import each other: {' -> '.join(err.args[1])}")


def _imports(module: Module, other: str) -> bool:
    return any(name == other or name.startswith(f"{other}.") for name in imported(module))


@pytest.mark.parametrize("text", ["from lib.store.db import Store", "import lib.store.db", "from lib import store",
                                  "from ..store import db", "from .. import store",
                                  "if TYPE_CHECKING:\n    from lib.store import db",
                                  "def late() -> None:\n    import lib.store as elsewhere"])
def test_no_way_of_writing_an_import_escapes_the_plan(text: str) -> None:
    assert rooms_imported(Module("lib.rules.placement", text)) == {"store"}


def test_importing_the_whole_house_is_no_way_in() -> None:
    assert rooms_imported(Module("lib.rules.placement", "import lib")) == {"lib"}


def test_relative_imports_of_a_room_itself_are_seen_as_its_own() -> None:
    assert rooms_imported(Module("lib.engines", "from . import sim\nfrom .sim import Sim", is_package=True)) == {"engines"}
