"""The node, as the steps see it: each method is one call of node_program.py there.

Room: onboard.
"""

import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from lib.base.errors import LlmgwError, UsageError
from lib.engines import ENGINES
from lib.model.codec import decode
from lib.onboard.facts import Facts, Tried
from lib.onboard.wanted import Wanted
from lib.remote.ssh import Ssh

VERSION_S = 60.0                           # vLLM needs half a minute of a cold disk to tell its version


class Node:
    """One machine behind an ssh connection."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh
        self._program = files("lib.onboard").joinpath("node_program.py").read_text(encoding="utf-8")

    def look(self, wanted: Wanted) -> tuple[Facts, float]:
        """What it is and has, and what our clock said meanwhile. Nothing is changed there."""
        before = time.time()
        answer = self._call("facts", nvidia_smi=wanted.nvidia_smi or "nvidia-smi", ib_root=wanted.ib_root)
        try:
            return decode(Facts, answer, "facts"), (before + time.time()) / 2
        except UsageError as err:
            raise LlmgwError(f"the node's answer cannot be understood: {err}") from None

    def try_engines(self, programs: Mapping[str, str]) -> tuple[Mapping[str, Tried], Mapping[str, str]]:
        """How each engine's program ended that was asked for its version, and the versions that were told."""
        words = {name: [path, *ENGINES[name].version_argv] for name, path in programs.items()}
        answer = self._call("try_programs", timeout_s=VERSION_S * (1 + len(words)), programs=words, each_s=VERSION_S)
        tried = {name: decode(Tried, result, name) for name, result in answer["results"].items()}
        versions = {name: ENGINES[name].parse_version(result.out + result.err) for name, result in tried.items()}
        return tried, versions

    def reach(self, server: tuple[str, int], ca: str) -> tuple[str, Sequence[str]]:
        """Whether it reaches `server` and verifies it by `ca`: (what is in the way, the URIs in the certificate it saw)."""
        answer = self._call("reach", host=server[0], port=server[1], ca=ca)
        return str(answer.get("problem", "")), tuple(answer.get("uris", ()))

    def make_key(self, node: str) -> str:
        """A new key, which stays there; the request for its certificate."""
        return str(self._call("make_key", node=node)["csr"])

    def install(self, what: Mapping[str, Any]) -> Sequence[str]:
        """Put things in place; what changed. Files travel in `what`."""
        return tuple(self._call("install", **what, timeout_s=300.0)["changed"])

    def activate(self, *, restart: bool) -> Sequence[str]:
        """Start the agent, or start it again; the versions that were removed because nobody uses them."""
        return tuple(self._call("activate", restart=restart)["removed"])

    def last_words(self) -> tuple[str, str]:
        """(the end of the agent's log, the id of this run of it)."""
        answer = self._call("last_lines")
        return str(answer["journal"]), str(answer["agent_run"])

    def _call(self, operation: str, *, timeout_s: float = 120.0, **data: Any) -> Mapping[str, Any]:
        return self._ssh.call(self._program, {"do": operation, **data}, timeout_s=timeout_s)
