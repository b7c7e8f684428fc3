"""Small clusters for the tests of rules: made in a few words, moved on by hand."""

from collections.abc import Sequence
from dataclasses import replace

from lib.model.catalog import Catalog, EngineRules, parse_catalog
from lib.model.committed import Change, Committed, apply
from lib.model.fleet import (
    Adapter,
    EngineFound,
    Epoch,
    Fabric,
    FaultClass,
    Gpu,
    Inventory,
    KnownNode,
    Replica,
    ReplicaState,
    ShardState,
)
from lib.model.wire import Hello, Orders, RouterReport, Seen, SeenGood, ShardReport, Sync
from lib.rules import observe, orders, reconcile
from lib.rules.view import Now, View

ENGINES = {"sim": EngineRules(False, True, lambda _: ""), "llama-server": EngineRules(True, False, lambda _: "")}
FABRICS = {"n1": "ib-a", "n2": "ib-a", "n3": "ib-a", "n4": "ib-b", "n5": "ib-b", "n6": ""}


def inventory(name: str, *, fabric: str | None = None, gpus: int = 4, engines: Sequence[str] = ("sim",),
              sources: dict[str, str] | None = None, labels: dict[str, str] | None = None, ports: int = 20) -> Inventory:
    """A node as its agent would report it; its fabric is that of FABRICS unless given."""
    fabric = FABRICS.get(name, "") if fabric is None else fabric
    number = int(name[1:])
    return Inventory(
        name, name, f"10.0.0.{number}", 20000, 20000 + ports - 1, gpus=tuple(Gpu(f"{name}-g{i}", i, "sim") for i in range(gpus)),
        adapters=tuple(Adapter(name, link_layer="InfiniBand", state="ACTIVE") for name in ("mlx5_0", "mlx5_1") if fabric),
        fabrics=(Fabric(fabric, ("mlx5_0", "mlx5_1"), f"10.1.0.{number}"),) if fabric else (),
        engines={engine: EngineFound(engine, "1") for engine in engines}, sources=sources or {}, labels=labels or {})


def catalog(*profiles: str, source: str = "") -> Catalog:
    """Profiles of one model "m", each as "name key=value key=value"."""
    text = f'[models.m]\naliases = ["short"]\nsource = "{source}"\n'
    for words in profiles:
        name, *settings = words.split()
        text += f'[profiles.{name}]\nmodel = "m"\n' + "\n".join(settings) + "\n"
        text += "" if "engine=" in words else 'engine = "sim"\n'
    return parse_catalog(text, "catalog.toml", ENGINES)


class Cluster:
    """Committed state, observations and a clock; agents that do as they are told unless a test says otherwise."""

    def __init__(self, wanted: Catalog, nodes: Sequence[Inventory] | None = None) -> None:
        self.catalog = wanted
        self.mono, self.wall = 1000.0, 1_700_000_000.0
        self.committed = Committed(cluster="test", lineage="L", cp_epoch=1, rev=1)
        self.inventories = {one.node: one for one in ([inventory(name) for name in FABRICS] if nodes is None else nodes)}
        self.shards: dict[str, dict[tuple[str, int, int], ShardReport]] = {name: {} for name in self.inventories}
        self.silent: set[str] = set()
        self.deaf: set[str] = set()        # report, and apply no orders
        self.applied: dict[str, int] = {}
        self.session = 0
        self.observed = observe.begin(self.now)
        self.changes: list[Change] = []
        self.greet()

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall, int(self.mono * 1000))

    @property
    def view(self) -> View:
        return View(self.committed, self.catalog, self.observed)

    def greet(self) -> None:
        """Every node that is not silent says hello."""
        self.session += 1
        for name in self.inventories:
            if name not in self.silent:
                hello = Hello(name, name, "boot", "run", "1")
                self.observed = observe.hello(self.observed, self.committed, hello, str(self.session), self.now)

    def orders(self, node: str) -> Orders:
        return orders.orders(self.view, node, "run", lambda replica, epoch: f"key of {replica} {epoch}")

    def report(self, node: str) -> None:
        """One sync of a node, after it has done as it was told."""
        if node not in self.deaf:
            self.obey(node)
        seq = self.observed.nodes[node].seq + 1
        sync = Sync(str(self.session), "run", seq, self.applied.get(node, 0), tuple(self.shards[node].values()),
                    self.inventories[node], seen=Seen("L", 1, 0))
        self.observed = observe.sync(self.observed, self.committed, node, sync, self.now)

    def obey(self, node: str) -> None:
        told, have = self.orders(node), self.shards[node]
        for gone in [key for key in have if key in {item.key for item in told.ended}]:
            del have[gone]
        for order in told.shards:
            if order.may_start and order.key not in have:
                have[order.key] = ShardReport(order.replica, order.counter, order.nonce, order.rank, ShardState.READY, pid=1)
        self.applied[node] = told.rev

    def decide(self) -> list[Change]:
        """One tick: look, decide, commit."""
        self.observed = observe.tick(self.observed, self.committed, self.now)
        done = reconcile.decide(self.view, self.now)
        for change in done:
            self.committed = apply(self.committed, change)
        self.changes += done
        return done

    def after(self, seconds: float = 1.0) -> "Cluster":
        """Time passes, a second at a time: nodes that are not silent report, and the control plane decides."""
        for _ in range(max(1, round(seconds))):
            self.mono, self.wall = self.mono + 1, self.wall + 1
            for name in self.inventories:
                if name not in self.silent:
                    self.report(name)
            self.decide()
        return self

    def restart(self) -> None:
        """The control plane dies and comes back with what it had committed."""
        self.committed = replace(self.committed, cp_epoch=self.committed.cp_epoch + 1, rev=self.committed.rev + 1)
        self.observed = observe.begin(self.now)
        self.greet()

    def router(self, rev: int, *good: tuple[str, int], name: str = "r1") -> None:
        """A router says that it has table `rev`, and that these epochs have just answered."""
        report = RouterReport(name, rev, 1, tuple(SeenGood(replica, counter, 0.0) for replica, counter in good))
        self.observed = observe.router_report(self.observed, report, self.now)

    def row(self, id: str) -> Replica:
        return self.committed.replicas[id]

    def epoch(self, id: str) -> Epoch:
        epoch = self.row(id).epoch
        assert epoch is not None
        return epoch

    def states(self) -> dict[str, ReplicaState]:
        return {id: row.state for id, row in self.committed.replicas.items()}

    def set_state(self, id: str, rank: int, state: ShardState, detail: str = "",
                  fault: FaultClass = FaultClass.TRANSIENT) -> None:
        """What the agent says from now on of one rank of the present epoch."""
        node, key = self.row(id).shards[rank].node, (id, self.epoch(id).counter, rank)
        self.shards[node][key] = replace(self.shards[node][key], state=state, detail=detail, fault=fault)

    def fail(self, id: str, rank: int, detail: str = "exited with code 1: boom",
             fault: FaultClass = FaultClass.TRANSIENT) -> None:
        self.set_state(id, rank, ShardState.FAILED, detail, fault)

    def lose(self, id: str, rank: int) -> None:
        """The agent has no such shard any more, and says nothing of it."""
        del self.shards[self.row(id).shards[rank].node][id, self.epoch(id).counter, rank]


def known(*inventories: Inventory) -> dict[str, KnownNode]:
    """Nodes as committed."""
    return {one.node: KnownNode(one.node, one.node, one) for one in inventories}
