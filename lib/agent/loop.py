"""The agent: looks at its shards, plans from its orders, performs, reports; again and again.

Room: agent. One thread does all of it; another looks at the hardware, and two more talk to the control plane. Whatever happens
to any of them, an engine does not notice.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from lib.agent.conversation import Conversation, Snapshot, new_run
from lib.agent.inventory import Inspector
from lib.agent.journal import Journal
from lib.agent.launch import Launcher
from lib.agent.settings import AgentSettings
from lib.agent.shards import Shard, Shards
from lib.base.errors import LlmgwError
from lib.base.files import write_atomic, write_json
from lib.base.version import VERSION
from lib.host import notify
from lib.host.process import boot_id
from lib.host.renewal import PairFiles, Renewer, Terms
from lib.model.fleet import Inventory, ShardKey
from lib.model.rundir import shard_name
from lib.model.wire import Hello, Orders, ShardOrder, ShardReport
from lib.net.client import Client
from lib.rules import node as rules
from lib.rules import renewal

log = logging.getLogger(__name__)

TICK_S = 1.0                                # a shim's datagram wakes the loop sooner
INSPECT_S = 10.0


class Agent:
    """The node's side. `connect` opens a client to the control plane; `self_command` runs this program."""

    def __init__(self, settings: AgentSettings, cluster: str, connect: Callable[[], Client], self_command: Sequence[str]) -> None:
        self._settings = settings
        self._inspector = Inspector(settings, VERSION)          # refuses fabrics that are not certain, before anything starts
        self._journal = Journal(settings.state_dir / "journal.json")
        self._shards = Shards(settings.shards_dir, [*self_command, "shim", "--run-dir"])
        self._launcher = Launcher(settings, cluster, self_command)
        self._bell = _Bell(settings.notify)
        self._orders: Orders | None = None
        self._inventory: Inventory | None = None
        self._stopping_keys: set[ShardKey] = set()
        self._revoked: tuple[str, ...] | None = None
        self._ended = threading.Event()
        self._inspect_now = threading.Event()
        self._run, self._lock = new_run(), threading.Lock()
        write_atomic(settings.run, self._run + "\n")            # so that onboarding can tell this machine from a copy of its disk
        hello = Hello(settings.node, self._journal.node_uid, boot_id(), self._run, VERSION)
        self._talk = Conversation(hello, connect, lambda: self._journal.seen, self._take)
        self._renewer = Renewer(PairFiles(settings.certificate, settings.key), settings.node, lambda csr: _renewed(connect, csr),
                                Terms(renewal.due_at, renewal.retry_s))

    def run(self) -> None:
        """Until `stop`: engines go on, whoever ends."""
        self._turn()                        # what runs here is known before the first word is said
        threading.Thread(target=self._inspect, name="inspect", daemon=True).start()
        self._talk.start()
        threading.Thread(target=self._renewer.run, args=(self._ended, self._talk.redial), name="renew", daemon=True).start()
        notify.ready()
        while not self._ended.is_set():
            try:
                self._turn()
            except LlmgwError as err:       # a full disk, say: the next turn tries again from what is true then
                log.error("%s", err)
            notify.alive()
            self._bell.wait(TICK_S)
        notify.stopping()
        self._talk.stop()

    def stop(self) -> None:
        """End the agent and nothing else."""
        self._ended.set()
        self._bell.ring()

    def _take(self, orders: Orders) -> None:
        """An answer of the control plane, from either of the two threads that talk to it: the older of two may come last."""
        with self._lock:
            before = self._orders
            if why := rules.refusal(orders, self._run, rules.obeyed(before) if before else self._journal.seen):
                log.log(logging.DEBUG if before else logging.WARNING, "orders not obeyed: %s", why)
                return
            self._orders = orders
        if before is None or before.sources != orders.sources:
            self._inspect_now.set()
        self._bell.ring()

    def _turn(self) -> None:
        """Look, plan, perform, look again, report."""
        orders, reports = self._orders if self._inventory else None, tuple[ShardReport, ...]()
        if orders:                          # before the machine has been looked at, none can be acted on, nor count as applied
            self._journal.obey(rules.obeyed(orders))
            self._note_revoked(orders)
            have = self._look()
            plan = rules.plan(orders, [self._mine(shard) for shard in have], self._journal.started)
            self._perform(plan, {shard.key: shard for shard in have})
            reports = plan.reports
        now, have = time.monotonic(), self._look()
        present = tuple(shard.report(now) for shard in have if not shard.gone)
        applied = orders.rev if orders else 0
        self._talk.publish(Snapshot(applied, (*present, *reports), self._inventory))

    def _look(self) -> tuple[Shard, ...]:
        for shard in (found := self._shards.look()):
            if shard.orphaned:
                self._shards.clear(shard)
        return self._shards.look() if any(shard.orphaned for shard in found) else found

    def _mine(self, shard: Shard) -> rules.Mine:
        order = shard.spec.order
        alive = shard.exit is None
        port = (order.port,) if order.rank == 0 else ()
        return rules.Mine(shard.key, order.nonce, alive, order.gpus, port, stopping=shard.key in self._stopping_keys)

    def _perform(self, plan: rules.Plan, have: dict[ShardKey, Shard]) -> None:
        for action in plan.actions:
            match action:
                case rules.Start(order):
                    self._start(order)
                case rules.Stop(key, drain_s, why):
                    log.info("stopping %s: %s", shard_name(*key), why)
                    self._stopping_keys.add(key)
                    self._shards.stop(have[key], drain_s)
                case rules.Forget(key):
                    self._stopping_keys.discard(key)
                    self._shards.forget(have[key])

    def _start(self, order: ShardOrder) -> None:
        """Journal, then start. What stands in the way becomes the shard's failure, which the control plane decides about."""
        inventory = self._inventory
        assert inventory                    # see _turn
        obstacle = self._launcher.obstacle(order, inventory)
        self._journal.note_start(order.key)
        log.info("starting %s, rank %d of %d", order.replica, order.rank, order.shard_count)
        spec = self._launcher.spec(order, inventory)
        if obstacle:
            self._shards.fail(spec, obstacle)
        else:
            self._shards.start(spec)

    def _note_revoked(self, orders: Orders) -> None:
        if orders.revoked != self._revoked:
            write_json(self._settings.revoked, {"serials": list(orders.revoked), "ids": []})
            self._revoked = orders.revoked

    def _inspect(self) -> None:
        while not self._ended.is_set():
            self._inspect_now.clear()
            wanted = self._orders.sources if self._orders else ()
            try:
                self._inventory = self._inspector.inspect(wanted)
            except LlmgwError as err:
                log.error("cannot look at this machine: %s", err)
            self._bell.ring()
            self._inspect_now.wait(INSPECT_S)


def _renewed(connect: Callable[[], Client], csr: str) -> str:
    with connect() as client:
        return str(client.post("/agent/v1/renew", {"csr": csr})["certificate"])


class _Bell:
    """A UNIX datagram socket that shims ring when they have written something, and our own threads too."""

    def __init__(self, path: "os.PathLike[str]") -> None:
        self._path = os.fspath(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(self._path)
        except OSError as err:
            raise LlmgwError(f"cannot listen on {self._path}: {err.strerror or err}",
                             hint="choose a shorter state_dir: the whole path may have 107 characters") from err
        self._socket.settimeout(TICK_S)

    def ring(self) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
            caller.setblocking(False)
            caller.sendto(b"!", self._path)

    def wait(self, timeout_s: float) -> None:
        """Until somebody rings, or `timeout_s`; several rings count as one."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(timeout_s)
            self._socket.recv(16)
            self._socket.setblocking(False)
            while self._socket.recv(16):
                pass
