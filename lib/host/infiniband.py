"""The InfiniBand adapters of this machine, as /sys/class/infiniband tells them.

Room: host. The root is an argument, so that a tree of files can stand in for a driver. Nothing here says on which fabric an
adapter is: only the operator knows. Any file may be missing or refuse to be read, and then that field stays empty.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from lib.base.names import natural
from lib.model.fleet import Adapter

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec \((\d+)X(?: [A-Z0-9]+)?\)")
_ZERO_GUID = "0000:0000:0000:0000"


def read_adapters(root: Path) -> tuple[Adapter, ...]:
    """Every port of every adapter under `root` (/sys/class/infiniband), in natural order; none where there is no such tree."""
    found = []
    for device in sorted(_names(root), key=natural):
        for port in sorted(_names(root / device / "ports"), key=natural):
            if port.isdigit():
                found.append(_read_port(root / device, int(port)))
    return tuple(found)


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir() if entry.is_dir()]     # is_dir follows links: sysfs has only links
    except OSError:
        return []


def _read_port(device: Path, port: int) -> Adapter:
    files = device / "ports" / str(port)
    return Adapter(name=device.name, port=port, link_layer=_read(files / "link_layer"),
                   state=_word(_read(files / "state")), physical=_word(_read(files / "phys_state")),
                   rate=_read(files / "rate"), guid=_read(device / "node_guid"),
                   netdev=" ".join(sorted(_names(device / "device" / "net"), key=natural)))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:                        # EINVAL, ENODEV while it goes, or not there at all
        return ""


def _word(text: str) -> str:
    """"4: ACTIVE" as "ACTIVE"."""
    return text.partition(": ")[2] or text


def conditions(root: Path, adapters: Sequence[Adapter]) -> tuple[str, ...]:
    """What an operator should know of `adapters`, read from `root`: a sentence for each thing that is off."""
    if not adapters:
        return (_explain_none(root),)
    return tuple(sentence for sentence in (explain(adapter, adapters) for adapter in adapters) if sentence)


def _explain_none(root: Path) -> str:
    if not root.is_dir():
        return f"{root} does not exist: no RDMA driver is loaded, or it is not passed into this machine"
    return f"{root} is empty: an RDMA driver is loaded, but there is no adapter"


def explain(adapter: Adapter, sisters: Sequence[Adapter] = ()) -> str:
    """What is wrong with an adapter, and where to look; an empty string where nothing is. `sisters` are the others."""
    name = f"{adapter.name} port {adapter.port}" if adapter.port != 1 else adapter.name
    if problem := _explain_link(adapter) or _explain_rate(adapter, sisters):
        return f"{name}: {problem}"
    return ""


def _explain_link(adapter: Adapter) -> str:
    if adapter.link_layer == "Ethernet":
        return "Ethernet (RoCE), which is no InfiniBand fabric"
    if not adapter.is_infiniband:
        return f"link layer {adapter.link_layer or 'cannot be read'}"
    if adapter.state == "ACTIVE":
        return ""
    if adapter.guid == _ZERO_GUID:
        return "its GUID is zero: a virtual function whose GUID the host has not set"
    return {
        ("DOWN", "Polling"): "no link: look at the cable and the switch port",
        ("DOWN", "Disabled"): "switched off by an administrator",
        ("INIT", "LinkUp"): "the cable is good, but there is no subnet manager on its fabric",
        ("ARMED", "LinkUp"): "the subnet manager has not finished with it, or has died",
    }.get((adapter.state, adapter.physical), f"it is not ACTIVE: its state reads {adapter.state or 'nothing'}, "
                                             f"its link {adapter.physical or 'nothing'}")


def _explain_rate(adapter: Adapter, sisters: Sequence[Adapter]) -> str:
    rates = [_gigabits(other) for other in sisters if other.is_infiniband and other.state == "ACTIVE"]
    if rates and 0 < _gigabits(adapter) < max(rates):
        return f"{adapter.rate}, slower than its sisters ({max(rates):g} Gb/sec): often a bad cable"
    return ""


def _gigabits(adapter: Adapter) -> float:
    match = _RATE.fullmatch(adapter.rate)
    return float(match[1]) if match else 0.0
