"""agent.toml as a type, checked whole before anything starts.

Room: agent. Reading only; what the file names on this machine is judged by `inventory`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.base.address import address_fault
from lib.base.config import Table, did_you_mean, read_toml
from lib.base.names import DNS_LABEL
from lib.engines import ENGINES
from lib.model.settings import pki_files, server_url

_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything agent.toml says."""

    file: Path
    node: str
    server: str
    address: str
    fabrics: tuple[str, ...]                # claims as written: "ib-b" or "ib-b:mlx5_2,mlx5_3"
    fabric_addresses: Mapping[str, str]
    port_low: int
    port_high: int
    state_dir: Path
    certificate: Path
    key: Path
    ca: Path
    nvidia_smi: str
    ib_root: Path
    engines: Mapping[str, str]              # engine name -> program
    labels: Mapping[str, str]

    @property
    def shards_dir(self) -> Path:
        return self.state_dir / "shards"

    @property
    def revoked(self) -> Path:
        return self.state_dir / "revoked.json"

    @property
    def run(self) -> Path:
        """Where the id of this run is told: under systemd in memory, so that it is on no copy of this machine's disk."""
        return Path(os.environ.get("RUNTIME_DIRECTORY") or self.state_dir) / "run"

    @property
    def notify(self) -> Path:
        return self.state_dir / "notify"


def read_settings(path: Path) -> AgentSettings:
    """The settings in the file at `path`; ConfigError with every fault."""
    root = read_toml(path)
    hardware = root.table("hardware")
    low, high = _ports(root)
    certificate, key, ca = pki_files(root, "/etc/llmgw/pki", "node")
    settings = AgentSettings(
        file=path, node=root.text("node", pattern=DNS_LABEL, expect="a node id (a lower-case DNS label)"),
        server=server_url(root), address=_address(root, "address"), fabrics=root.texts("fabrics", ()),
        fabric_addresses=_addresses(root), port_low=low, port_high=high,
        state_dir=root.file_path("state_dir", "/var/lib/llmgw"),
        certificate=certificate, key=key, ca=ca,
        nvidia_smi=hardware.text("nvidia_smi", "nvidia-smi"),
        ib_root=hardware.file_path("ib_root", "/sys/class/infiniband"),
        engines=_engines(root), labels=root.text_map("labels"))
    root.settle()
    return settings


def _ports(root: Table) -> tuple[int, int]:
    text = root.text("ports", "20000-20999")
    match = _PORTS.fullmatch(text)
    low, high = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= low <= high <= 65535:
        root.fault("ports", f"{text!r} is not a range of ports from 1024 to 65535", 'such as "20000-20999"')
    return low, high


def _address(root: Table, key: str) -> str:
    text = root.text(key)
    if text and (problem := address_fault(text)):
        root.fault(key, problem)
    return text


def _addresses(root: Table) -> dict[str, str]:
    addresses = root.text_map("fabric_addresses")
    claimed = {claim.partition(":")[0] for claim in root.texts("fabrics", ())}
    for fabric, address in addresses.items():
        if fabric not in claimed:
            root.fault("fabric_addresses", f"{fabric!r} is not among fabrics", did_you_mean(fabric, claimed))
        if problem := address_fault(address):
            root.fault("fabric_addresses", f"{fabric}: {problem}")
    return addresses


def _engines(root: Table) -> dict[str, str]:
    engines = root.text_map("engines")
    for name, program in engines.items():
        if name not in ENGINES:
            root.fault("engines", f"there is no engine {name!r}",
                       did_you_mean(name, ENGINES) or f"known: {', '.join(sorted(ENGINES))}")
        elif not program.startswith("/"):
            root.fault("engines", f"{name}: {program!r} is not an absolute path")
    return engines
