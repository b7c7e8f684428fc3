"""Lint and strict typing are tests like any other."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from tests.unit.house.imports import ROOT


def run_module(*words: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed here; ./build.sh test has it")
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ruff_finds_nothing() -> None:
    done = run_module("ruff", "check", "--output-format", "concise", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_type_is_right_in_strict_mode() -> None:
    done = run_module("mypy", "--cache-dir", "build/mypy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["build.sh", "packaging/llmgw.sh", ".ci/run"])
def test_shell_scripts_parse_and_can_be_run(script: str) -> None:
    path = ROOT / script
    shell = shutil.which("bash" if "bash" in path.read_text().splitlines()[0] else "sh")
    assert shell
    assert subprocess.run([shell, "-n", str(path)], capture_output=True, check=False).stderr == b""
    assert path.stat().st_mode & 0o111 == 0o111
