"""The router's parent process: holds the listener, keeps workers and the follower alive, and passes the table on.

Room: gateway. One thread, no TLS, no HTTP: it can fork at any time. Workers are forked, not started, so a replaced program
file does not matter to a router that runs.
"""

import gc
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from lib.base.errors import LlmgwError, bad_config
from lib.gateway.cells import CP_EPOCH, KEY, KEY_CELLS, KEYS, REPLICA, REPLICA_CELLS, REPLICA_OK_MS, REPLICAS, REV, Cells, Numbers
from lib.gateway.channel import Channel
from lib.gateway.follow import Follower, read_cached
from lib.gateway.settings import RouterSettings
from lib.gateway.table import Numbered, endpoints, epoch_name
from lib.gateway.worker import Worker
from lib.model.codec import decode, encode
from lib.model.identity import Role, read_identity
from lib.model.wire import RouterReport, RouterTable, SeenGood
from lib.net.epoll import IN, Loop
from lib.net.listen import listen
from lib.net.tls import client_context

BACKLOG = 4096                             # connections that wait for a worker
REPORT_S = 3.0
RESPAWN_S = 1.0                            # for a child that died young; others are replaced at once
FOLLOWER = -1

log = logging.getLogger(__name__)


class Child:
    """A process of ours and the channel to it."""

    def __init__(self, pid: int, handle: int, channel: Channel, began: float) -> None:
        self.pid, self.handle, self.channel, self.began = pid, handle, channel, began


class Supervisor:
    """Runs one router."""

    def __init__(self, settings: RouterSettings, cluster: str) -> None:
        self._settings, self._cluster = settings, cluster
        self._listener = listen((settings.host, settings.port), BACKLOG)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)      # accepted sockets inherit it
        self._listener.setblocking(False)
        self._cells = Cells(settings.workers)
        self._replicas = Numbers(self._cells, REPLICA, REPLICA_CELLS, REPLICAS)
        self._keys = Numbers(self._cells, KEY, KEY_CELLS, KEYS)
        self._table = read_cached(settings, cluster)
        self._loop = Loop()
        self._children: dict[int, Child] = {}
        self._stopping = False

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, with the real port."""
        name = self._listener.getsockname()
        return name[0], name[1]

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; a second one ends it at once. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._loop.call_soon_threadsafe(self._stop))
        gc.freeze()
        for worker in range(self._settings.workers):
            self._spawn(worker)
        self._spawn(FOLLOWER)
        self._loop.call_later(REPORT_S, self._report_again)
        log.info("listening on %s:%d with %d workers, table %s", *self.address, self._settings.workers,
                 f"rev {self._table.rev} from disk" if self._table else "not there yet")
        self._loop.run()
        return 0

    # -- children --

    def _spawn(self, number: int) -> None:
        if self._stopping or number in self._children:
            return
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if not pid:
            _live(lambda: self._child(number, ours, theirs))
        theirs.close()
        channel = Channel(self._loop, ours, lambda message: self._told(number, message), lambda: None)
        child = self._children[number] = Child(pid, os.pidfd_open(pid), channel, time.monotonic())
        self._loop.register(child.handle, lambda _: self._ended(number), IN)
        if number != FOLLOWER:
            if self._table is not None:
                channel.send(self._numbered(self._table))
            channel.send({"accept": True})

    def _child(self, number: int, ours: socket.socket, theirs: socket.socket) -> int:
        """The child's whole life; everything of the parent's that it must not keep is let go first."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        for child in self._children.values():
            child.channel.disown()
            os.close(child.handle)
        self._loop.close()
        if number != FOLLOWER:
            return Worker(number, self._settings, self._listener, theirs, self._cells).run()
        self._listener.close()
        return Follower(self._settings, self._cluster, self._table, theirs).run()

    def _ended(self, number: int) -> None:
        child = self._children.pop(number)
        self._loop.unregister(child.handle)
        os.close(child.handle)
        child.channel.close()
        _, status = os.waitpid(child.pid, 0)
        if number != FOLLOWER:
            self._cells.clear_gauges(number)
        if self._stopping:
            if not any(other != FOLLOWER for other in self._children):
                self._finish()
            return
        log.error("%s (pid %d) ended with %s: starting it again", _name(number), child.pid, os.waitstatus_to_exitcode(status))
        young = time.monotonic() - child.began < 5
        self._loop.call_later(RESPAWN_S if young else 0, lambda: self._spawn(number))

    # -- the table --

    def _told(self, number: int, message: dict[str, Any]) -> None:
        if number == FOLLOWER and "table" in message:
            self._table = decode(RouterTable, message["table"])
            told = self._numbered(self._table)
            for other, child in self._children.items():
                if other != FOLLOWER:
                    child.channel.send(told)
        elif number == FOLLOWER and "renewed" in message:
            for other, child in self._children.items():
                if other != FOLLOWER:
                    child.channel.send({"renewed": True})
        elif "applied" in message and self._applied():
            self._report()

    def _numbered(self, table: RouterTable) -> dict[str, Any]:
        replicas = self._replicas.give(epoch_name(endpoint) for _, endpoint in endpoints(table))
        keys = self._keys.give(entry.id for entry in table.keys if entry.limits.concurrency or entry.limits.requests_per_minute)
        encoded: dict[str, Any] = encode(Numbered(table, replicas, keys))
        return encoded

    def _applied(self) -> bool:
        """Whether every worker routes by the present table."""
        table, cells = self._table, self._cells
        if table is None:
            return False
        applied = zip(cells.values(REV), cells.values(CP_EPOCH), strict=True)
        return all(pair == (table.rev, table.cp_epoch) for pair in applied)

    def _report_again(self) -> None:
        self._loop.call_later(REPORT_S, self._report_again)
        if self._table is not None and self._applied():
            self._report()

    def _report(self) -> None:
        table, follower = self._table, self._children.get(FOLLOWER)
        if table is None or follower is None:
            return
        now_ms = time.monotonic() * 1000
        seen = []
        for _, endpoint in endpoints(table):
            number = self._replicas.number(epoch_name(endpoint))
            last_ms = max(self._cells.values(REPLICA + number * REPLICA_CELLS + REPLICA_OK_MS)) if number else 0
            if last_ms:
                seen.append(SeenGood(endpoint.id, endpoint.counter, round(max(0.0, now_ms - last_ms) / 1000, 3)))
        follower.channel.send(encode(RouterReport(self._settings.name, table.rev, table.cp_epoch, tuple(seen))))

    # -- the end --

    def _stop(self) -> None:
        if self._stopping:
            return self._finish()
        self._stopping = True
        log.info("stopping: streams under way have up to %g s", self._settings.limits.stop_s)
        for number, child in self._children.items():
            if number != FOLLOWER:
                child.channel.send({"drain": True})
        self._listener.close()
        if not any(number != FOLLOWER for number in self._children):
            self._finish()
        return None

    def _finish(self) -> None:
        for child in self._children.values():
            signal.pidfd_send_signal(child.handle, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        self._children.clear()
        self._loop.stop()


def _live(life: Callable[[], int]) -> None:
    """Run a child to its end, and never return into the parent's code."""
    code = 1
    try:
        code = life()
    except LlmgwError as err:
        log.error("%s", err)
    except Exception:                      # the parent's stack lies above: the traceback must be written here
        log.exception("a process of the router failed")
    finally:
        os._exit(code)


def _name(number: int) -> str:
    return "the follower of the control plane" if number == FOLLOWER else f"worker {number}"


def check(settings: RouterSettings) -> str:
    """Check what can be before anything starts: certificates, whose they are, the state directory. Returns the cluster."""
    client_context(settings.certificate, settings.key, settings.ca)
    me = read_identity(settings.certificate, Role.ROUTER)
    if me.id != settings.name:
        raise bad_config(str(settings.file), f"{settings.name!r} is not the id in {settings.certificate}: {me.id!r}", key="name")
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise bad_config(str(settings.file), f"cannot make {settings.state_dir}: {err.strerror}", key="state_dir") from None
    return me.cluster


def run_router(settings: RouterSettings) -> int:
    """Check, then serve until told to stop."""
    cluster = check(settings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return Supervisor(settings, cluster).run()
