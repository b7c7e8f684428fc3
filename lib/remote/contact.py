"""First contact with a machine that was just made: who it says it is, over ssh, and which host key it shows.

Room: remote. Its host key is believed as shown, and never remembered: it cannot be known beforehand, and may change while the
machine sets itself up. What was believed is told, so that whoever comes next can insist on it.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, TimedOut
from lib.host.run import Outcome, attempt, run

CONNECT_S = 5
SSH_FAILED = 255                           # ssh itself failed, not the command


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach the machine; `known_hosts` is a file of our own, made anew by each call."""

    user: str
    address: str
    known_hosts: Path
    identity: str = ""                     # private key; empty: those of whoever runs this

    def argv(self, command: str) -> list[str]:
        """The words that run `command` there."""
        options = {"BatchMode": "yes", "ConnectTimeout": CONNECT_S, "StrictHostKeyChecking": "accept-new", "HashKnownHosts": "no",
                   "UserKnownHostsFile": self.known_hosts, "GlobalKnownHostsFile": "/dev/null", "LogLevel": "ERROR",
                   "ServerAliveInterval": 5, "ServerAliveCountMax": 3}
        if self.identity:
            options["IdentitiesOnly"] = "yes"
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        key = ["-i", self.identity] if self.identity else []
        return ["ssh", "-F", "none", *words, *key, "-l", self.user, "--", self.address, command]

    def ask(self, command: str, timeout_s: float) -> Outcome:
        """What `command` said there. Status 255 with the reason on stderr where it could not be asked or gave no answer."""
        with suppress(FileNotFoundError):
            self.known_hosts.unlink()
        try:
            return attempt(self.argv(command), timeout_s=timeout_s, env=os.environ)
        except TimedOut:
            return Outcome(SSH_FAILED, "", f"no answer within {timeout_s:g} s")

    def fingerprint(self) -> str:
        """The fingerprint of the host key that the last call saw; empty where it cannot be had."""
        try:
            return parse_fingerprint(run(["ssh-keygen", "-l", "-f", self.known_hosts], timeout_s=10))
        except LlmgwError:
            return ""


def parse_fingerprint(text: str) -> str:
    """The first fingerprint that `ssh-keygen -l` prints, `SHA256:` and all."""
    found = re.search(r"\bSHA256:[A-Za-z0-9+/]{43}\b", text)
    return found[0] if found else ""
