"""What this node has: GPUs, adapters, engines, sources; and in words what it lacks, before a replica dies of it.

Room: agent. Each part is looked at by the room that knows it; this puts them together. What a slow disk or a hanging driver
can hold up runs in the thread that calls `Inspector.inspect`, and in no other.
"""

import fcntl
import ipaddress
import logging
import shutil
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lib.agent.settings import AgentSettings
from lib.base.address import address_fault
from lib.base.errors import LlmgwError
from lib.engines import ENGINES, Engine
from lib.host.gpu import GpuReader
from lib.host.infiniband import conditions as link_conditions
from lib.host.infiniband import read_adapters
from lib.host.run import attempt
from lib.model.fleet import Adapter, EngineFound, Fabric, Inventory
from lib.model.wire import Source
from lib.rules.fabrics import assign

log = logging.getLogger(__name__)

VERSION_S = 60.0                            # vLLM needs half a minute of a cold disk to tell its version
ENGINE_AGE_S = 300.0                        # how long an engine that ran is believed to run still
MIB = 1024 * 1024
LITTLE_DISK = 256 * MIB                     # two logs of several shards fill it in minutes
PCI_ROOT = Path("/sys/bus/pci/devices")
SIOCGIFADDR = 0x8915                        # linux/sockios.h
SIMULATION = "sim"                          # the engine that is always there: it is the agent itself


class Inspector:
    """Looks at the machine again and again. Making one refuses fabrics that are not certain."""

    def __init__(self, settings: AgentSettings, version: str) -> None:
        self._settings, self._version = settings, version
        standing_in = settings.nvidia_smi != "nvidia-smi"       # one at a path of its own may show what the bus has not
        self._gpus = GpuReader(settings.nvidia_smi, pci_root=None if standing_in else PCI_ROOT)
        self.fabrics = _fabrics(settings, read_adapters(settings.ib_root))
        self._engines: dict[str, tuple[float, EngineFound]] = {}

    def inspect(self, sources: Iterable[Source]) -> Inventory:
        """The machine now, and whether these weights are there and complete."""
        settings = self._settings
        reading, adapters = self._gpus.read(), read_adapters(settings.ib_root)
        engines = {name: self._engine(name) for name in ENGINES if name == SIMULATION or name in settings.engines}
        return Inventory(
            node=settings.node, hostname=socket.gethostname(), address=settings.address,
            port_low=settings.port_low, port_high=settings.port_high, gpus=reading.gpus, adapters=adapters,
            fabrics=self.fabrics, engines=engines, labels=settings.labels,
            sources={wanted.path: ENGINES[wanted.engine].source_fault(wanted.path) for wanted in sources
                     if wanted.engine in ENGINES},
            conditions=tuple(self._conditions(reading.problem, adapters, engines)))

    def _engine(self, name: str) -> EngineFound:
        if name == SIMULATION:
            return EngineFound("", self._version)
        checked, found = self._engines.get(name, (0.0, EngineFound("")))
        if not checked or found.fault or time.monotonic() - checked > ENGINE_AGE_S:
            found = ask_version(ENGINES[name], self._settings.engines[name])
            self._engines[name] = time.monotonic(), found
        return found

    def _conditions(self, gpu_problem: str, adapters: Sequence[Adapter], engines: Mapping[str, EngineFound]) -> Iterable[str]:
        several_here = ipaddress.ip_address(self._settings.address).is_loopback      # one machine stands in for many nodes
        if (hostname := socket.gethostname()) != self._settings.node and not several_here:
            yield f"its hostname is {hostname}"
        if gpu_problem:
            yield gpu_problem
        if (free := shutil.disk_usage(self._settings.state_dir).free) < LITTLE_DISK:
            yield f"only {free // MIB} MiB are free in {self._settings.state_dir}: no shard can start when it is full"
        if self.fabrics:
            used = {name for fabric in self.fabrics for name in fabric.adapters}
            yield from link_conditions(self._settings.ib_root, [adapter for adapter in adapters if adapter.name in used])
        yield from (f"engine {name}: {found.fault}" for name, found in engines.items() if found.fault)


def ask_version(engine: Engine, program: str) -> EngineFound:
    """Run the program once: what it says of its version, or why it cannot run."""
    try:
        done = attempt([program, *engine.version_argv], timeout_s=VERSION_S)
    except LlmgwError as err:
        return EngineFound(program, fault=str(err))
    if version := engine.parse_version(done.stdout + done.stderr):
        return EngineFound(program, version)
    said = " ".join((done.stderr.strip() or done.stdout.strip())[-200:].split())
    return EngineFound(program, fault=f"{program} tells no version (status {done.status}): {said}")


def _fabrics(settings: AgentSettings, adapters: Sequence[Adapter]) -> tuple[Fabric, ...]:
    by_name = {adapter.name: adapter for adapter in adapters}
    return tuple(Fabric(name, names, _fabric_address(settings, name, [by_name[each] for each in names]))
                 for name, names in assign(settings.fabrics, adapters))


def _fabric_address(settings: AgentSettings, fabric: str, adapters: Sequence[Adapter]) -> str:
    """Where rendezvous ports bind: as configured, else the first IPoIB address of its adapters, else the node's address."""
    if fabric in settings.fabric_addresses:
        return settings.fabric_addresses[fabric]
    for interface in (name for adapter in adapters for name in adapter.netdev.split()):
        if (address := interface_address(interface)) and not address_fault(address):
            return address
    return settings.address


def interface_address(interface: str) -> str:
    """The IPv4 address of a network interface of this machine, or an empty string."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
        return socket.inet_ntoa(answer[20:24])


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address (127.0.0.0/8: `lo`), or an empty string."""
    if address.startswith("127."):
        return "lo"
    return next((name for _, name in socket.if_nameindex() if interface_address(name) == address), "")
