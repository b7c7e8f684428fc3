"""A demo that runs, and what is left of one that has ended."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.live.ctl import PROGRAM, ROOT

COMING_UP_S = 120.0


def door(role: str) -> tuple[str, str]:
    """The words that run `llmgw-ROLE` out of the source tree."""
    return sys.executable, str(ROOT / f"llmgw_{role}.py")


class RunningDemo:
    """`llmgw-ctl demo --dir DIR` once it has said that it is up."""

    def __init__(self, directory: Path, process: "subprocess.Popen[bytes]") -> None:
        self.directory, self.process, self.ctl_dir = directory, process, directory / "ctl"
        self.by_hand: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        """Start a role by hand; the demo ends it like its own."""
        with open(self.directory / "by-hand.log", "ab") as log:
            self.by_hand.append(subprocess.Popen(words, stdout=log, stderr=log))

    @property
    def said(self) -> str:
        return (self.directory.parent / "said").read_text()

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "demo.json").read_text())
        return found


@contextmanager
def running_demo(directory: Path, *words: str) -> Iterator[RunningDemo]:
    """A demo in `directory`, which is sent SIGTERM at the end, and then leaves nothing running."""
    with open(directory.parent / "said", "wb") as said, \
            subprocess.Popen([*PROGRAM, "demo", "--dir", str(directory), *words], stdout=said, stderr=said) as process:
        demo = RunningDemo(directory, process)
        try:
            eventually(lambda: "Ctrl-C ends everything" in demo.said or process.poll() is not None, COMING_UP_S)
            assert process.poll() is None, demo.said
            yield demo
        finally:
            process.terminate()
            for each in (process, *demo.by_hand):
                each.wait(60)
            assert processes_of(directory) == {}


def processes_of(directory: Path) -> dict[int, str]:
    """Every process that names the directory in its command line, works in it, or has it in its environment."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            everything = command + b"\0" + Path(f"/proc/{name}/environ").read_bytes() + os.readlink(f"/proc/{name}/cwd").encode()
        except OSError:                    # gone, or a kernel thread
            continue
        if os.fsencode(directory) in everything and int(name) != os.getpid():
            found[int(name)] = command.replace(b"\0", b" ").decode()
    return found
