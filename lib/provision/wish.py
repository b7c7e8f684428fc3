"""What was asked for, checked as far as words go: a `Wish` is well-formed, or refused with everything that is wrong with it.

Room: provision. Pure: whether the host has what is asked for is `checks`' question.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lib.base.errors import UsageError
from lib.base.names import check_node_id

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
MIB_OF = {"M": 1, "G": 1024, "T": 1024 * 1024}
SLOT = r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
MACHINES = r"q35|pc|pc-(q35|i440fx)-\d+(\.\d+)+(\+pve\d+)?"
MAX_PCI = 16


@dataclass(frozen=True, slots=True)
class Pci:
    """A device to pass through: an address of this host (all functions where none is named), or a resource mapping."""

    address: str = ""
    mapping: str = ""

    def covers(self, address: str) -> bool:
        """Whether a function of this host, such as 0000:41:00.0, is meant."""
        return bool(self.address) and (address == self.address or address.startswith(f"{self.address}."))

    def __str__(self) -> str:
        return f"mapping={self.mapping}" if self.mapping else self.address


@dataclass(frozen=True, slots=True)
class Wish:
    """The machine to make."""

    vmid: int
    name: str
    interface: Interface
    gateway: Address | None
    dns: tuple[Address, ...]
    search_domain: str
    bridge: str
    vlan: int | None
    storage: str
    image: str                             # a path, or STORAGE:VOLUME
    disk_mib: int
    cores: int
    memory_mib: int
    cpu: str
    machine: str
    bios: str                              # ovmf | seabios
    pci: tuple[Pci, ...]
    user: str
    tags: tuple[str, ...]
    onboot: bool
    server: str                            # the control plane's URL, for the command that comes next; may be empty

    @property
    def address(self) -> str:
        return str(self.interface.ip)

    @property
    def is_pcie(self) -> bool:
        return "q35" in self.machine


def parse_wish(asked: Mapping[str, Any]) -> Wish:
    """The wish that these flags (by their names, with _ for -) spell; UsageError naming all that is wrong."""
    faults: list[str] = []

    def take(name: str, parse: Callable[[Any], T], fallback: T) -> T:
        try:
            return parse(asked[name])
        except (ValueError, UsageError) as err:
            hint = f" ({err.hint})" if isinstance(err, UsageError) and err.hint else ""
            faults.append(f"--{name.replace('_', '-')}: {err}{hint}")
            return fallback

    nowhere: Interface = ipaddress.ip_interface("192.0.2.1/24")
    wish = Wish(
        vmid=take("vmid", _whole(100, 999_999_999), 0), name=take("name", check_node_id, ""),
        interface=take("ip", _interface, nowhere), gateway=take("gateway", _optional(_address), None),
        dns=take("dns", _several(_address), ()), search_domain=take("search_domain", _optional_word(_domain), ""),
        bridge=take("bridge", _like(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}", "a bridge"), ""),
        vlan=take("vlan", _optional(_whole(1, 4094)), None),
        storage=take("storage", _like(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", "a storage"), ""),
        image=take("image", _image, ""), disk_mib=take("disk", _size("G"), 0), cores=take("cores", _whole(1, 4096), 0),
        memory_mib=take("memory", _size("M"), 0), cpu=take("cpu", _like(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "a CPU type"), ""),
        machine=take("machine", _like(MACHINES, "a machine type"), ""),
        bios=take("bios", _like("ovmf|seabios", "a firmware"), ""),
        pci=take("pci", _several(_pci), ()), user=take("user", _like(r"[a-z_][a-z0-9_-]{0,31}", "a user name"), ""),
        tags=take("tags", _several(_like(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", "a tag")), ()), onboot=bool(asked["onboot"]),
        server=take("server", _optional_word(_like(r"https://[A-Za-z0-9.:\[\]-]+/?", "the URL of a control plane")), ""))
    if not faults:
        faults = list(_contradictions(wish))
    if faults:
        raise UsageError("\n".join(faults), hint="nothing was done; --help tells what each flag takes")
    return wish


def _contradictions(wish: Wish) -> Iterable[str]:
    """What is well-formed word by word and makes no sense together."""
    network = wish.interface.network
    if wish.interface.ip in _ends(network):
        yield f"--ip: {wish.address} is the network or broadcast address of {network}"
    if wish.gateway == wish.interface.ip:
        yield f"--gateway: {wish.gateway} is the address of the node itself"
    elif wish.gateway and (wish.gateway not in network or wish.gateway in _ends(network)):
        yield f"--gateway: {wish.gateway} is no host of {network}"
    if wish.memory_mib < 256:
        yield f"--memory: {wish.memory_mib} MiB is too little for any image; plain numbers are MiB, 16G is 16 GiB"
    if wish.disk_mib % 1024 or wish.disk_mib == 0:
        yield "--disk: must be whole GiB"
    if len(wish.pci) > MAX_PCI:
        yield f"--pci: a VM takes {MAX_PCI} devices"
    named = [str(one) for one in wish.pci if one.address]
    if len(set(named)) < len(named):
        yield "--pci: a device is named twice"


def _ends(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> tuple[Address, ...]:
    return (network.network_address, network.broadcast_address) if network.num_addresses > 2 and network.version == 4 else ()


def _like(pattern: str, what: str) -> Callable[[Any], str]:
    def parse(text: Any) -> str:
        if not re.fullmatch(pattern, text, flags=re.ASCII):
            raise ValueError(f"{text!r} cannot be {what}")
        return str(text)
    return parse


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(text: Any) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise ValueError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)
    return parse


def _size(unit: str) -> Callable[[Any], int]:
    """MiB; a number without a letter counts in `unit`."""
    def parse(text: Any) -> int:
        found = re.fullmatch(r"([0-9]{1,9})([MGT]?)(?:i?B)?", text)
        if not found or int(found[1]) == 0:
            raise ValueError(f"{text!r} is no size such as 64G")
        return int(found[1]) * MIB_OF[found[2] or unit]
    return parse


def _address(text: Any) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None


def _interface(text: Any) -> Interface:
    if "/" not in text:
        raise ValueError(f"{text!r} has no prefix length; write it as 10.0.0.144/24")
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        raise ValueError(f"{text!r} is no address with a prefix length, such as 10.0.0.144/24") from None
    if not re.fullmatch(r"[0-9]{1,3}", text.partition("/")[2]) or interface.network.prefixlen < 8:
        raise ValueError(f"{text!r} wants a prefix length of 8 or more, in digits")
    ip = interface.ip
    if ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local or str(ip) == "255.255.255.255":
        raise ValueError(f"{ip} cannot be the address of a node")
    return interface


def _domain(text: Any) -> str:
    if len(text) > 253 or not re.fullmatch(rf"{LABEL}(\.{LABEL})*", text, flags=re.ASCII):
        raise ValueError(f"{text!r} is no domain name")
    return str(text)


def _image(text: Any) -> str:
    """A path or volume as it can stand inside `import-from=`."""
    if not re.fullmatch(r"[^,\s\x00-\x1f\x7f]+", text):
        raise ValueError(f"{text!r} cannot be handed to qm: no blanks and commas, please")
    return str(text)


def _pci(text: Any) -> Pci:
    if found := re.fullmatch(r"mapping=([A-Za-z][A-Za-z0-9_-]+)", text, flags=re.ASCII):
        return Pci(mapping=found[1])
    if not re.fullmatch(SLOT, text.lower(), flags=re.ASCII):
        raise ValueError(f"{text!r} is neither an address such as 0000:41:00.0 nor mapping=NAME")
    return Pci(address=text.lower() if text.count(":") == 2 else f"0000:{text.lower()}")


def _optional(parse: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else parse(value)


def _optional_word(parse: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else parse(value)


def _several(parse: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """Of a repeated flag, whose values may also be lists."""
    return lambda values: tuple(parse(part) for value in values or () for part in re.split(r"[,; ]", value) if part)
