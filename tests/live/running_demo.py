"""A demo that runs, as a cluster to test against; its roles are brought back by hand, as an operator would."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.live.ctl import PROGRAM, ask, ctl
from tests.programs import processes_naming, program

COMING_UP_S = 120.0
ENDING_S = 60.0


class RunningDemo:
    """`llmgw-ctl demo --dir DIRECTORY`, up once it has said so."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory, self.log = directory, directory.with_suffix(".log")
        self._by_hand: list[subprocess.Popen[bytes]] = []
        self.process = self._start(self.log, *PROGRAM, "demo", "--dir", str(directory), *flags)
        self.facts: dict[str, Any] = {}

    def up(self) -> None:
        """Back once every replica is ready; from then on `facts` holds what demo.json says."""
        eventually(lambda: "Ctrl-C ends everything" in self.said or self.process.poll() is not None, COMING_UP_S)
        assert self.process.poll() is None, self.said
        self.facts = json.loads((self.directory / "demo.json").read_text())

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def url(self) -> str:
        return str(self.facts["router_url"])

    @property
    def key(self) -> str:
        return str(self.facts["api_key"])

    @property
    def ctl_dir(self) -> Path:
        return Path(self.facts["ctl_dir"])

    @property
    def catalog(self) -> Path:
        return self.ctl_dir / "catalog.toml"

    def ctl(self, *words: str, code: int = 0) -> str:
        """What `llmgw-ctl --dir CTL_DIR WORDS` prints; AssertionError unless it ends with `code`."""
        done = ctl("--dir", self.ctl_dir, *words)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def listing(self, *words: str) -> list[dict[str, Any]]:
        """A listing as objects."""
        rows: list[dict[str, Any]] = ask(self.ctl_dir, *words)
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
        """Start a role by hand, which the demo has to end like its own; its pid."""
        self._by_hand.append(self._start(self.directory / f"{role}-again.log", *program(role), *words))
        return self._by_hand[-1].pid

    def start_control(self) -> int:
        return self.start("ctl", "--dir", str(self.ctl_dir), "serve")

    def start_agent(self, node: str) -> int:
        return self.start("agent", "run", "--config", self.facts["nodes"][node]["config"])

    def shards_dir(self, node: str) -> Path:
        """Where the shards of a node live."""
        return next(Path(self.facts["nodes"][node]["config"]).parent.rglob("shards"))

    def end(self) -> None:
        """Ctrl-C, as a person would, and everything is gone, whoever started it."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(ENDING_S)
            for child in self._by_hand:
                child.wait(ENDING_S)
            left = processes_naming(self.directory)
            assert (code, left) == (0, {}), self.said
        finally:
            self._kill_what_is_left()

    def _kill_what_is_left(self) -> None:
        """A demo that failed to end its processes must not disturb the tests after it."""
        for pid in processes_naming(self.directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in (self.process, *self._by_hand):
            child.wait()

    @staticmethod
    def _start(log: Path, *words: str) -> "subprocess.Popen[bytes]":
        with open(log, "ab") as output:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def pids(replicas: dict[str, dict[str, Any]]) -> dict[tuple[str, int], int]:
    """(replica, rank) to the engine's pid."""
    return {(row["id"], shard["rank"]): shard["pid"] for row in replicas.values() for shard in row["shards"]}


@contextmanager
def running_demo(directory: Path, *flags: str) -> Iterator[RunningDemo]:
    """A demo for as long as the block lasts; nothing of it is left running afterwards."""
    demo = RunningDemo(directory, *flags)
    try:
        demo.up()
        yield demo
    finally:
        demo.end()
