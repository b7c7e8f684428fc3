"""The demo's processes: starting them, noticing that one has died, and leaving none behind.

Room: operator. The demo restarts nothing; somebody else may, so at the end everything is looked for anew: roles by the
configuration they were started with, shims and engines by the run directory they live in.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, TimedOut
from lib.base.files import read_json
from lib.host import process
from lib.host.process import ProcessId
from lib.model.codec import decode
from lib.model.rundir import SPEC, ShardSpec
from lib.operator.demo_layout import HOST, Layout
from lib.operator.programs import command

LISTEN_S = 30.0                            # for a role to listen; a first start on a slow disk compiles everything
ROLE_GRACE_S, SHIM_GRACE_S = 6.0, 12.0
LOG_TAIL = 5


@dataclass(frozen=True, slots=True)
class RoleProcess:
    """A role that the demo has started."""

    name: str                              # control, router, or a node's name
    process: ProcessId
    log: Path

    @property
    def alive(self) -> bool:
        return process.is_same(self.process.pid, self.process.start, self.process.boot)

    def log_tail(self) -> list[str]:
        """The end of its log."""
        with suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL:]
        return []


def start_control(layout: Layout) -> RoleProcess:
    """The control plane; back once it listens."""
    role = _start(layout, "control", [*command("llmgw-ctl"), "--dir", str(layout.ctl_dir), "serve"])
    wait_listening(role, layout.control_port)
    return role


def start_router(layout: Layout) -> RoleProcess:
    return _start(layout, "router", [*command("llmgw-router"), "run", "--config", str(layout.router_config)])


def start_agents(layout: Layout) -> list[RoleProcess]:
    return [_start(layout, node.name, [*command("llmgw-agent"), "run", "--config", str(layout.node_config(node))])
            for node in layout.nodes]


def _start(layout: Layout, name: str, argv: Sequence[str]) -> RoleProcess:
    log = layout.log(name)
    return RoleProcess(name, process.spawn_detached(argv, env=dict(os.environ), log=log, cwd=layout.directory), log)


def wait_listening(role: RoleProcess, port: int) -> None:
    """Wait until the port takes connections. LlmgwError with the end of its log where the role ends instead."""
    deadline = time.monotonic() + LISTEN_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return
        if not role.alive:
            raise LlmgwError("\n".join([f"{role.name} ended instead of listening; the end of {role.log}:", *role.log_tail()]))
        time.sleep(0.05)
    raise TimedOut(f"{role.name} does not listen on {HOST}:{port} after {LISTEN_S:g} s", hint=f"see {role.log}")


# -- the end -------------------------------------------------------------------------------------------------------------


def end_all(layout: Layout, started: Collection[RoleProcess]) -> tuple[int, ...]:
    """End every role, shim and engine of this demo, whoever started it. The pids that would not die."""
    ours = {role.process.pid for role in started if role.alive}
    _end(lambda: {pid for pid in ours if (stat := process.read_stat(pid)) and stat.alive} | set(_roles(layout)), ROLE_GRACE_S)
    # Only now: nobody is left who would start another shard, or take a stopped one for a failed one.
    _end(lambda: set(_shims(layout)), SHIM_GRACE_S)
    return process.kill_until_gone(lambda: [*_roles(layout), *_shims(layout), *_engines(layout)], timeout_s=5.0)


def _end(find: Callable[[], Collection[int]], grace_s: float) -> None:
    """SIGTERM what `find` finds, wait for it, then SIGKILL."""
    process.send(find(), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (left := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        process.kill_until_gone(find, timeout_s=5.0)


def _roles(layout: Layout) -> Iterator[int]:
    """Roles that run with a configuration of this demo, whoever started them."""
    configs = {("--config", layout.router_config), *(("--config", layout.node_config(node)) for node in layout.nodes)}
    for stat in process.all_processes():
        words = process.argv_of(stat.pid) if stat.alive and stat.pid != os.getpid() else []
        flags = set(_paths(stat.pid, words)) if {"run", "serve"} & set(words) else set()
        if flags & configs or ("serve" in words and ("--dir", layout.ctl_dir) in flags):
            yield stat.pid


def _shims(layout: Layout) -> Iterator[int]:
    """Shims whose run directory lies in this demo."""
    for stat in process.all_processes():
        words = process.argv_of(stat.pid) if stat.alive else []
        if "shim" in words and any(flag == "--run-dir" and path.is_relative_to(layout.directory / "nodes")
                                   for flag, path in _paths(stat.pid, words)):
            yield stat.pid


def _engines(layout: Layout) -> Iterator[int]:
    """What carries the mark of a shard of this demo."""
    for run_dir in layout.directory.glob("nodes/*/state/shards/*"):
        with suppress(LlmgwError):         # half made, or forgotten at this moment: nothing runs there
            yield from process.marked(decode(ShardSpec, read_json(run_dir / SPEC)).marker)


def _paths(pid: int, words: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Flags of a command line that are followed by a path, as `--flag PATH` or `--flag=PATH`."""
    home = _working_directory(pid)
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        name, equals, inner = flag.partition("=")
        if name in ("--config", "--dir", "--run-dir"):
            yield name, (home / (inner if equals else value)).resolve()


def _working_directory(pid: int) -> Path:
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    return Path("/")


def interruptible() -> None:
    """From now on SIGTERM and SIGHUP end this program as Ctrl-C does."""
    def told(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, told)


def uninterruptible() -> None:
    """From now on nothing but SIGKILL keeps this program from clearing up."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
