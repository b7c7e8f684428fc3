"""Starting .pyz files the way a bare machine does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.programs import RUN

NOWHERE = f"{__file__}/home"            # below a file nobody can make a directory, not even root
PROGRAMS = ("llmgw-ctl", "llmgw-agent", "llmgw-router", "llmgw-onboard-node", "llmgw-provision-node")


def _system_python() -> str:
    """The machine's own Python where it is new enough: it has none of the packages a test environment has."""
    check = ["/usr/bin/python3", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    usable = os.path.exists(check[0]) and subprocess.run(check, check=False).returncode == 0
    return check[0] if usable else sys.executable


PYTHON = _system_python()


def start(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`python3 -IS WORDS` with hardly anything in its environment but `env`."""
    return subprocess.Popen([PYTHON, "-IS", *map(str, words)], cwd=cwd,
                            env={"PATH": "/usr/bin:/bin", "HOME": NOWHERE, RUN: os.environ[RUN], **(env or {})},
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`start`, to its end."""
    with start(*words, env=env, cwd=cwd) as process:
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, err)
