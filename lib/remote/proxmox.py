"""Proxmox VE by its own commands: what `pvesh`, `pvesm` and `qm` tell of the host, and the few calls that change it.

Room: remote. Nothing is decided here. What they say is parsed strictly; what they refuse keeps their own words. A command that
changes something is never killed: `qm` cleans up after itself when asked to end, and leaves half a VM when killed.
"""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.base.errors import LlmgwError, NotFound, TimedOut
from lib.host.run import Outcome, Overdue, attempt

READ_S = 60.0
GRACE_S = 120.0                            # how long a change may take to undo itself once it was asked to end
LOCK_TRIES, LOCK_PAUSE_S = 3, 2.0          # each try of `qm` itself waits some seconds for the lock
ON_THE_HOST = "run this on the Proxmox host, as root"


@dataclass(frozen=True, slots=True)
class Standing:
    """This host's place in its cluster; a host without a cluster is quorate."""

    node: str
    quorate: bool


@dataclass(frozen=True, slots=True)
class Guest:
    """A VM or container, on whatever node of the cluster."""

    vmid: int
    name: str
    node: str
    kind: str                              # qemu | lxc
    status: str
    template: bool = False

    def __str__(self) -> str:
        kind = "container" if self.kind == "lxc" else "template" if self.template else "VM"
        return f"{kind} {self.vmid} ({self.name}, on {self.node}, {self.status})"


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage as this node sees it. `available` counts bytes; thin pools promise more than they have."""

    name: str
    content: frozenset[str]
    usable: bool
    available: int | None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function of this node; `group` is None where there is no IOMMU."""

    address: str
    group: int | None
    label: str


@dataclass(frozen=True, slots=True)
class PciMapping:
    """A PCI resource mapping: on which nodes it names a device, and what the cluster finds wrong with it here."""

    id: str
    nodes: frozenset[str]
    fault: str = ""


class CommandFailed(LlmgwError):
    """A command that changes something failed. `output` is all that it printed before."""

    def __init__(self, argv: Sequence[str], done: Outcome) -> None:
        self.output, self.reason = done.stdout, _reason(done)
        before = " | ".join(line.strip() for line in done.stdout.splitlines()[-3:] if line.strip())
        super().__init__(f"{' '.join(argv[:3])}: {self.reason}", hint=f"before that it said: {before}" if before else "")


def read_release() -> int:
    """The major release of Proxmox VE."""
    release = _text(_get("/version"), "release", "/version")
    if not (found := re.match(r"\d+", release)):
        raise LlmgwError(f"pvesh get /version says release {release!r}, which is no version")
    return int(found[0])


def read_standing() -> Standing:
    """Which node of the cluster this is, and whether the cluster may be changed."""
    rows = _rows("/cluster/status")
    here = [row for row in rows if row.get("type") == "node" and _flag(row.get("local"))]
    if len(here) != 1:
        raise LlmgwError("pvesh get /cluster/status does not say which node this is", hint=ON_THE_HOST)
    quorate = all(_flag(row.get("quorate")) for row in rows if row.get("type") == "cluster")
    return Standing(_text(here[0], "name", "/cluster/status"), quorate)


def read_guests() -> tuple[Guest, ...]:
    """All VMs and containers of the cluster. Some seconds old; `is_taken` knows better of one id."""
    where = "/cluster/resources"
    return tuple(Guest(_number(row, "vmid", where), str(row.get("name", "")), _text(row, "node", where),
                       _text(row, "type", where), str(row.get("status", "unknown")), _flag(row.get("template")))
                 for row in _rows(where, "--type", "vm"))


def is_taken(vmid: int) -> bool:
    """Whether the cluster has a guest of this id at this moment."""
    done = _attempt(["pvesh", "get", "/cluster/nextid", "--vmid", str(vmid), "--output-format", "json"])
    if done.status and "already exists" not in done.stderr:
        raise LlmgwError(f"pvesh get /cluster/nextid: {_reason(done)}")
    return bool(done.status)


def read_capacity(node: str) -> tuple[int | None, int | None]:
    """CPUs and bytes of memory of `node`, where it tells."""
    row = next((row for row in _rows("/nodes") if row.get("node") == node), {})
    cpus, memory = row.get("maxcpu"), row.get("maxmem")
    return (cpus if isinstance(cpus, int) else None), (memory if isinstance(memory, int) else None)


def read_storages(node: str) -> dict[str, Storage]:
    """The storages of a node by name."""
    where = f"/nodes/{node}/storage"
    found = [Storage(_text(row, "storage", where), frozenset(str(row.get("content", "")).split(",")),
                     _flag(row.get("enabled", 1)) and _flag(row.get("active", 1)),
                     row["avail"] if isinstance(row.get("avail"), int) else None) for row in _rows(where)]
    return {storage.name: storage for storage in found}


def read_bridges(node: str, wanted: str) -> frozenset[str]:
    """The bridges of a node; virtual networks are asked for only where `wanted` is no plain bridge."""
    where = f"/nodes/{node}/network"
    bridges = {_text(row, "iface", where) for row in _rows(where) if row.get("type") in ("bridge", "OVSBridge")}
    if wanted not in bridges:
        done = _attempt(["pvesh", "get", where, "--type", "any_bridge", "--output-format", "json"])
        bridges |= set() if done.status else {_text(row, "iface", where) for row in _listed(_parsed(done.stdout, where), where)}
    return frozenset(bridges)


def read_pci(node: str) -> dict[str, PciDevice]:
    """The PCI functions of a node by address, bridges and memory controllers left out."""
    where = f"/nodes/{node}/hardware/pci"
    found = [PciDevice(_text(row, "id", where), group if isinstance(group := row.get("iommugroup"), int) and group >= 0 else None,
                       str(row.get("device_name") or row.get("device") or "device")) for row in _rows(where)]
    return {device.address: device for device in found}


def read_mappings(node: str) -> dict[str, PciMapping]:
    """The PCI resource mappings of the cluster by id, checked for `node`."""
    where = "/cluster/mapping/pci"
    found = {}
    for row in _rows(where, "--check-node", node):
        entries = row.get("map") or []
        nodes = re.findall(r"(?:^|,)node=([^,\s]+)", "\n".join(map(str, entries)), flags=re.MULTILINE)
        faults = [str(check.get("message", "")) for check in row.get("checks") or [] if check.get("severity") == "error"]
        name = _text(row, "id", where)
        found[name] = PciMapping(name, frozenset(nodes), "; ".join(faults))
    return found


def read_config(guest: Guest) -> dict[str, str]:
    """A guest's configuration, on whatever node it is."""
    where = f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}/config"
    return _config(_get(where), where)


def find_config(node: str, vmid: int) -> dict[str, str] | None:
    """The configuration of the VM of this id on `node`, None where it has none."""
    where = f"/nodes/{node}/qemu/{vmid}/config"
    done = _attempt(read_config_argv(node, vmid))
    if done.status and "does not exist" in done.stderr:
        return None
    if done.status:
        raise LlmgwError(f"pvesh get {where}: {_reason(done)}")
    return _config(_parsed(done.stdout, where), where)


def read_config_argv(node: str, vmid: int) -> tuple[str, ...]:
    """The command by which a VM's configuration is read."""
    return "pvesh", "get", f"/nodes/{node}/qemu/{vmid}/config", "--output-format", "json"


def parse_config(text: str) -> dict[str, str]:
    """What `read_config_argv` prints."""
    return _config(_parsed(text, "config"), "config")


def read_volumes(storage: str, vmid: int) -> frozenset[str]:
    """The volumes that carry this id on a storage."""
    lines = _run(["pvesm", "list", storage, "--vmid", str(vmid)]).splitlines()
    return frozenset(line.split()[0] for line in lines[1:] if line.strip())


def read_path(volume: str) -> str:
    """Where a volume lies as a file."""
    return _run(["pvesm", "path", volume]).strip()


def read_status(vmid: int) -> str:
    """running | stopped | … of a VM of this node."""
    said = _run(["qm", "status", str(vmid)])
    if not (found := re.match(r"status: (\S+)", said)):
        raise LlmgwError(f"qm status {vmid} says {said.strip()!r}")
    return found[1]


def change(argv: Sequence[str], *, timeout_s: float) -> str:
    """Run one command that changes the host and give its output; CommandFailed in its own words where it fails.

    A lock that somebody else holds is waited for. Past its time, and when we are interrupted, it is asked to end and heard out.
    """
    for tries_left in range(LOCK_TRIES - 1, -1, -1):
        try:
            done = attempt(argv, timeout_s=timeout_s, env=_environment(), grace_s=GRACE_S)
        except Overdue as err:
            late = " and has not done so yet" if err.still_there() else ""
            raise TimedOut(str(err), hint=f"it was asked to end{late}") from None
        except NotFound as err:
            raise NotFound(str(err), hint=ON_THE_HOST) from None
        if not done.status:
            return done.stdout
        if tries_left and "can't lock file" in done.stderr and "got timeout" in done.stderr:
            time.sleep(LOCK_PAUSE_S)
            continue
        break
    raise CommandFailed(argv, done)


def _environment() -> Mapping[str, str]:
    """What these commands would have if the operator had typed them."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _attempt(argv: Sequence[str]) -> Outcome:
    try:
        return attempt(argv, timeout_s=READ_S, env=_environment())
    except NotFound as err:
        raise NotFound(str(err), hint=ON_THE_HOST) from None


def _run(argv: Sequence[str]) -> str:
    done = _attempt(argv)
    if done.status:
        raise LlmgwError(f"{' '.join(argv)}: {_reason(done)}", hint=ON_THE_HOST if "root" in done.stderr else "")
    return done.stdout


def _reason(done: Outcome) -> str:
    """Why it failed: the words on standard error, without the usage line that may follow them."""
    lines = [" ".join(line.split()) for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(line for line in lines if not re.match(r"(qm|pvesm|pvesh) \w+ .*<", line))[-600:] or f"exit {done.status}"


def _get(path: str, *options: str) -> Any:
    return _parsed(_run(["pvesh", "get", path, *options, "--output-format", "json"]), path)


def _parsed(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise LlmgwError(f"pvesh get {path} did not print JSON but {text[:80]!r}") from None


def _rows(path: str, *options: str) -> list[dict[str, Any]]:
    return _listed(_get(path, *options), path)


def _listed(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise LlmgwError(f"pvesh get {path} did not print a list of objects")
    return value


def _config(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise LlmgwError(f"pvesh get {path} did not print an object")
    return {str(key): str(text) for key, text in value.items()}


def _text(row: Any, key: str, path: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(key), str):
        raise LlmgwError(f"pvesh get {path}: {key} is missing or no string")
    return str(row[key])


def _number(row: Mapping[str, Any], key: str, path: str) -> int:
    if not str(row.get(key, "")).isdigit():
        raise LlmgwError(f"pvesh get {path}: {key} is missing or no number")
    return int(row[key])


def _flag(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "on")
