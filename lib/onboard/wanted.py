"""What the operator asked for, checked whole before anybody is spoken to.

Room: onboard. Pure. Every word of it that is wrong is listed at once; what passes can stand in a file name, a certificate and a
configuration, and reaches the node as data only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from lib.base.address import address_fault
from lib.base.config import did_you_mean
from lib.base.errors import UsageError
from lib.base.names import DNS_LABEL, SHORT_LABEL
from lib.engines import ENGINES

SIMULATION = "sim"
RESERVED = ("localhost",)
_ADAPTER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_FABRIC = re.compile(rf"(?P<name>{SHORT_LABEL})(:{_ADAPTER}(,{_ADAPTER})*)?")
_PATH = re.compile(r"/[^\x00-\x1f\x7f]{0,1023}")
_LABEL = re.compile(r"(?P<key>[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?)=(?P<value>[^\x00-\x1f\x7f]{0,200})")
_PORTS = re.compile(r"(?P<low>[0-9]{1,5})-(?P<high>[0-9]{1,5})")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9a-fA-F:.]+")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The node as it shall be."""

    node: str
    address: str
    server: str
    fabrics: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()          # NAME=PATH
    nvidia_smi: str = ""                   # empty: the one on the node's PATH
    ib_root: str = "/sys/class/infiniband"
    ports: str = "20000-20999"
    labels: tuple[str, ...] = ()           # KEY=VALUE
    ssh_user: str = "root"
    ssh_port: int = 22

    @property
    def programs(self) -> Mapping[str, str]:
        """Engine name -> path."""
        return dict(_pair(each) for each in self.engines)

    @property
    def words(self) -> Mapping[str, str]:
        """The labels as a table."""
        return dict(_pair(each) for each in self.labels)

    @property
    def host_port(self) -> tuple[str, int]:
        """Where the control plane listens."""
        parts = urlsplit(self.server)
        return parts.hostname or "", parts.port or 443


def check(wanted: Wanted) -> None:
    """UsageError with everything that is wrong."""
    faults = [*_node_faults(wanted.node), *_place_faults(wanted), *_fabric_faults(wanted.fabrics),
              *_engine_faults(wanted.engines), *_path_faults(wanted), *_label_faults(wanted.labels), *_ports_faults(wanted.ports)]
    if faults:
        raise UsageError("\n".join(faults), hint="nothing was done")


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _node_faults(node: str) -> Iterator[str]:
    if re.fullmatch(DNS_LABEL, node) and not node.isdigit() and node not in RESERVED:
        return
    rule = "a node's id is a DNS label: lower-case letters, digits and '-', at most 63, and not only digits"
    better = re.sub(r"[^a-z0-9]+", "-", node.lower()).strip("-")[:63].rstrip("-")
    usable = better != node and re.fullmatch(DNS_LABEL, better) and not better.isdigit()
    yield f"--node {node!r}: {rule}" + (f"; {better!r} would do" if usable else "")


def _place_faults(wanted: Wanted) -> Iterator[str]:
    if problem := address_fault(wanted.address):
        yield f"--addr: {problem}"
    try:
        parts = urlsplit(wanted.server)
        fits = (parts.scheme == "https" and parts.port and _HOST.fullmatch(parts.hostname or "") and parts.path in ("", "/")
                and not (parts.query or parts.fragment or parts.username or parts.password))
    except ValueError:
        fits = False
    if not fits or not wanted.server.isascii():
        yield f"--server {wanted.server!r} is not the URL of a control plane, such as https://10.0.0.140:7443"
    if not _USER.fullmatch(wanted.ssh_user):
        yield f"--ssh-user {wanted.ssh_user!r} is not the name of a user"
    if not 1 <= wanted.ssh_port <= 65535:
        yield f"--ssh-port {wanted.ssh_port} is not a port"


def _fabric_faults(fabrics: Sequence[str]) -> Iterator[str]:
    names = [claim.partition(":")[0] for claim in fabrics]
    adapters = [adapter for claim in fabrics for adapter in claim.partition(":")[2].split(",") if adapter]
    for claim in fabrics:
        if not _FABRIC.fullmatch(claim):
            yield f"--fabric {claim!r} does not declare a fabric: write ib-a, or ib-a:mlx5_0,mlx5_1 to name its adapters"
    yield from (f"--fabric: {name} is declared twice" for name in sorted(set(names)) if names.count(name) > 1)
    yield from (f"--fabric: adapter {adapter} is under two fabrics, or twice under one"
                for adapter in sorted(set(adapters)) if adapters.count(adapter) > 1)


def _engine_faults(engines: Sequence[str]) -> Iterator[str]:
    known = [name for name in ENGINES if name != SIMULATION]
    names = [_pair(each)[0] for each in engines]
    for each in engines:
        name, path = _pair(each)
        if name == SIMULATION:
            yield "--engine sim: the agent carries it, it needs no path"
        elif name not in known:
            better = did_you_mean(name, known) or f"known: {', '.join(known)}"
            yield f"--engine {name!r}: there is no such engine; {better}"
        elif not _PATH.fullmatch(path):
            yield f"--engine {name}: {path!r} is not an absolute path"
    yield from (f"--engine {name}: given twice" for name in sorted(set(names)) if names.count(name) > 1)


def _path_faults(wanted: Wanted) -> Iterator[str]:
    for flag, path in (("--nvidia-smi", wanted.nvidia_smi), ("--ib-root", wanted.ib_root)):
        if path and not _PATH.fullmatch(path):
            yield f"{flag} {path!r} is not an absolute path"


def _label_faults(labels: Sequence[str]) -> Iterator[str]:
    keys = [_pair(each)[0] for each in labels]
    yield from (f"--label {each!r} is not KEY=VALUE" for each in labels if not _LABEL.fullmatch(each))
    yield from (f"--label {key}: given twice" for key in sorted(set(keys)) if keys.count(key) > 1)


def _ports_faults(ports: str) -> Iterator[str]:
    match = _PORTS.fullmatch(ports)
    if not match or not 1024 <= int(match["low"]) <= int(match["high"]) <= 65535:
        yield f"--ports {ports!r} is not a range of ports from 1024 to 65535, such as 20000-20999"
