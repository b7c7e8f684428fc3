"""A lab node: Debian booted by its own systemd, on a throw-away copy of the image, in the network of a lab host."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.eventually import eventually
from tests.lab.image import key
from tests.lab.network import ENVIRONMENT, Host

CGROUPS = tuple(Path(place) for place in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"))
SSH = ("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR",
       "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")


@dataclass(frozen=True)
class Machine:
    """A node that is up. `control` is the lab host from which it is talked to."""

    name: str
    host: Host
    control: Host
    process: "subprocess.Popen[bytes]"

    @property
    def address(self) -> str:
        return self.host.address

    def attempt(self, command: str, *, text: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command there, as root, over ssh."""
        return self.control.run(*SSH, "-i", key(), f"root@{self.address}", command, text=text, timeout=timeout)

    def run(self, command: str, *, text: str = "", timeout: float = 60) -> str:
        """What the command prints; it has to succeed."""
        done = self.attempt(command, text=text, timeout=timeout)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, content: str, mode: str = "644") -> None:
        """A file there."""
        self.run(f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", text=content)


@contextmanager
def machine(image: Path, name: str, host: Host, control: Host, *, binds: tuple[str, ...] = ()) -> Iterator[Machine]:
    """A node, up and reachable by ssh; switched off at the end. `binds`: OURS:THEIRS, directories that it sees, read-only."""
    group = f"{host.namespace}-node"
    words = ["systemd-nspawn", "--quiet", "--directory", str(image), "--boot", "--volatile=overlay", "--register=no",
             "--keep-unit", "--console=pipe", "--link-journal=no", f"--network-namespace-path=/run/netns/{host.namespace}",
             f"--machine={name}", f"--hostname={name}", "--resolv-conf=off", "--timezone=off",
             *(f"--bind-ro={path}" for path in binds)]
    places = [place / group for place in CGROUPS if (place / "cgroup.procs").exists()]
    for place in places:                   # a group of its own: else all nodes share one, and stopping a service stops others'
        place.mkdir(exist_ok=True)
    process = subprocess.Popen(_in_groups(words, places), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True)
    made = Machine(name, host, control, process)
    try:
        eventually(lambda: process.poll() is not None or made.attempt("true").returncode == 0, timeout_s=60, every_s=0.2)
        assert process.poll() is None, f"{name} did not boot"
        yield made
    finally:
        _off(process)
        _remove(places)


def _in_groups(words: list[str], places: list[Path]) -> list[str]:
    """A command line that first enters its cgroups."""
    entering = "".join(f"echo $$ > {place}/cgroup.procs; " for place in places)
    return ["sh", "-c", f'{entering}exec "$@"', "sh", *words]


def _off(process: "subprocess.Popen[bytes]") -> None:
    """Pull the plug: kill the node's init, then its keeper."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()
    for pid in [*map(int, children), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(20)


def _remove(places: list[Path]) -> None:
    def gone() -> bool:
        for place in places:
            for inner in [*sorted((each for each in place.rglob("*") if each.is_dir()), reverse=True), place]:
                with suppress(OSError):
                    inner.rmdir()
        return not any(place.exists() for place in places)
    eventually(gone, timeout_s=10)
