"""The program that travels: what an old Python makes of it, and its own small parts."""

import ast
import base64
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from lib.onboard import node_program
from lib.remote import ssh

TEXT = files("lib.onboard").joinpath("node_program.py").read_text(encoding="utf-8")


def test_a_python_3_6_can_read_it() -> None:
    ast.parse(TEXT, feature_version=(3, 6))


def test_it_needs_nothing_of_ours() -> None:
    names = {alias.name for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_both_sides_start_it_in_the_same_way() -> None:
    assert node_program.BOOT == ssh.BOOT


def test_an_old_python_hands_over_to_one_that_fits() -> None:
    data = base64.b64encode(json.dumps({"do": "last_lines"}).encode()).decode()
    program = base64.b64encode(TEXT.encode()).decode()
    old = f"import sys; sys.version_info = (3, 9, 2, 'final', 0); {ssh.BOOT}"
    done = subprocess.run([sys.executable, "-c", old], input=f"{program}\n{data}\n", text=True, capture_output=True, check=True)
    assert "agent_run" in json.loads(done.stdout.partition("llmgw: ")[2]), done.stderr


def test_a_broken_request_is_answered_by_no_mark() -> None:
    done = subprocess.run([sys.executable, "-c", ssh.BOOT], input="cHJpbnQoMSk=\n", text=True, capture_output=True, check=True)
    assert done.stdout == "1\n"


def test_a_file_is_replaced_only_where_it_differs(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "file")
    assert node_program.put(path, b"one", 0o600)
    assert not node_program.put(path, b"one", 0o600)
    assert node_program.put(path, b"one", 0o644)
    assert node_program.put(path, b"two", 0o644)
    assert os.listdir(tmp_path / "deep") == ["file"]


def test_a_link_is_swapped_only_where_it_differs(tmp_path: Path) -> None:
    link = str(tmp_path / "link")
    assert node_program.point(link, "a")
    assert not node_program.point(link, "a")
    (tmp_path / "link.new").write_text("left by a crash")
    assert node_program.point(link, "b")
    assert os.readlink(link) == "b"


def test_a_program_that_cannot_run_is_an_answer_and_not_an_error(tmp_path: Path) -> None:
    assert node_program.run(["/no/such/program"])["err"] == "No such file or directory"
    assert node_program.run(["sleep", "5"], timeout=0.1)["status"] is None
    assert node_program.run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == {"status": 3, "out": "out\n", "err": "err\n"}
