"""`llmgw-ctl` run to its end, and control planes to run it against."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.programs import free_port, program

PROGRAM = program("ctl")


def run(role: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """`llmgw-ROLE WORDS` to its end."""
    return subprocess.run([*program(role), *map(str, words)], input="", text=True, capture_output=True, timeout=60, check=False)


def ctl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`llmgw-ctl WORDS` to its end."""
    return run("ctl", *words)


def ask(directory: Path, *words: str) -> Any:
    """What `llmgw-ctl --dir DIRECTORY WORDS -o json` answers."""
    done = ctl("--dir", directory, *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def init(directory: Path, cluster: str = "lab", *more: str) -> Path:
    """A new installation that listens on a free port of loopback."""
    done = ctl("--dir", directory, "init", "--cluster", cluster, "--listen", f"127.0.0.1:{free_port()}", *more)
    assert done.returncode == 0, done.stderr
    return directory


@contextmanager
def serving(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A control plane that answers; it is stopped at the end, and stops well."""
    log = directory / "serve.log"
    with open(log, "a", encoding="utf-8") as output, \
            subprocess.Popen([*PROGRAM, "--dir", str(directory), "serve"], stdin=subprocess.DEVNULL, stderr=output,
                             text=True) as process:
        try:
            eventually(lambda: ctl("--dir", directory, "status").returncode == 0 or process.poll() is not None, 30)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.terminate()
            process.wait(20)
    assert process.returncode == 0, log.read_text()
