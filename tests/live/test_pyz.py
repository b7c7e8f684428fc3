"""Each .pyz, copied alone to an empty directory, runs on a bare Python; and the build gives the same bytes anywhere."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.live.pyz import NOWHERE, PROGRAMS, PYTHON, run
from tests.programs import ROOT

TREE = ("lib", "docs", "packaging", "requirements.lock", "build.sh")


@pytest.fixture
def alone(dist: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """One program, copied alone into an empty directory."""
    (tmp_path / "alone").mkdir()
    return Path(shutil.copy(dist / f"{request.param}.pyz", tmp_path / "alone"))


@pytest.mark.parametrize("alone", PROGRAMS, indirect=True)
def test_a_program_copied_alone_helps_and_tells_its_version(alone: Path, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    helped, word, flag = (run(alone, what, cwd=alone.parent, env=env) for what in ("--help", "version", "--version"))
    assert (helped.returncode, word.returncode, flag.returncode) == (0, 0, 0), helped.stderr + word.stderr + flag.stderr
    assert helped.stdout.lower().startswith("usage")
    assert word.stdout == flag.stdout
    assert word.stdout.strip()
    assert [path.name for path in alone.parent.iterdir()] == [alone.name]


def test_the_dispatcher_runs_the_role_it_is_told_and_keeps_its_exit_code(dist: Path, tmp_path: Path) -> None:
    link = tmp_path / "llmgw"
    link.symlink_to(dist / "llmgw")
    env = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([link, "provision", "version"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:20]) == (0, "llmgw-provision-node")
    assert subprocess.run([link, "provision", "x"], env=env, capture_output=True, check=False).returncode == 2
    wrong = subprocess.run([link, "agnet"], env=env, capture_output=True, text=True, check=False)
    assert (wrong.returncode, "no role is called 'agnet'" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_first_file_parses_on_python_3_6_and_nothing_is_compressed(program: str, dist: Path) -> None:
    with zipfile.ZipFile(dist / f"{program}.pyz") as archive:
        ast.parse(archive.read("__main__.py"), feature_version=(3, 6))
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert not [name for name in archive.namelist() if "__pycache__" in name or name.endswith((".pyc", ".so"))]
    assert (dist / f"{program}.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\n")


OLD_PYTHONS = [path for version in ("2.7", "3.6", "3.10")
               for path in (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")]


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python older than 3.11 on this machine")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parts[-3])
def test_an_old_python_gets_one_clear_sentence(python: Path, dist: Path) -> None:
    done = subprocess.run([python, dist / "llmgw-agent.pyz", "version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("llmgw-agent needs Python 3.11 or newer and this is Python ")
    assert len(done.stderr.splitlines()) == 2


def test_onboarding_carries_the_agent_as_built(dist: Path) -> None:
    with zipfile.ZipFile(dist / "llmgw-onboard-node.pyz") as archive:
        assert archive.read("carried/llmgw-agent.pyz") == (dist / "llmgw-agent.pyz").read_bytes()


def test_requests_inside_trusts_nobody_by_default(dist: Path) -> None:
    code = "import sys, os; sys.path.insert(0, sys.argv[1]); import requests; print(os.path.exists(requests.certs.where()))"
    done = run("-c", code, dist / "llmgw-agent.pyz")
    assert (done.stdout, done.stderr) == ("False\n", "")


def copy_of_the_tree(target: Path) -> Path:
    for name in (*TREE, *(path.name for path in ROOT.glob("llmgw_*.py"))):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)
    shutil.copytree(ROOT / "build" / "wheels", target / "build" / "wheels")      # the lock's hashes make them the same anywhere
    return target


def built(tree: Path, umask: int, **env: str) -> dict[str, str]:
    """What a build in `tree` gives: names and hashes."""
    subprocess.run(["sh", "-c", f"umask {umask:03o} && exec ./build.sh"], cwd=tree, check=True, capture_output=True,
                   env={"PATH": os.environ["PATH"], "HOME": NOWHERE, **env})
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in (tree / "dist").iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tree / "dist").iterdir()}


def test_two_trees_give_the_same_bytes_whatever_path_umask_time_zone_and_leftovers(dist: Path, tmp_path: Path) -> None:
    one = copy_of_the_tree(tmp_path / "one")
    two = copy_of_the_tree(tmp_path / "a much longer path" / "with spaces" / "two")
    (two / "lib" / "rules" / "__pycache__").mkdir()
    for leftover in ("__pycache__/view.cpython-311.pyc", "view.py~", ".view.py.swp", "view.orig", ".hidden.py"):
        (two / "lib" / "rules" / leftover).write_text("not mine")
    for path in two.rglob("*.py"):
        os.utime(path, (1, 1))
    first = built(one, 0o077, TZ="Pacific/Kiritimati", LC_ALL="C", PYTHON=PYTHON)
    second = built(two, 0o002, TZ="America/Adak", LC_ALL="C.UTF-8", PYTHONHASHSEED="7", PYTHON=sys.executable)
    assert first == second
    assert len(first) == 6


def test_a_damaged_cached_wheel_is_never_built_in(tmp_path: Path, dist: Path) -> None:
    tree = copy_of_the_tree(tmp_path / "tree")
    wheel = next((tree / "build" / "wheels" / "pure").glob("tomli_w*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"!")
    env = {"PATH": os.environ["PATH"], "HOME": NOWHERE, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    done = subprocess.run(["./build.sh"], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tomli-w" in done.stderr
    assert not (tree / "dist" / "llmgw-ctl.pyz").exists()
