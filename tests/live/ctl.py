"""Running `llmgw-ctl` out of the source tree, and control planes to run it against."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, str(ROOT / "llmgw_ctl.py"))


def ctl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`llmgw-ctl WORDS` to its end."""
    return subprocess.run([*PROGRAM, *map(str, words)], input="", text=True, capture_output=True, timeout=60, check=False)


def ask(directory: Path, *words: str) -> Any:
    """What `llmgw-ctl --dir DIRECTORY WORDS -o json` answers."""
    done = ctl("--dir", directory, *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def init(directory: Path, cluster: str = "lab") -> Path:
    """A new installation that listens on a free port of loopback."""
    done = ctl("--dir", directory, "init", "--cluster", cluster, "--listen", f"127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stderr
    return directory


@contextmanager
def serving(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A control plane that answers; it is stopped at the end."""
    log = directory / "serve.log"
    with open(log, "a", encoding="utf-8") as output, \
            subprocess.Popen([*PROGRAM, "--dir", str(directory), "serve"], stderr=output, text=True) as process:
        try:
            eventually(lambda: ctl("--dir", directory, "status").returncode == 0 or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.terminate()
            process.wait(20)
