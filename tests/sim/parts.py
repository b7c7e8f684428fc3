"""What a simulated cluster is made of: engines, nodes with their disks, a network that loses things, routers.

Every chance comes from the world's one seeded generator, so that a seed replays exactly.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lib.model.catalog import Catalog, EngineRules, parse_catalog
from lib.model.fleet import Adapter, EngineFound, Fabric, FaultClass, Gpu, Inventory, ShardKey, ShardState
from lib.model.wire import Orders, RouterTable, Seen, ShardOrder, ShardReport
from lib.rules.node import Mine

STEP_S = 2.0
FABRICS = {"n1": "ib-a", "n2": "ib-a", "n3": "ib-a", "n4": "ib-b", "n5": "ib-b", "n6": ""}
ENGINES = {"sim": EngineRules(needs_source=False, multi_shard=True, bad_argument=lambda _: "")}


def catalog(pair: int, solo: int, variant: str = "") -> Catalog:
    """Two-shard replicas of one profile and one-shard replicas of another; a `variant` makes another generation of the first."""
    return parse_catalog(
        f'[models.big]\n[models.small]\n[profiles.pair]\nmodel = "big"\nengine = "sim"\nshards = 2\ngpus = 1\n'
        f'replicas = {pair}\nargs = ["--variant", "{variant}"]\nstart_timeout = 90\n'
        f'[profiles.solo]\nmodel = "small"\nengine = "sim"\ngpus = 1\nreplicas = {solo}\n'
        'start_timeout = 90\n', "catalog", ENGINES)


@dataclass(slots=True)
class Engine:
    """The truth about one shard's processes."""

    order: ShardOrder
    node: str
    started: float
    load_s: float
    alive: bool = True
    stop_at: float | None = None           # when a stop that was asked for is done
    ready: bool = False
    detail: str = ""


@dataclass(slots=True)
class Node:
    """A machine: what lies on its disk survives its agent; its engines survive its agent too."""

    name: str
    inventory: Inventory
    seen: Seen = field(default_factory=Seen)                   # disk
    journal: set[ShardKey] = field(default_factory=set)        # disk
    shards: dict[ShardKey, Engine] = field(default_factory=dict)               # run directories
    run: int = 0
    up: bool = True                        # the agent
    back_at: float = 0.0                   # when a dead or paused agent goes on
    session: str = ""
    seq: int = 0
    orders: Orders | None = None
    applied_rev: int = 0
    next_sync: float = 0.0
    cut_until: float = 0.0                 # from the control plane
    told_inventory: bool = False
    reports: tuple[ShardReport, ...] = ()

    @property
    def agent_run(self) -> str:
        return f"{self.name}-run{self.run}"

    def mine(self) -> list[Mine]:
        """The run directories as the agent reads them."""
        return [Mine(key, one.order.nonce, one.alive, one.order.gpus, (one.order.port,), one.stop_at is not None)
                for key, one in self.shards.items()]

    def report(self, key: ShardKey, now: float) -> ShardReport:
        """What the agent says of one run directory."""
        one = self.shards[key]
        state = (ShardState.FAILED if not one.alive else ShardState.STOPPING if one.stop_at is not None
                 else ShardState.READY if one.ready else ShardState.STARTING)
        return ShardReport(*key[:2], one.order.nonce, key[2], state, pid=1, age_s=now - one.started, detail=one.detail,
                           fault=FaultClass.TRANSIENT)


def make_node(name: str) -> Node:
    """One of the six nodes, with two GPUs."""
    number, fabric = int(name[1:]), FABRICS[name]
    return Node(name, Inventory(
        name, name, f"10.0.0.{number}", 20000, 20039, gpus=tuple(Gpu(f"{name}-g{i}", i, "sim") for i in range(2)),
        adapters=tuple(Adapter(name, link_layer="InfiniBand", state="ACTIVE") for name in ("mlx5_0", "mlx5_1") if fabric),
        fabrics=(Fabric(fabric, ("mlx5_0", "mlx5_1"), f"10.1.0.{number}"),) if fabric else (),
        engines={"sim": EngineFound("sim", "1")}))


@dataclass(slots=True)
class Router:
    """A router: the table it has cached, and nothing else."""

    name: str
    table: RouterTable | None = None
    next_poll: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How bad the weather is in one history; chances are per second and place."""

    loss: float = 0.0
    delay_s: float = 0.0
    duplicate: float = 0.0
    plane_crash: float = 0.0
    commit_crash: float = 0.0              # per commit
    plane_pause: float = 0.0
    agent_crash: float = 0.0
    agent_pause: float = 0.0
    reboot: float = 0.0
    cut: float = 0.0
    cut_all: float = 0.0
    engine_exit: float = 0.0
    start_failure: float = 0.0             # per start
    catalog: float = 0.0

    @staticmethod
    def drawn(dice: random.Random) -> "Rates":
        """Weather for a seed: each kind of fault is absent, rare or frequent."""
        def some(most: float) -> float:
            return most * dice.choice((0.0, 0.1, 1.0))
        return Rates(some(0.3), some(90.0), some(0.2), some(0.01), some(0.05), some(0.005), some(0.004), some(0.002), some(0.001),
                     some(0.004), some(0.002), some(0.004), some(0.2), some(0.01))


class Network:
    """Messages on their way. `deliver` is called for each when its time has come, perhaps twice, perhaps never."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._under_way: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def send(self, now: float, rates: Rates, deliver: Callable[[], None]) -> None:
        for _ in range(2 if self._dice.random() < rates.duplicate else 1):
            if self._dice.random() >= rates.loss:
                late = self._dice.random() ** 4 * rates.delay_s
                self._count += 1
                self._under_way.append((now + late, self._count, deliver))

    def step(self, now: float) -> None:
        """Deliver what is due, in order of arrival."""
        due = sorted(item for item in self._under_way if item[0] <= now)
        self._under_way = [item for item in self._under_way if item[0] > now]
        for _, _, deliver in due:
            deliver()
