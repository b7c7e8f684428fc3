"""What an agent does about its orders.

Room: rules. Pure: the agent passes in what it was told, what it has and what it remembers, and performs what comes out.
Silence stops nothing; an entry is started once, ever; and what is not known to be allowed is not done.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lib.model.fleet import FaultClass, ShardKey, ShardState
from lib.model.rundir import shard_name
from lib.model.wire import Orders, Seen, ShardOrder, ShardReport


@dataclass(frozen=True, slots=True)
class Mine:
    """One shard that the node has a run directory of, or a process without one (`order` None)."""

    key: ShardKey
    nonce: str
    alive: bool                            # its shim or any process of its tree
    gpus: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    stopping: bool = False                 # it has been told to stop


@dataclass(frozen=True, slots=True)
class Start:
    """Write the journal entry, then start it."""

    order: ShardOrder


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop it: no new work, up to `drain_s` for its streams, then TERM, grace, KILL."""

    key: ShardKey
    drain_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Its processes are gone and nobody wants it: remove the run directory."""

    key: ShardKey


Action = Start | Stop | Forget


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and what to report of wanted shards that do not exist on this node."""

    actions: tuple[Action, ...] = ()
    reports: tuple[ShardReport, ...] = ()


def refusal(orders: Orders, agent_run: str, seen: Seen) -> str:
    """Why these orders are not obeyed; empty where they are. `seen` is journalled, and empty on a new node only."""
    if orders.agent_run != agent_run:
        return "they answer another run of this agent"
    if seen.lineage and orders.lineage != seen.lineage:
        return f"they are of another history ({orders.lineage}) than the one obeyed so far ({seen.lineage})"
    if orders.cp_epoch < seen.cp_epoch or orders.rev < seen.rev:
        return (f"they are of control-plane start {orders.cp_epoch}, revision {orders.rev}, and start {seen.cp_epoch}, "
                f"revision {seen.rev} has been obeyed")
    return ""


def obeyed(orders: Orders) -> Seen:
    """What to journal, with fsync, before these orders are acted on."""
    return Seen(orders.lineage, orders.cp_epoch, orders.rev)


def plan(orders: Orders, have: Sequence[Mine], journal: Collection[ShardKey]) -> Plan:
    """What to do now. Orders that `refusal` objects to must not come here; the last good ones do, again and again.

    Everything a start needs must be free: what runs on its GPUs or ports, wanted or not, is gone first.
    """
    wanted = {order.key: order for order in orders.shards}
    actions: list[Action] = [action for mine in have if (action := _unwanted(mine, wanted.get(mine.key), orders))]
    reports: list[ShardReport] = []
    present = {mine.key: mine for mine in have}
    busy = [mine for mine in have if mine.alive]
    for order in orders.shards:
        mine = present.get(order.key)
        if mine is not None and mine.nonce == order.nonce:
            continue
        step = _missing(order, order.key in journal, busy)
        if isinstance(step, ShardReport):
            reports.append(step)
        else:
            actions.append(step)
    return Plan(tuple(actions), tuple(reports))


def _unwanted(mine: Mine, order: ShardOrder | None, orders: Orders) -> Stop | Forget | None:
    if order is not None and order.nonce == mine.nonce:
        return None
    ended = next((item for item in orders.ended if item.key == mine.key), None)
    if ended is None and not orders.authoritative:
        return None
    if not mine.alive:
        return Forget(mine.key)
    if mine.stopping:
        return None
    return Stop(mine.key, ended.drain_s if ended else 0.0, "its epoch has ended" if ended else "nobody wants it")


def _missing(order: ShardOrder, journalled: bool, busy: Iterable[Mine]) -> Start | ShardReport:
    """A wanted shard that is not here: start it, or say why not."""
    if journalled:
        return _report(order, ShardState.FAILED, "it was started before, and nothing of it is here any more")
    if not order.may_start:
        return _report(order, ShardState.FAILED, "it is not running here, and may not be started")
    for mine in busy:
        if gpus := sorted({*mine.gpus} & {*order.gpus}):
            return _report(order, ShardState.STARTING, f"waits for {', '.join(gpus)}, which {shard_name(*mine.key)} still uses")
        if order.port in mine.ports:
            return _report(order, ShardState.STARTING, f"waits for port {order.port}, which {shard_name(*mine.key)} still uses")
    return Start(order)


def _report(order: ShardOrder, state: ShardState, detail: str) -> ShardReport:
    return ShardReport(order.replica, order.counter, order.nonce, order.rank, state, port=order.port, detail=detail,
                       fault=FaultClass.TRANSIENT)
