"""Everything that stands against a wish on this host, before anything is touched.

Room: provision. Pure. What `qm create` would not look at and a start would trip over (bridge, devices, groups) is looked at too.
"""

from collections.abc import Iterator

from lib.base.config import did_you_mean
from lib.provision.facts import Facts
from lib.provision.image import Image
from lib.provision.wish import Pci, Wish
from lib.remote.proxmox import PciDevice

MAPPINGS_SINCE = 8
GIB = 1 << 30


def faults_of(wish: Wish, facts: Facts) -> list[str]:
    """One sentence a fault; none: go ahead."""
    checks = (_id, _name, _address, _storage, _bridge, _image, _size, _devices)
    return [fault for check in checks for fault in check(wish, facts)]


def notes_of(wish: Wish, facts: Facts) -> list[str]:
    """What is worth knowing and stands against nothing."""
    notes = [*facts.notes, *(f"left out of the search for volumes of {wish.vmid}: {fault}" for fault in facts.unlisted.values())]
    storage = facts.storages.get(wish.storage)
    if storage and storage.available is not None and storage.available < wish.disk_mib << 20:
        notes.append(f"storage {wish.storage} has {storage.available / GIB:.0f} GiB left, less than the disk may grow to")
    if not isinstance(facts.keys, str) and facts.keys.left_out:
        notes.append(f"{facts.keys.left_out} lines of the keys file were left out: no plain public keys")
    if not wish.gateway:
        notes.append("no gateway: the node will reach its own network only")
    notes += [f"{claim.guest} is not running and names {device} too" for device in wish.pci for claim in facts.claims
              if claim.guest.status != "running" and _clash(device, claim.devices) and claim.guest.node == facts.node]
    return notes


def _id(wish: Wish, facts: Facts) -> Iterator[str]:
    if not facts.quorate:
        yield "the cluster has no quorum: nothing can be made until more of its nodes are back"
    same = [guest for guest in facts.guests if guest.vmid == wish.vmid]
    for guest in same:
        yield f"--vmid: {wish.vmid} is there already: {guest}"
    if facts.taken and not same:
        yield f"--vmid: {wish.vmid} is there already: a guest that was made just now"
    if facts.volumes and not same and not facts.taken:
        yield (f"--vmid: no guest has the id {wish.vmid}, but volumes of it are left: {', '.join(sorted(facts.volumes))}; "
               "somebody may want them (pvesm free VOLUME removes one)")


def _name(wish: Wish, facts: Facts) -> Iterator[str]:
    for guest in facts.guests:
        if guest.name.lower() == wish.name and guest.vmid != wish.vmid:
            yield f"--name: {wish.name} is the name of {guest}"


def _address(wish: Wish, facts: Facts) -> Iterator[str]:
    for claim in facts.claims:
        if wish.address in claim.addresses:
            yield f"--ip: {wish.address} is configured for {claim.guest}"
    if facts.answers:
        yield f"--ip: {wish.address} is in use: a machine answers there ({facts.answers})"


def _storage(wish: Wish, facts: Facts) -> Iterator[str]:
    storage = facts.storages.get(wish.storage)
    if storage is None:
        near = did_you_mean(wish.storage, facts.storages)
        yield f"--storage: {facts.node} has no storage {wish.storage}{f'; {near}' if near else ''}"
    elif "images" not in storage.content:
        fitting = sorted(name for name, one in facts.storages.items() if "images" in one.content)
        yield f"--storage: {wish.storage} takes no disks of VMs (content images); {', '.join(fitting) or 'none'} would"
    elif not storage.usable:
        yield f"--storage: {wish.storage} is disabled or not online"
    elif wish.storage in facts.unlisted:
        yield f"--storage: {facts.unlisted[wish.storage]}"
    elif storage.available is not None and isinstance(facts.image, Image) and storage.available < facts.image.size:
        yield (f"--storage: {wish.storage} has {storage.available / GIB:.1f} GiB left, "
               f"the image alone takes {facts.image.size / GIB:.1f}")


def _bridge(wish: Wish, facts: Facts) -> Iterator[str]:
    if wish.bridge not in facts.bridges:
        yield f"--bridge: {facts.node} has no bridge {wish.bridge}; it has {', '.join(sorted(facts.bridges)) or 'none'}"


def _image(wish: Wish, facts: Facts) -> Iterator[str]:
    if isinstance(facts.image, str):
        yield facts.image
    elif facts.image.size > wish.disk_mib << 20:
        yield f"--disk: the disk in the image is {facts.image.size / GIB:.1f} GiB already and cannot be made smaller"
    if isinstance(facts.keys, str):
        yield facts.keys


def _size(wish: Wish, facts: Facts) -> Iterator[str]:
    if facts.cpus is not None and wish.cores > facts.cpus:
        yield f"--cores: {wish.cores} are more than the {facts.cpus} of {facts.node}"
    if facts.memory is not None and wish.memory_mib << 20 > facts.memory:
        yield f"--memory: {wish.memory_mib} MiB are more than the {facts.memory >> 20} of {facts.node}"


def _devices(wish: Wish, facts: Facts) -> Iterator[str]:
    for device in wish.pci:
        yield from _mapping(device, facts) if device.mapping else _device(device, wish, facts)


def _mapping(device: Pci, facts: Facts) -> Iterator[str]:
    mapping = facts.mappings.get(device.mapping)
    if facts.release < MAPPINGS_SINCE:
        yield f"--pci: Proxmox VE {facts.release} has no resource mappings; name the address"
    elif mapping is None:
        yield f"--pci: there is no PCI mapping {device.mapping}; there is {', '.join(sorted(facts.mappings)) or 'none'}"
    elif facts.node not in mapping.nodes:
        yield f"--pci: mapping {device.mapping} names no device of {facts.node}"
    elif mapping.fault:
        yield f"--pci: mapping {device.mapping}: {mapping.fault}"


def _device(device: Pci, wish: Wish, facts: Facts) -> Iterator[str]:
    functions = [one for address, one in facts.pci.items() if device.covers(address)]
    if not functions:
        yield f"--pci: {facts.node} has no device {device.address}"
    elif any(one.group is None for one in functions):
        yield f"--pci: {device.address} is in no IOMMU group: turn on the IOMMU in firmware and kernel of {facts.node}"
    elif others := _roommates(functions, wish, facts):
        yield f"--pci: {device.address} shares its IOMMU group with {', '.join(others)}: pass those too, or none"
    for claim in facts.claims:
        if claim.guest.node == facts.node and claim.guest.status == "running" and _clash(device, claim.devices):
            yield f"--pci: {device.address} is in use by {claim.guest}"


def _roommates(functions: list[PciDevice], wish: Wish, facts: Facts) -> list[str]:
    groups = {one.group for one in functions}
    return [f"{address} ({one.label})" for address, one in sorted(facts.pci.items())
            if one.group in groups and not any(device.covers(address) for device in wish.pci)]


def _clash(device: Pci, devices: frozenset[str]) -> bool:
    return bool(device.address) and any(device.covers(other) or other == device.address or device.address.startswith(f"{other}.")
                                        for other in devices)
