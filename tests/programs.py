"""The built programs, and the processes that tests start from them, in the environment that tests/conftest.py has cleaned."""

import os
import signal
import socket
import sys
from pathlib import Path

from tests.eventually import eventually

ROOT = Path(__file__).resolve().parents[1]
RUN = "LLMGW_TEST_RUN"                      # set for everything that this run of the tests starts
DIST = ROOT / "dist"                        # built by the fixture `dist`, which every live test uses


def program(role: str) -> tuple[str, str]:
    """The words that run `llmgw-ROLE.pyz`."""
    return sys.executable, str(DIST / f"llmgw-{role}.pyz")


def bare_environment() -> dict[str, str]:
    """What a program is given that inherits nothing: where its start-up cache is, and whose it is."""
    kept = ("XDG_CACHE_HOME", RUN)
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **{name: os.environ[name] for name in kept}}


def free_port() -> int:
    """A port of loopback that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes_naming(*texts: str | Path) -> dict[int, str]:
    """Every other process that names one of the texts in its command line, its environment or its working directory."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            everything = command + b"\0" + Path(f"/proc/{name}/environ").read_bytes() + os.readlink(f"/proc/{name}/cwd").encode()
        except OSError:                     # gone, or a kernel thread
            continue
        if int(name) != os.getpid() and any(os.fsencode(text) in everything for text in texts):
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and does not only wait to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def killed(pid: int) -> None:
    """SIGKILL, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid))
