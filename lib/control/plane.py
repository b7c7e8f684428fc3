"""The control plane's one object: what it has seen, what it has committed, and the answers that follow from both.

Room: control. Decisions are `rules`, durability is `store`; this holds the lock between messages and the loop. The lock covers
memory only: a decision is made under it, committed and sent outside.
"""

import hmac
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lib.base.errors import Blocked, Unavailable
from lib.control.catalogs import CatalogFile
from lib.model.certificate import Certificate
from lib.model.committed import Change
from lib.model.fleet import Epoch, NodeState
from lib.model.wire import PROTOCOL, Hello, Orders, RouterReport, RouterTable, Sync, Welcome
from lib.net.tls import PeerCert
from lib.rules import leases, observe, orders, reconcile, routing
from lib.rules.renewal import Holder
from lib.rules.view import Now, View
from lib.store.db import Store

log = logging.getLogger(__name__)

TICK_S = 1.0
NODE_WORDS = {NodeState.SUSPECT: f"suspect: not heard from for {leases.SUSPECT_S:g} s, nothing new goes there",
              NodeState.LOST: f"lost: not heard from for {leases.LOST_S:g} s", NodeState.READY: "is back"}
LONGEST_HOLD_S = 30.0


@dataclass(frozen=True, slots=True)
class _Answered:
    """What an agent was last told, and the rev it was first told at."""

    agent_run: str
    essence: object
    rev: int


class Plane:
    """Thread-safe. `secret` derives engine keys; the two clocks and the dice are arguments so that tests can hold them."""

    def __init__(self, store: Store, catalog: CatalogFile, secret: bytes, *, mono: Callable[[], float] = time.monotonic,
                 wall: Callable[[], float] = time.time, chance: Callable[[], int] = lambda: secrets.randbits(128)) -> None:
        self.store, self.catalog, self._secret = store, catalog, secret
        self._mono, self._wall, self._chance = mono, wall, chance
        self._lock = threading.Condition()  # guards all below; notified when orders or the table may have changed
        self._observed = observe.begin(self.now())
        self._answered: dict[str, _Answered] = {}
        self._node_states: dict[str, NodeState] = {}
        self._wake = threading.Event()
        self._stopping = False
        self.presented: dict[Holder, Certificate] = {}      # the certificate that somebody last came with
        self.cut: Callable[[Callable[[PeerCert], bool]], int] = lambda _: 0     # ends open connections; set by who listens

    def now(self) -> Now:
        """This moment, with fresh dice."""
        return Now(self._mono(), self._wall(), self._chance())

    def view(self) -> View:
        """Everything, as of now."""
        with self._lock:
            return self._view_locked()

    # -- what agents and routers say ---------------------------------------------------------------------------------

    def hello(self, message: Hello) -> Welcome:
        """Open a session for an agent."""
        if not message.proto or not message.proto[0] <= PROTOCOL <= message.proto[-1]:
            raise Blocked(f"the agent speaks protocols {list(message.proto)}, this control plane {PROTOCOL}",
                          hint="upgrade the older of the two; running engines go on meanwhile")
        session = secrets.token_hex(8)
        with self._lock:
            committed = self.store.state()
            self._observed = observe.hello(self._observed, committed, message, session, self.now())
        self._wake.set()
        return Welcome(PROTOCOL, session, committed.lineage, committed.cp_epoch, committed.rev)

    def sync(self, node: str, message: Sync) -> Orders:
        """Take a node's report; answer when there is news for it, or when `hold_s` (less or more a fifth) is over."""
        with self._lock:
            before = self._observed
            self._observed = observe.sync(before, self.store.state(), node, message, self.now())
            if reconcile.worth_a_look(before, self._observed, node):
                self._wake.set()
            deadline = self._mono() + min(message.hold_s, LONGEST_HOLD_S) * random.uniform(0.8, 1.2)
            while True:
                answer = orders.orders(self._view_locked(), node, message.agent_run, self.engine_key)
                if self._is_news(node, message, answer) or self._wait(deadline):
                    return answer

    def _is_news(self, node: str, message: Sync, answer: Orders) -> bool:
        essence, told = orders.essence(answer), self._answered.get(node)
        if told is None or (told.agent_run, told.essence) != (message.agent_run, essence):
            self._answered[node] = _Answered(message.agent_run, essence, answer.rev)
            return True
        return message.applied_rev < told.rev

    def table(self, rev: int, cp_epoch: int, hold_s: float) -> RouterTable:
        """The router table, at once where it says something else than the one of (cp_epoch, rev) that the router has."""
        with self._lock:
            deadline = self._mono() + min(hold_s, LONGEST_HOLD_S) * random.uniform(0.8, 1.2)
            known = routing.table(self._view_locked(), self.engine_key)
            stale = (cp_epoch, rev) != (known.cp_epoch, known.rev)
            while True:
                table = routing.table(self._view_locked(), self.engine_key)
                if stale or routing.essence(table) != routing.essence(known) or self._wait(deadline):
                    return table

    def report(self, message: RouterReport) -> None:
        """Take what a router says of the table it has and the engines it reaches."""
        with self._lock:
            self._observed = observe.router_report(self._observed, message, self.now())
        self._wake.set()

    def engine_key(self, replica: str, epoch: Epoch) -> str:
        """The key of one incarnation of a replica: derived, never stored."""
        return hmac.digest(self._secret, f"{replica}|{epoch.counter}|{epoch.nonce}".encode(), "sha256").hex()

    def _view_locked(self) -> View:
        return View(self.store.state(), self.catalog.current, self._observed)

    def _wait(self, deadline: float) -> bool:
        """Wait for news; true when the deadline has passed or the control plane is ending."""
        left = deadline - self._mono()
        if left > 0 and not self._stopping:
            self._lock.wait(left)
        return self._stopping or self._mono() >= deadline

    # -- the loop: observe, decide, perform --------------------------------------------------------------------------

    def run(self) -> None:
        """Decide and commit, once a second and whenever something was reported, until `stop`."""
        while not self._stopping:
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self.catalog.poll()
                self.tick()
            except Exception:               # a bug in one decision must not end all of them
                log.exception("this round is given up, the next one starts from what is true then")

    def tick(self) -> None:
        """One round. A decision that cannot be committed now is decided again in the next one, from what is true then."""
        if self.store.fault and not self.store.probe():
            return
        with self._lock:
            before = self._observed
            self._observed = observe.tick(before, self.store.state(), now := self.now())
            changes = reconcile.decide(self._view_locked(), now)
            news = self._node_news()
            if self._observed.adopted != before.adopted:
                self._lock.notify_all()
        self._commit(changes, news)

    def _node_news(self) -> list[tuple[str, str]]:
        """(node, what became of it) since the last look, for `llmgw-ctl events`."""
        states = {node: leases.state(self._observed, node) for node in self.store.state().nodes}
        before, self._node_states = self._node_states, states
        moves = [(node, before.get(node, state), state) for node, state in states.items()]
        return [(node, NODE_WORDS[new]) for node, old, new in moves if new is not old and new in NODE_WORDS
                and old is not NodeState.UNREPORTED]            # that it reports at last is no news after our own start

    def _commit(self, changes: Sequence[Change], news: Sequence[tuple[str, str]]) -> None:
        if news:
            with self.store.change("", "notice") as step:
                for node, words in news:
                    log.info("%s: %s", node, words)
                    step.event(node, words)
        for change in changes:
            try:
                with self.store.change("", "decide", change.target) as step:
                    step.perform(change)
                if change.event:
                    log.info("%s", change)
            except Blocked as err:          # its ground has gone, and with it that of what was decided after it
                log.debug("%s: %s", change, err)
                break
            except Unavailable as err:
                log.error("%s: not committed: %s", change, err)
                return
        if changes:
            self.news()
            self._wake.set()                # what was committed may allow the next step at once

    def news(self) -> None:
        """Something was committed: let every poll look whether it concerns it."""
        with self._lock:
            self._lock.notify_all()

    def poke(self) -> None:
        """Let the loop look now: an operator has changed something."""
        self._wake.set()
        self.news()

    def stop(self) -> None:
        """End the loop and answer every poll."""
        self._stopping = True
        self.poke()

