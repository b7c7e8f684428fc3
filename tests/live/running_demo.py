"""The demo as a cluster to test against: the built .pyz files, real processes, brought back by hand as an operator would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.eventually import eventually

CLEAN = {name: value for name, value in os.environ.items() if name not in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")}


class RunningDemo:
    """`llmgw-ctl.pyz demo --dir DIR`, up and listening."""

    def __init__(self, dist: Path, directory: Path, *flags: str) -> None:
        self.dist, self.directory = dist, directory
        self._extra: list[subprocess.Popen[bytes]] = []
        self.log = directory.with_suffix(".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(dist / "llmgw-ctl.pyz"), "demo", "--dir", str(directory), *flags], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=CLEAN)
        self.facts: dict[str, Any] = eventually(self._read_facts, 60)

    def _read_facts(self) -> dict[str, Any]:
        assert self.process.poll() is None, self.log.read_text()
        facts: dict[str, Any] = json.loads((self.directory / "demo.json").read_text())
        return facts

    @property
    def url(self) -> str:
        return str(self.facts["router_url"])

    @property
    def key(self) -> str:
        return str(self.facts["api_key"])

    @property
    def catalog(self) -> Path:
        return Path(self.facts["ctl_dir"]) / "catalog.toml"

    def ctl(self, *words: str, code: int = 0) -> str:
        """What `llmgw-ctl --dir CTL_DIR WORDS` prints; AssertionError unless it ends with `code`."""
        done = subprocess.run([sys.executable, str(self.dist / "llmgw-ctl.pyz"), "--dir", self.facts["ctl_dir"], *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=CLEAN, check=False)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def listing(self, *words: str) -> list[dict[str, Any]]:
        """A listing as objects."""
        rows: list[dict[str, Any]] = json.loads(self.ctl(*words, "-o", "json"))
        return rows

    def replicas(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.listing("replicas")}

    def all_ready(self) -> dict[str, dict[str, Any]]:
        """The replicas once there are some and all are ready."""
        def look() -> dict[str, dict[str, Any]]:
            rows = self.replicas()
            assert rows, "no replica yet"
            assert all(row["state"] == "ready" for row in rows.values()), rows
            return rows
        return eventually(look, 90, every_s=0.2)

    def start(self, role: str, *words: str) -> int:
        """Bring a role back by hand; its pid."""
        with open(self.directory / f"{role}-again.log", "ab") as log:
            child = subprocess.Popen([sys.executable, str(self.dist / f"llmgw-{role}.pyz"), *words], stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log, env=CLEAN)
        self._extra.append(child)
        return child.pid

    def start_control(self) -> int:
        return self.start("ctl", "--dir", self.facts["ctl_dir"], "serve")

    def start_agent(self, node: str) -> int:
        return self.start("agent", "run", "--config", self.facts["nodes"][node]["config"])

    def shards_dir(self, node: str) -> Path:
        """Where the shards of a node live."""
        return next(Path(self.facts["nodes"][node]["config"]).parent.rglob("shards"))

    def close(self) -> None:
        """Ctrl-C, as a person would; the demo ends everything, whoever started it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            for child in self._extra:
                child.kill()
                child.wait()

    def strays(self) -> list[str]:
        """Processes that still belong to this demo."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.directory).encode() in (entry / "cmdline").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


def killed(pid: int) -> None:
    """SIGKILL, and wait until the process is gone or only waits to be collected."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid), 10)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def pids(replicas: dict[str, dict[str, Any]]) -> dict[tuple[str, int], int]:
    """(replica, rank) to the engine's pid."""
    return {(row["id"], shard["rank"]): shard["pid"] for row in replicas.values() for shard in row["shards"]}


@contextlib.contextmanager
def running_demo(dist: Path, directory: Path, *flags: str) -> Iterator[RunningDemo]:
    """A demo for as long as the block lasts; nothing of it is left running afterwards."""
    demo = RunningDemo(dist, directory, *flags)
    try:
        yield demo
    finally:
        demo.close()
    deadline = time.monotonic() + 10
    while demo.strays() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not demo.strays()
