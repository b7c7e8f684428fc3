"""From an order to what a shim needs: command, environment, probe, and the reasons not to start at all.

Room: agent. The engine's object knows its command line; this adds what only the node knows.
"""

from collections.abc import Sequence

from lib.agent.inventory import SIMULATION, interface_of
from lib.agent.settings import AgentSettings
from lib.base.address import parse_host_port
from lib.engines import ENGINES, Launch
from lib.host import ports
from lib.model.cause import Cause
from lib.model.fleet import FaultClass, Inventory
from lib.model.rundir import ShardSpec
from lib.model.wire import ShardOrder


class Launcher:
    """Makes shard specs. `self_command`: the words that run this agent's own program, which carries the sim engine."""

    def __init__(self, settings: AgentSettings, cluster: str, self_command: Sequence[str]) -> None:
        self._settings, self._cluster, self._self = settings, cluster, tuple(self_command)

    def spec(self, order: ShardOrder, inventory: Inventory) -> ShardSpec:
        """The run directory's spec for `order`."""
        settings, engine = self._settings, ENGINES[order.engine]
        home = settings.state_dir / "cache" / order.engine
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        address = self._fabric_address(order, inventory)
        launch = Launch(order, self._program(order.engine), ports.engine_host(order.addr or settings.address), inventory.gpus,
                        interface_of(address), address, str(home))
        guarded = order.rank == 0
        return ShardSpec(
            order=order, node=settings.node, cluster=self._cluster, argv=tuple(engine.command(launch)),
            env=engine.environment(launch), probe=engine.readiness(launch) if engine.serves(order.rank) else None,
            engine_host=launch.engine_host, certificate=str(settings.certificate) if guarded else "",
            key=str(settings.key) if guarded else "", ca=str(settings.ca) if guarded else "",
            revoked=str(settings.revoked) if guarded else "", notify=str(settings.notify), drain_s=order.drain_s)

    def obstacle(self, order: ShardOrder, inventory: Inventory) -> Cause | None:
        """Why this order cannot be started here and now, in words that name who is in the way; None where nothing is."""
        if order.engine not in ENGINES:
            return Cause(FaultClass.CONFIGURATION, f"this agent knows no engine {order.engine!r}: upgrade it")
        if order.engine != SIMULATION and order.engine not in self._settings.engines:
            return Cause(FaultClass.CONFIGURATION, f"{self._settings.file} names no program for engine {order.engine}")
        if missing := set(order.gpus) - {gpu.uuid for gpu in inventory.usable_gpus}:
            return Cause(FaultClass.RESOURCE, f"GPU {', '.join(sorted(missing))} is not usable here")
        if problem := ENGINES[order.engine].source_fault(order.source) if order.source else "":
            return Cause(FaultClass.RESOURCE, problem)      # another node may have a good copy
        for address, port in self._binds(order):
            if problem := ports.free(address, port):
                return Cause(FaultClass.RESOURCE, problem)
        return None

    def _binds(self, order: ShardOrder) -> Sequence[tuple[str, int]]:
        """Every (address, port) of this node that the shard is going to bind."""
        if order.rank != 0:
            return ()
        binds = [(order.addr, order.port), (ports.engine_host(order.addr), order.port)]
        if rendezvous := parse_host_port(order.rdzv):
            binds.append(rendezvous)
        return binds

    def _program(self, engine: str) -> tuple[str, ...]:
        return self._self if engine == SIMULATION else (self._settings.engines[engine],)

    def _fabric_address(self, order: ShardOrder, inventory: Inventory) -> str:
        for fabric in inventory.fabrics:
            if order.adapters and set(order.adapters) <= set(fabric.adapters):
                return fabric.address
        return self._settings.address

