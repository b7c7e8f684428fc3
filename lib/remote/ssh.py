"""One way to have another machine do something: the system's ssh, a constant command, and a program that it reads.

Room: remote. Nothing of what a person typed ever stands in a command line of the other machine: it runs `python3 -c BOOT`, a
constant, and BOOT reads from standard input, base64 each, first the program, then its input as JSON. What the program says
are lines of JSON behind a mark, so that what a login shell prints is not taken for an answer.
"""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lib.base.errors import LlmgwError, NotFound, Refused
from lib.host.run import Outcome, Overdue, attempt
from lib.remote.refusals import is_about_host_key, translate

BOOT = "import sys,base64; PROGRAM=base64.b64decode(sys.stdin.readline()); exec(PROGRAM)"
COMMAND = f'python3 -c "{BOOT}"'           # the same words for sh, bash, zsh, fish and csh
MARK = "llmgw: "
AGAIN = "mend that there, and run the same command again"
CONNECT_S = 15
STAYS_S = 120                              # how long the shared connection outlives the last command
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go, as whom, and which host keys are believed. `become`: run it through sudo, which must not ask."""

    host: str
    user: str = "root"
    port: int = 22
    key: str = ""
    become: bool = False
    known_hosts: tuple[Path, ...] = ()     # none: those of the user
    accept_new: bool = False               # believe a host key never seen before, and write it into the first of known_hosts
    pinned: bool = False                   # only what known_hosts says counts, nothing that the system knows

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")


def argv(target: Target, control: Path) -> list[str]:
    """The command line; nothing in it but numbers, file names and an address, and `--` before the address."""
    options = {
        "BatchMode": "yes", "ConnectTimeout": CONNECT_S, "ServerAliveInterval": 10, "ServerAliveCountMax": 3,
        "StrictHostKeyChecking": "accept-new" if target.accept_new else "yes", "UpdateHostKeys": "no", "HashKnownHosts": "no",
        "ControlMaster": "auto", "ControlPath": control, "ControlPersist": STAYS_S, "RemoteCommand": "none", "RequestTTY": "no",
        "ForwardAgent": "no", "ForwardX11": "no", "ClearAllForwardings": "yes", "PermitLocalCommand": "no", "LogLevel": "ERROR"}
    options |= {"UserKnownHostsFile": " ".join(map(_quoted, target.known_hosts))} if target.known_hosts else {}
    options |= {"GlobalKnownHostsFile": "/dev/null"} if target.pinned else {}
    words = ["ssh", *(f"-o{name}={value}" for name, value in options.items())]
    words += ["-i", target.key, "-oIdentitiesOnly=yes"] if target.key else []
    words += ["-l", target.user, "-p", str(target.port), "--", target.host]
    return [*words, f"sudo -n {COMMAND}" if target.become else COMMAND]


class Ssh:
    """A connection to one machine, shared by all its commands. Closed at the end of a `with`."""

    def __init__(self, target: Target, *, said: Callable[[str], None] = lambda _: None) -> None:
        self.target, self._said = target, said
        self._directory = Path(tempfile.mkdtemp(prefix="llmgw-ssh-", dir="/tmp"))    # short: a socket's path has 107 characters
        self._control = self._directory / "s"

    def __enter__(self) -> "Ssh":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._control.exists():
            words = ["ssh", f"-oControlPath={self._control}", "-O", "exit", "--", self.target.host]
            attempt(words, timeout_s=10)
        shutil.rmtree(self._directory, ignore_errors=True)

    def call(self, program: str, data: Mapping[str, Any], *, timeout_s: float = 120.0) -> Answer:
        """What `program` answers to `data` there. Refused or LlmgwError with ssh's, sudo's or the program's own reason."""
        text = f"{_base64(program)}\n{_base64(json.dumps(data))}\n"
        try:
            done = attempt(argv(self.target, self._control), text=text, timeout_s=timeout_s, env=_environment())
        except Overdue:
            raise LlmgwError(f"{self.target}: no answer within {timeout_s:g} s", hint=AGAIN) from None
        except NotFound:
            raise LlmgwError("there is no ssh on this machine", hint="apt-get install openssh-client") from None
        answer = None
        for line in done.stdout.splitlines():
            if line.startswith(MARK):
                answer = json.loads(line.removeprefix(MARK))
        if answer is None:
            raise no_answer(self.target, done)
        if "failed" in answer:
            raise LlmgwError(f"{self.target.host}: {answer['failed']}", hint=str(answer.get("hint") or AGAIN))
        return dict(answer)


def no_answer(target: Target, done: Outcome) -> LlmgwError:
    """Why a program gave no answer: ssh could not go there, sudo would not, there is no Python, or it broke."""
    message, hint = translate(done, str(target), target.host, target.port)
    kind = Refused if is_about_host_key(done.stderr) else LlmgwError
    return kind(message, hint=hint)


def _environment() -> dict[str, str]:
    """What ssh may know of ours: where a key agent listens, and where to find the user's own files."""
    return {name: value for name in ("SSH_AUTH_SOCK", "HOME") if (value := os.environ.get(name))}


def _quoted(path: Path) -> str:
    """A file name as ssh reads it in a list of some, where `%` begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")
