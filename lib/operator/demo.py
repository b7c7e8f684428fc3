"""A whole cluster on this machine: started, shown, and gone without a trace when it ends.

Room: operator. Every process is a real one, with the commands and files of a real installation; only hardware and, unless one is
given, the engine are stand-ins.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError, NotFound, TimedOut, Unavailable, UsageError
from lib.base.files import write_json
from lib.cli.app import Given, say
from lib.cli.watch import fit, screen_width
from lib.net.client import Client
from lib.operator import connect, demo_files, demo_roles, demo_show
from lib.operator.demo_ask import ask
from lib.operator.demo_layout import HOST, LARGE, SMALL, Layout, Real, claim_ports
from lib.operator.demo_roles import RoleProcess
from lib.operator.install import CreateState
from lib.operator.programs import typed

NODES_S, REPLICAS_S, REAL_ENGINE_S = 60.0, 90.0, 300.0
LOOK_S = 0.25
LONGEST_DIR = 70                           # UNIX sockets live below it, and their whole path may have 107 bytes


def run(given: Given, create_state: CreateState) -> int:
    """Until Ctrl-C, or with --once until it has answered. The exit code."""
    real = real_engine(given.llama_server, given.gguf)
    wanted = given.dir if given.dir != connect.DEFAULT_DIR else ""
    demo_roles.interruptible()
    with _directory(wanted) as directory:
        base, claim = claim_ports()
        with claim:
            return _run(Layout(directory, base, real), given.once, create_state)


def real_engine(program: str, gguf: str) -> Real | None:
    """The real engine asked for, or found: a llama-server on PATH and LLMGW_GGUF count as found. None: simulate."""
    weights = gguf or os.environ.get("LLMGW_GGUF", "")
    found = program or shutil.which("llama-server") or ""
    if program and not weights:
        raise UsageError("--llama-server needs weights to serve", hint="name them with --gguf")
    if gguf and not found:
        raise UsageError("--gguf needs a llama-server, and there is none on PATH", hint="name one with --llama-server")
    if not (weights and found):
        return None
    if not os.access(found, os.X_OK) or not os.path.isfile(found):
        raise NotFound(f"{found} is not a program that can be run", hint="name a llama-server with --llama-server")
    if not os.path.isfile(weights) or not os.access(weights, os.R_OK):
        raise NotFound(f"{weights} is not a file that can be read", hint="name a GGUF file with --gguf")
    return Real(os.path.abspath(found), Path(weights).absolute())


@contextmanager
def _directory(wanted: str) -> Iterator[Path]:
    """The directory asked for, which stays; else a new one, which goes when the demo ends."""
    if wanted:
        path = Path(wanted).resolve()
        if len(os.fsencode(path)) > LONGEST_DIR:
            raise UsageError(f"{path} is too long a name: UNIX sockets live below it", hint=f"at most {LONGEST_DIR} bytes")
        demo_files.refuse_used(path)
        yield path
        return
    made = Path(tempfile.mkdtemp(prefix="llmgw-demo-")).resolve()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(layout: Layout, once: bool, create_state: CreateState) -> int:
    demo = Demo(layout)
    try:
        demo.start(create_state)
        if once:
            demo.come_up()
            demo.ask()
        else:
            demo.stay()
    except KeyboardInterrupt:
        return 130 if once else 0
    finally:
        demo_roles.uninterruptible()
        _say_if_heard("ending everything")
        if left := demo_roles.end_all(layout, demo.roles):
            _say_if_heard(f"these processes would not die: {', '.join(map(str, left))}")
    return 0


def _say_if_heard(text: str) -> None:
    """The terminal may be what has gone, and the end must not stop at that."""
    with suppress(OSError):
        say(text)


@dataclass(slots=True)
class Demo:
    """A demo that runs, as far as it has come."""

    layout: Layout
    roles: list[RoleProcess] = field(default_factory=list)
    api_key: str = ""
    _client: Client | None = None
    _lines: Mapping[str, str] = field(default_factory=dict)
    _told_ended: set[str] = field(default_factory=set)

    @property
    def model(self) -> str:
        """The most interesting one to ask."""
        return SMALL if self.layout.real else LARGE

    def start(self, create_state: CreateState) -> None:
        """Everything begun, and demo.json written once all of it listens."""
        layout = self.layout
        say(f"preparing certificates and configurations in {layout.directory}")
        demo_files.prepare(layout, create_state)
        say("starting the control plane, six agents and a router")
        self.roles.append(demo_roles.start_control(layout))
        self.roles.append(demo_roles.start_router(layout))
        self.roles.extend(demo_roles.start_agents(layout))
        self._client = self._connect()
        self.api_key = self._client.post("/ctl/v1/keys", {"name": "demo"})["key"]
        demo_roles.wait_listening(self._role("router"), layout.router_port)
        self._wait(NODES_S, self._missing_nodes)
        self._write_summary()

    def come_up(self) -> None:
        """Wait until every replica is ready and the router knows it. TimedOut with what is missing."""
        self._wait(REAL_ENGINE_S if self.layout.real else REPLICAS_S, self._missing_replicas)

    def ask(self) -> None:
        """One streamed request."""
        say(f"asking {self.model}:")
        ask(self.layout.router_url, self.api_key, self.model)

    def stay(self) -> None:
        """Say how to use it, and from then on what changes, until Ctrl-C."""
        try:
            self.come_up()
        except TimedOut as err:
            say(f"{err}; staying nevertheless")
        sys.stdout.write(demo_show.instructions(self.layout, self.api_key, typed(), self.model))
        sys.stdout.flush()
        while True:
            with suppress(Unavailable, TimedOut):
                self._tell(*self._look())
            self._tell_ended()
            time.sleep(1.0)

    def _connect(self) -> Client:
        pki = self.layout.ctl_dir / "pki"
        return connect.client(connect.Access(f"https://{HOST}:{self.layout.control_port}", pki / "operator.pem",
                                             pki / "operator.key", pki / "ca.pem"))

    def _role(self, name: str) -> RoleProcess:
        return next(role for role in self.roles if role.name == name)

    def _write_summary(self) -> None:
        layout = self.layout
        write_json(layout.summary, {
            "router_url": layout.router_url, "api_key": self.api_key, "ctl_dir": str(layout.ctl_dir),
            "nodes": {node.name: {"pid": self._role(node.name).process.pid, "config": str(layout.node_config(node))}
                      for node in layout.nodes},
            "pids": {name: self._role(name).process.pid for name in ("control", "router")}})

    # -- watching ----------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        assert self._client
        return self._client.get(f"/ctl/v1/{path}", timeout_s=5.0)

    def _look(self) -> tuple[demo_show.Rows, demo_show.Rows]:
        nodes = self._get("nodes")
        return nodes, self._get("replicas") if nodes else []    # before, all they say is that there is no node

    def _missing_nodes(self, nodes: demo_show.Rows, _replicas: demo_show.Rows) -> str:
        if dead := [role.name for role in self.roles if not role.alive]:
            self._tell_ended()
            raise LlmgwError(f"{', '.join(dead)} ended while the demo came up", hint=f"see {self.layout.directory / 'logs'}")
        ready = {node["id"] for node in nodes if node["state"] == "ready"}
        missing = [node.name for node in self.layout.nodes if node.name not in ready]
        return f"not heard from: {', '.join(missing)}" if missing else ""

    def _missing_replicas(self, _nodes: demo_show.Rows, replicas: demo_show.Rows) -> str:
        if missing := demo_show.not_ready(replicas):
            return missing
        return "" if self._get("status")["routers"] else "the router has not reported"

    def _wait(self, timeout_s: float, missing: Callable[[demo_show.Rows, demo_show.Rows], str]) -> None:
        """Show what comes until nothing is missing. TimedOut with what is."""
        deadline = time.monotonic() + timeout_s
        while True:
            why = "the control plane does not answer"
            with suppress(Unavailable, TimedOut):
                seen = self._look()
                self._tell(*seen, coming_up=True)
                if not (why := missing(*seen)):
                    return
            self._tell_ended()
            if time.monotonic() > deadline:
                raise TimedOut(f"the demo did not come up within {timeout_s:g} s: {why}",
                               hint=f"see {self.layout.directory / 'logs'}")
            time.sleep(LOOK_S)

    def _tell(self, nodes: demo_show.Rows, replicas: demo_show.Rows, *, coming_up: bool = False) -> None:
        """Draw the tables while the cluster comes up on a terminal; else, and later, say what has changed."""
        before, self._lines = self._lines, demo_show.lines(nodes, replicas, reasons=not coming_up)
        if self._lines == before:
            return
        if coming_up and (width := screen_width()):
            size = shutil.get_terminal_size()
            screen = f"The demo is coming up in {self.layout.directory}\n\n{demo_show.tables(nodes, replicas, width)}"
            sys.stdout.write(fit(screen, size.columns, size.lines))
            sys.stdout.flush()
            return
        for line in demo_show.changes(before, self._lines):
            say(line)

    def _tell_ended(self) -> None:
        """Say which role has ended; it is not started again."""
        for role in self.roles:
            if not role.alive and role.name not in self._told_ended:
                self._told_ended.add(role.name)
                say(f"{role.name} (pid {role.process.pid}) has ended; the end of {role.log}:")
                for line in role.log_tail():
                    say(f"    {line}")

