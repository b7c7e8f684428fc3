"""What is so before anything is touched: the host, its cluster, the image, the keys, and whether the address answers.

Room: provision. Only reads. What cannot be read of other guests is noted, not fatal: a node that is down must not stop the work.
"""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, NotFound, Refused
from lib.host.run import attempt
from lib.provision.image import Image, read_image
from lib.provision.keys import Keys, parse_keys
from lib.provision.wish import Wish
from lib.remote import proxmox
from lib.remote.proxmox import Guest, PciDevice, PciMapping, Storage

READERS = 4                                # each `pvesh` takes most of a second
NEIGHBOUR_TRIES = 10                       # the kernel takes some seconds to ask again for a neighbour that has aged
UNDECIDED = {"STALE", "DELAY", "PROBE", "INCOMPLETE"}


@dataclass(frozen=True, slots=True)
class Claim:
    """What another guest's configuration lays claim to."""

    guest: Guest
    addresses: frozenset[str]
    devices: frozenset[str]                # PCI addresses, with or without function


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `image` and `keys` are sentences where there is no usable one."""

    node: str
    quorate: bool
    release: int
    cpus: int | None
    memory: int | None
    guests: tuple[Guest, ...]
    taken: bool                            # the cluster has a guest of the wished id at this moment
    claims: tuple[Claim, ...]
    storages: dict[str, Storage]
    volumes: frozenset[str]                # those that carry the wished id already
    unlisted: dict[str, str]               # storages whose volumes cannot be listed, and why
    bridges: frozenset[str]
    pci: dict[str, PciDevice]
    mappings: dict[str, PciMapping]
    answers: str                           # how the wished address answered, empty when it did not
    image: Image | str
    image_source: str
    image_content: str                     # of a volume: images | import | iso …; empty for a path
    keys: Keys | str
    notes: tuple[str, ...]


def gather(wish: Wish, keys_file: Path, say: Callable[[str], None]) -> Facts:
    """Ask for all that the wish depends on."""
    standing = proxmox.read_standing()
    node, release = standing.node, proxmox.read_release()
    guests = proxmox.read_guests()
    say(f"looking at {node}: Proxmox VE {release}, {len(guests)} guests in the cluster")
    claims, notes = _claims([guest for guest in guests if guest.vmid != wish.vmid])
    storages = proxmox.read_storages(node)
    volumes, unlisted = _volumes(storages, wish.vmid)
    cpus, memory = proxmox.read_capacity(node)
    by_mapping = any(device.mapping for device in wish.pci)
    source = wish.image if _volume_content(wish.image) else str(Path(wish.image).absolute())
    return Facts(
        node, standing.quorate, release, cpus, memory, guests, proxmox.is_taken(wish.vmid), claims, storages,
        volumes, unlisted, proxmox.read_bridges(node, wish.bridge),
        proxmox.read_pci(node) if any(device.address for device in wish.pci) else {},
        proxmox.read_mappings(node) if by_mapping and release >= 8 else {},
        who_answers(wish.address), _image(wish.image, storages), source, _volume_content(wish.image), _keys(keys_file), notes)


def _volumes(storages: dict[str, Storage], vmid: int) -> tuple[frozenset[str], dict[str, str]]:
    """The volumes of an id wherever VMs may have some, and the storages that do not tell."""
    found, unlisted = frozenset[str](), {}
    for name, storage in sorted(storages.items()):
        if storage.usable and "images" in storage.content:
            try:
                found |= proxmox.read_volumes(name, vmid)
            except LlmgwError as err:
                unlisted[name] = str(err)
    return found, unlisted


def _claims(guests: Sequence[Guest]) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    with ThreadPoolExecutor(READERS) as readers:
        found = list(readers.map(_claim, guests))
    return tuple(one for one in found if isinstance(one, Claim)), tuple(one for one in found if isinstance(one, str))


def _claim(guest: Guest) -> Claim | str:
    try:
        return parse_claim(guest, proxmox.read_config(guest))
    except LlmgwError as err:
        return f"the configuration of {guest} cannot be read, its address was not compared: {err}"


def parse_claim(guest: Guest, config: dict[str, str]) -> Claim:
    """The addresses and devices that a guest's configuration names."""
    network = [value for key, value in config.items() if re.fullmatch(r"(ipconfig|net)\d+", key)]
    addresses = [ip for value in network for ip in re.findall(r"(?:^|,)ip6?=([0-9a-fA-F.:]+)", value)]
    devices = [part for key, value in config.items() if re.fullmatch(r"hostpci\d+", key)
               for part in re.sub(r"^host=", "", value.split(",")[0]).split(";") if "mapping=" not in part]
    whole = [device if device.count(":") == 2 else f"0000:{device}" for device in devices]
    return Claim(guest, frozenset(addresses), frozenset(device.lower() for device in whole))


def who_answers(address: str) -> str:
    """How a machine at `address` shows that it is there: "ping", "ARP", or nothing."""
    flag = ["-6"] if ":" in address else []
    if _said(["ping", *flag, "-n", "-c", "1", "-W", "1", address]) is not None:
        return "ping"
    for _ in range(NEIGHBOUR_TRIES):
        states = parse_neighbours(_said(["ip", "-json", "neigh", "show", "to", address]) or "")
        if not states & UNDECIDED:
            return "ARP" if "REACHABLE" in states else ""
        _said(["ping", *flag, "-n", "-c", "1", "-W", "1", address])
    return ""


def parse_neighbours(text: str) -> set[str]:
    """The states in which the kernel knows an address, out of what `ip -json neigh` prints."""
    try:
        rows = json.loads(text or "[]")
    except json.JSONDecodeError:
        return set()
    return {state for row in rows for state in row.get("state", ())}


def _said(argv: Sequence[str]) -> str | None:
    try:
        done = attempt(argv, timeout_s=10)
    except NotFound:
        return None
    return None if done.status else done.stdout


def _volume_content(image: str) -> str:
    """Of STORAGE:KIND/NAME the content type; empty for a path."""
    found = re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]:(.+)", image)
    if not found:
        return ""
    kind = found[1].partition("/")[0] if "/" in found[1] else "images"
    return kind if kind in ("import", "iso", "vztmpl", "backup", "snippets") else "images"


def _image(image: str, storages: dict[str, Storage]) -> Image | str:
    if not (content := _volume_content(image)):
        return _file(Path(image).absolute())
    if image.partition(":")[0] not in storages:
        return f"--image: there is no storage {image.partition(':')[0]}"
    if content not in ("import", "images"):
        return f"--image: {image} is of type {content}, qm imports from import and images only (its path works)"
    try:
        return _file(Path(proxmox.read_path(image)))
    except LlmgwError as err:
        return f"--image: {err}"


def _file(path: Path) -> Image | str:
    try:
        return read_image(path)
    except Refused as err:
        return f"--image: {err} ({err.hint})"


def _keys(path: Path) -> Keys | str:
    try:
        keys = parse_keys(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as err:
        return f"--ssh-keys: {path}: {err.strerror}"
    if not keys.usable:
        return f"--ssh-keys: {path} has no public key that a new machine could take; nobody could log in"
    return keys
