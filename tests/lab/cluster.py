"""A control plane on a lab host, its operator beside it, and a record of everything that crosses ssh."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.lab.image import ROOT, key
from tests.lab.network import ENVIRONMENT, Host
from tests.lab.node import Machine

PYTHON = "/usr/bin/python3"
PORT = 7443
_RECORDER = """\
#!/bin/bash
# ssh, with all that goes in and comes out kept in files.
set -o pipefail
name=$(mktemp {place}/XXXXXXXX)
printf '%s\\n' "$@" > "$name.argv"
tee "$name.in" | /usr/bin/ssh "$@" 2> "$name.err" | tee "$name.out"
status=${{PIPESTATUS[1]}}
cat "$name.err" >&2
exit "$status"
"""


@dataclass(frozen=True)
class Cluster:
    """The programs of `dist`, run on `host` for the installation in `directory`."""

    host: Host
    directory: Path
    dist: Path
    home: Path
    url: str

    def program(self, name: str, *words: str | Path, env: Mapping[str, str] | None = None,
                timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """A program of ours on the control host, to its end."""
        return self.host.run(PYTHON, "-IS", self.dist / f"{name}.pyz", *words, env={**self._environment(), **(env or {})},
                             timeout=timeout)

    def ctl(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """`llmgw-ctl --dir DIR WORDS`."""
        return self.program("llmgw-ctl", "--dir", self.directory, *words)

    def ask(self, *words: str) -> Any:
        """What `llmgw-ctl WORDS -o json` answers."""
        done = self.ctl(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def onboard(self, node: Machine, *words: str | Path, name: str = "", address: str = "", env: Mapping[str, str] | None = None,
                trust: tuple[str, ...] = ("--tofu",)) -> subprocess.CompletedProcess[str]:
        """`llmgw-onboard-node` for this machine."""
        given: list[str | Path] = ["--dir", self.directory, "--node", name or node.name, "--addr", address or node.address,
                                   "--server", self.url, "--ssh-key", key(), *trust, "--wait", "60"]
        return self.program("llmgw-onboard-node", *given, *words, env=env)

    def node(self, name: str) -> dict[str, Any]:
        """A node's row of `ctl nodes`."""
        return next(row for row in self.ask("nodes") if row["id"] == name)

    @contextmanager
    def recorded(self) -> Iterator[tuple[Mapping[str, str], Path]]:
        """(environment in which `ssh` keeps what crosses it, the directory it keeps it in)."""
        place = self.home / f"record{len(list(self.home.glob('record*')))}"
        (place / "bin").mkdir(parents=True)
        recorder = place / "bin" / "ssh"
        recorder.write_text(_RECORDER.format(place=place))
        recorder.chmod(0o755)
        yield {"PATH": f"{place / 'bin'}:{ENVIRONMENT['PATH']}"}, place

    def _environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "XDG_CACHE_HOME": str(ROOT / "build" / "cache")}


@contextmanager
def cluster(host: Host, dist: Path, work: Path) -> Iterator[Cluster]:
    """A control plane that answers, on `host`."""
    url = f"https://{host.address}:{PORT}"
    shutil.copytree(dist, work / "dist")    # a build beside the tests must not change what is tested
    made = Cluster(host, work / "etc", work / "dist", work, url)
    done = made.ctl("init", "--cluster", "lab", "--listen", f"{host.address}:{PORT}", "--address", host.address)
    assert done.returncode == 0, done.stderr
    with serving(made):
        yield made


@contextmanager
def serving(made: Cluster) -> Iterator[None]:
    """Its control plane, until the end of the `with`."""
    words = made.host.words([PYTHON, "-IS", made.dist / "llmgw-ctl.pyz", "--dir", made.directory, "serve"])
    with open(made.home / "serve.log", "a", encoding="utf-8") as log, \
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             env={**ENVIRONMENT, **made._environment(), "TZ": os.environ.get("TZ", "UTC")}) as process:
        try:
            eventually(lambda: process.poll() is not None or made.ctl("status").returncode == 0, timeout_s=30)
            assert process.poll() is None, (made.home / "serve.log").read_text()
            yield
        finally:
            process.terminate()
            process.wait(20)
