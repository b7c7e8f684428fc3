"""A whole cluster in one process: the real rules on both sides, everything between them simulated.

`World(seed).run()` is one history: faults for a while, then healing, and checks all along (`tests.sim.checks`). The parts in
which a safeguard lies outside the rules (commit, then answer; refuse old orders; the start journal) can be switched off by
name, so that a test can show that the checks would notice.
"""

import random
from collections.abc import Collection
from dataclasses import replace

from lib.base.errors import Blocked
from lib.model.catalog import Catalog
from lib.model.committed import Change, Committed, apply
from lib.model.fleet import Epoch, ShardKey
from lib.model.wire import Hello, Orders, RouterReport, RouterTable, SeenGood, Sync, Welcome
from lib.rules import node as node_rules
from lib.rules import observe, orders, reconcile, routing
from lib.rules.view import Now, Observed, View
from tests.sim.checks import Checks
from tests.sim.parts import FABRICS, STEP_S, Engine, Network, Node, Rates, Router, catalog, make_node

FAULTS_S, HEALING_S = 600.0, 420.0


def engine_key(replica: str, epoch: Epoch) -> str:
    return f"{replica}|{epoch}"


class World:
    """One cluster and its history."""

    def __init__(self, seed: int, *, rates: Rates | None = None, without: Collection[str] = (), restore: bool = False) -> None:
        self.dice = random.Random(seed)
        self.rates = Rates.drawn(self.dice) if rates is None else rates
        self.without, self.restores = frozenset(without), restore
        self.now = 0.0
        self.network = Network(self.dice)
        self.nodes = {name: make_node(name) for name in FABRICS}
        self.routers = [Router("r1"), Router("r2")]
        self.pair, self.solo, self.variant = 2, 2, ""
        self.catalog = catalog(2, 2)
        self.committed = Committed(cluster="sim", lineage="L")
        self.backups: list[Committed] = []
        self.plane_up, self.plane_back_at = False, 0.0
        self.observed = Observed()
        self.checks = Checks(self)

    # -- time ------------------------------------------------------------------------------------------------------

    def run(self, faults_s: float = FAULTS_S, healing_s: float = HEALING_S) -> "World":
        """Faults, then healing; raises AssertionError where a check fails."""
        restore_at = self.dice.uniform(0.3, 0.9) * faults_s if self.restores else float("inf")
        while self.now < faults_s:
            self.break_something()
            if self.now >= restore_at:
                restore_at = float("inf")
                self.restore()
            self.step()
        self.heal()
        while self.now < faults_s + healing_s:
            self.step()
        if healing_s:
            self.checks.converged()
        return self

    def heal(self) -> None:
        """No more faults; what is down comes back soon."""
        self.rates = Rates()
        self.plane_back_at = min(self.plane_back_at, self.now + 5)
        for node in self.nodes.values():
            node.cut_until, node.back_at = min(node.cut_until, self.now), min(node.back_at, self.now + 5)

    def step(self) -> None:
        """Two seconds of everything."""
        self.now += STEP_S
        for node in self.nodes.values():
            self.run_engines(node)
        self.network.step(self.now)
        if not self.plane_up and self.now >= self.plane_back_at:
            self.start_plane()
        if self.plane_listens:
            self.plane_step()
        for node in self.nodes.values():
            if self.now >= node.back_at:
                self.agent_step(node)
        for router in self.routers:
            self.router_step(router)
        self.checks.step()

    def chance(self, per_second: float) -> bool:
        return self.dice.random() < per_second * STEP_S

    # -- faults ----------------------------------------------------------------------------------------------------

    def break_something(self) -> None:
        rates, dice = self.rates, self.dice
        if self.plane_up and self.chance(rates.plane_crash):
            self.crash_plane()
        if self.plane_up and self.chance(rates.plane_pause):
            self.plane_back_at = self.now + dice.uniform(5, 120)
        if self.chance(rates.cut_all):
            until = self.now + dice.uniform(10, 200)
            for node in self.nodes.values():
                node.cut_until = until
        if self.chance(rates.catalog):
            self.change_catalog()
        for node in self.nodes.values():
            self.break_node(node)

    def break_node(self, node: Node) -> None:
        rates, dice = self.rates, self.dice
        if self.chance(rates.agent_crash):
            self.crash_agent(node)
        if self.chance(rates.agent_pause):
            node.back_at = self.now + dice.uniform(5, 120)
        if self.chance(rates.cut):
            node.cut_until = self.now + dice.uniform(5, 150)
        if self.chance(rates.reboot):
            self.crash_agent(node)
            for engine in node.shards.values():
                self.kill(engine, "the machine was restarted")
        for engine in node.shards.values():
            if self.chance(rates.engine_exit):
                self.kill(engine, "exited with code 1")

    def kill(self, engine: Engine, detail: str) -> None:
        if engine.alive:
            engine.alive, engine.ready, engine.detail = False, False, detail

    def crash_agent(self, node: Node) -> None:
        """The agent dies; its disk and its engines stay."""
        node.run, node.session, node.orders, node.applied_rev, node.reports = node.run + 1, "", None, 0, ()
        node.back_at = self.now + self.dice.uniform(2, 60)

    def crash_plane(self) -> None:
        self.plane_up, self.plane_back_at = False, self.now + self.dice.uniform(2, 90)

    def change_catalog(self) -> None:
        self.pair, self.solo = self.dice.randint(0, 2), self.dice.randint(0, 3)
        self.variant = self.dice.choice((self.variant, "", "x"))
        self.catalog = self.catalog_now()

    def catalog_now(self) -> Catalog:
        return catalog(self.pair, self.solo, self.variant)

    def restore(self) -> None:
        """The state file is replaced by an older one."""
        self.checks.restored(self.committed)
        self.crash_plane()
        if self.backups:
            self.committed = self.dice.choice(self.backups)

    # -- control plane ---------------------------------------------------------------------------------------------

    @property
    def plane_listens(self) -> bool:
        return self.plane_up and self.now >= self.plane_back_at

    @property
    def view(self) -> View:
        return View(self.committed, self.catalog, self.observed)

    def moment(self) -> Now:
        return Now(self.now, self.now + 1e9, self.dice.getrandbits(64))

    def start_plane(self) -> None:
        state = self.committed
        self.committed = replace(state, cp_epoch=state.cp_epoch + 1, rev=state.rev + 1)
        self.plane_up, self.observed = True, observe.begin(self.moment())
        self.checks.plane_started()

    def plane_step(self) -> None:
        now = self.moment()
        self.observed = observe.tick(self.observed, self.committed, now)
        safe = self.committed
        for change in reconcile.decide(self.view, now):
            if self.dice.random() < self.rates.commit_crash:
                if "commit-before-answer" in self.without:
                    self.committed = apply(self.committed, change)     # told to everyone who asks in time, and then lost
                    self.answer_everyone()
                    self.committed = safe
                self.crash_plane()
                return
            self.commit(change)
            safe = self.committed
            if self.dice.random() < self.rates.commit_crash:
                self.crash_plane()
                return
        if self.chance(0.05):
            self.backups.append(self.committed)

    def commit(self, change: Change) -> None:
        before = self.committed
        self.committed = apply(before, change)
        self.checks.committed(before, change)

    def answer_everyone(self) -> None:
        for node in self.nodes.values():
            self.take_orders(node, orders.orders(self.view, node.name, node.agent_run, engine_key))

    def on_hello(self, node: Node, message: Hello) -> None:
        if self.plane_listens and self.now >= node.cut_until:
            self.observed = observe.hello(self.observed, self.committed, message, f"s{self.dice.getrandbits(32)}", self.moment())
            session = self.observed.nodes[node.name].session
            welcome = Welcome(1, session, self.committed.lineage, self.committed.cp_epoch, self.committed.rev)
            self.network.send(self.now, self.rates, lambda: self.on_welcome(node, message.agent_run, welcome))

    def on_sync(self, node: Node, message: Sync) -> None:
        if not self.plane_listens or self.now < node.cut_until:
            return
        try:
            before = self.observed
            self.observed = observe.sync(before, self.committed, node.name, message, self.moment())
        except Blocked:
            self.network.send(self.now, self.rates, lambda: self.on_expired(node, message.session))
            return
        if before is not self.observed:
            self.checks.told(node, message)
        answer = orders.orders(self.view, node.name, message.agent_run, engine_key)
        self.network.send(self.now, self.rates, lambda: self.take_orders(node, answer))

    # -- agents ----------------------------------------------------------------------------------------------------

    def on_welcome(self, node: Node, agent_run: str, welcome: Welcome) -> None:
        if agent_run == node.agent_run and self.now >= node.cut_until and not node.session:
            node.session, node.seq, node.told_inventory = welcome.session, 0, False

    def on_expired(self, node: Node, session: str) -> None:
        if node.session == session:
            node.session = ""

    def take_orders(self, node: Node, answer: Orders) -> None:
        if self.now < node.cut_until or self.now < node.back_at:
            return
        refused = node_rules.refusal(answer, node.agent_run, node.seen)
        if not refused or ("ordered-revisions" in self.without and answer.agent_run == node.agent_run):
            node.seen, node.orders = node_rules.obeyed(answer), answer

    def agent_step(self, node: Node) -> None:
        if node.orders is not None:
            self.obey(node, node.orders)
        reports = tuple(node.report(key, self.now) for key in node.shards)
        if node.orders is not None:
            plan = node_rules.plan(node.orders, node.mine(), node.journal)
            reports += plan.reports
        if self.now >= node.next_sync or [r.state for r in reports] != [r.state for r in node.reports]:
            node.next_sync, node.reports = self.now + 4.0, reports
            self.speak(node)

    def obey(self, node: Node, told: Orders) -> None:
        journal: Collection[ShardKey] = () if "start-once" in self.without else node.journal
        for action in node_rules.plan(told, node.mine(), journal).actions:
            if isinstance(action, node_rules.Start):
                if self.chance(self.rates.agent_crash * 5):    # between exec and run directory: killed as a leftover later
                    self.checks.starting(node, action)
                    node.journal.add(action.order.key)
                    self.crash_agent(node)
                    return
                self.start(node, action)
            elif isinstance(action, node_rules.Stop):
                self.checks.stopping(node, action)
                node.shards[action.key].stop_at = self.now + self.dice.uniform(2, 10)
            else:
                del node.shards[action.key]
                if "start-once" in self.without:
                    node.journal.discard(action.key)
        node.applied_rev = told.rev

    def start(self, node: Node, action: node_rules.Start) -> None:
        key = action.order.key
        self.checks.starting(node, action)
        node.journal.add(key)
        node.shards[key] = Engine(action.order, node.name, self.now, self.dice.uniform(2, 12))
        if self.dice.random() < self.rates.start_failure:
            self.kill(node.shards[key], "exited with code 1 while starting")

    def speak(self, node: Node) -> None:
        if not node.session:
            hello = Hello(node.name, node.name, "boot", node.agent_run, "1", seen=node.seen)
            self.network.send(self.now, self.rates, lambda: self.on_hello(node, hello))
            return
        node.seq += 1
        sync = Sync(node.session, node.agent_run, node.seq, node.applied_rev, node.reports, node.inventory, 0.0, node.seen)
        self.network.send(self.now, self.rates, lambda: self.on_sync(node, sync))

    def run_engines(self, node: Node) -> None:
        for engine in node.shards.values():
            if engine.alive and engine.stop_at is not None and self.now >= engine.stop_at:
                self.kill(engine, "stopped")
            engine.ready = engine.alive and engine.stop_at is None and self.now >= engine.started + engine.load_s and (
                engine.order.rank > 0 or self.joined(engine))

    def joined(self, engine: Engine) -> bool:
        """Rank 0 serves once every rank of its own epoch is there."""
        order = engine.order
        return all(any((one := node.shards.get((order.replica, order.counter, rank))) and one.alive
                       and one.order.nonce == order.nonce for node in self.nodes.values()) for rank in range(order.shard_count))

    # -- routers ---------------------------------------------------------------------------------------------------

    def router_step(self, router: Router) -> None:
        if self.now < router.next_poll:
            return
        router.next_poll = self.now + 4.0
        seen = tuple(SeenGood(one.id, one.counter, 0.0) for route in (router.table.models.values() if router.table else ())
                     for one in route.replicas if self.answers(one.id, one.counter))
        report = RouterReport(router.name, router.table.rev if router.table else 0,
                              router.table.cp_epoch if router.table else 0, seen)
        self.network.send(self.now, self.rates, lambda: self.on_report(router, report))

    def answers(self, replica: str, counter: int) -> bool:
        """Whether an engine of this very epoch serves."""
        return any((one := node.shards.get((replica, counter, 0))) is not None and one.ready for node in self.nodes.values())

    def on_report(self, router: Router, report: RouterReport) -> None:
        if self.plane_listens:
            self.observed = observe.router_report(self.observed, report, self.moment())
            table = routing.table(self.view, engine_key)
            self.network.send(self.now, self.rates, lambda: self.on_table(router, table))

    def on_table(self, router: Router, table: RouterTable) -> None:
        if router.table is None or table.rev >= router.table.rev:
            router.table = table
