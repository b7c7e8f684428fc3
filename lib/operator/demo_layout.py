"""The demo's cluster on paper: who is in it, which addresses and ports they get, and where their files lie.

Room: operator. Engines of all nodes share one loopback, so every node has a block of ports of its own; a demo claims its blocks
by a socket that it keeps, so that the next demo takes others.
"""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError
from lib.base.files import read_text
from lib.host.ports import free

CLUSTER = "demo"
HOST = "127.0.0.1"                         # of the control plane and the router
PORTS_A_NODE = 100
GPUS_A_NODE = 4
LOWEST_PORT = 20000                        # the blocks lie between here and the kernel's ephemeral ports
LARGE, SMALL = "demo-large", "demo-small"


@dataclass(frozen=True, slots=True)
class DemoNode:
    """One node; without a fabric it is the island."""

    name: str
    address: str
    fabric: str
    port_low: int

    @property
    def port_high(self) -> int:
        return self.port_low + PORTS_A_NODE - 1


FABRICS = ("ib-a", "ib-a", "ib-a", "ib-b", "ib-b", "")
BLOCK = 3 + PORTS_A_NODE * len(FABRICS)    # the claim, the control plane, the router, and the nodes


@dataclass(frozen=True, slots=True)
class Real:
    """A real engine for the island."""

    program: str
    gguf: Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is. `base` is the first port of the block."""

    directory: Path
    base: int
    real: Real | None = None

    @property
    def control_port(self) -> int:
        return self.base + 1

    @property
    def router_port(self) -> int:
        return self.base + 2

    @property
    def router_url(self) -> str:
        return f"http://{HOST}:{self.router_port}"

    @property
    def nodes(self) -> tuple[DemoNode, ...]:
        first = self.base + 3
        return tuple(DemoNode(f"demo-node{number:02}", f"127.0.0.{10 + number}", fabric, first + (number - 1) * PORTS_A_NODE)
                     for number, fabric in enumerate(FABRICS, 1))

    @property
    def ctl_dir(self) -> Path:
        return self.directory / "ctl"

    @property
    def router_config(self) -> Path:
        return self.directory / "router" / "router.toml"

    def node_config(self, node: DemoNode) -> Path:
        return self.directory / "nodes" / node.name / "agent.toml"

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    @property
    def summary(self) -> Path:
        return self.directory / "demo.json"


def claim_ports() -> tuple[int, socket.socket]:
    """The first port of a free block, and the socket that keeps it ours until it is closed."""
    for base in _candidates():
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((HOST, base))        # without SO_REUSEADDR: two demos cannot both have it
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        if all(not free("0.0.0.0", port) for port in range(base + 1, base + BLOCK)):
            return base, claim
        claim.close()
    raise LlmgwError(f"no {BLOCK} free ports in a row from {LOWEST_PORT} on", hint="end another demo, or what else holds them")


def _candidates() -> Iterator[int]:
    """First ports of blocks: below the ephemeral ports, and above them where there is room."""
    text = read_text(Path("/proc/sys/net/ipv4/ip_local_port_range"))
    low, high = (int(word) for word in re.findall(r"\d+", text)[:2])
    yield from range(LOWEST_PORT, min(low, 65536) - BLOCK, BLOCK)
    yield from range(max(high + 1, LOWEST_PORT), 65536 - BLOCK, BLOCK)
    yield from range(10000, LOWEST_PORT - BLOCK, BLOCK)
