"""From a wish to the exact commands, in order; the same list is printed by a dry run and performed by a real one.

Room: provision. Pure. Everything is said in one `qm create`: between two calls somebody else could get at the VM.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.provision.wish import Pci, Wish
from lib.remote.proxmox import read_config_argv

CREATE_S, CHANGE_S = 3600.0, 300.0
DISK = "scsi0"
OWN_TAG = "llmgw"


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells this run's VM from any other of the same id: written by the call that makes it, read before any removal."""

    run: str                               # random hex digits

    @property
    def description(self) -> str:
        return f"made by llmgw-provision-node, run {self.run}"


@dataclass(frozen=True, slots=True)
class Ground:
    """What of the host the commands depend on."""

    node: str
    release: int
    image_source: str                      # absolute path or volume
    image_size: int                        # bytes of the disk in it


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands by what they are for. `resize` is empty where the image's disk has the wanted size already."""

    create: tuple[str, ...]
    resize: tuple[str, ...]
    read_back: tuple[str, ...]
    dump: tuple[str, ...]
    start: tuple[str, ...]

    @property
    def all(self) -> tuple[tuple[str, ...], ...]:
        return tuple(argv for argv in (self.create, self.resize, self.read_back, self.dump, self.start) if argv)


def make_plan(wish: Wish, ground: Ground, mark: Mark, keys: Path) -> Plan:
    """The commands that make the wish come true, `keys` being a file with the public keys."""
    vmid = str(wish.vmid)
    resize = ("qm", "disk", "resize", vmid, DISK, f"{wish.disk_mib // 1024}G")
    return Plan(create=("qm", "create", vmid, *(word for pair in _options(wish, ground, mark, keys) for word in pair)),
                resize=resize if wish.disk_mib << 20 > ground.image_size else (),
                read_back=read_config_argv(ground.node, wish.vmid), dump=("qm", "cloudinit", "dump", vmid, "user"),
                start=("qm", "start", vmid))


def start_timeout_s(wish: Wish) -> float:
    """How long `qm start` may take: it waits by itself for as long as the memory and the devices of the VM call for."""
    return 120.0 + 4 * max(150.0, wish.memory_mib / 1024)


def _options(wish: Wish, ground: Ground, mark: Mark, keys: Path) -> list[tuple[str, str]]:
    options = [("--name", wish.name), ("--description", mark.description),
               ("--tags", ";".join(sorted({OWN_TAG, *(tag.lower() for tag in wish.tags)}))),
               ("--ostype", "l26"), ("--machine", wish.machine), ("--bios", wish.bios)]
    if wish.bios == "ovmf":                # enrolled keys would turn on Secure Boot, which refuses GPU and fabric drivers
        options.append(("--efidisk0", f"{wish.storage}:0,efitype=4m,pre-enrolled-keys=0"))
    options += [
        ("--cpu", wish.cpu), ("--cores", str(wish.cores)), ("--memory", str(wish.memory_mib)), ("--balloon", "0"),
        ("--numa", "1"), ("--scsihw", "virtio-scsi-single"),
        (f"--{DISK}", f"{wish.storage}:0,import-from={ground.image_source},discard=on,iothread=1,ssd=1"),
        ("--scsi1", f"{wish.storage}:cloudinit"), ("--boot", f"order={DISK}"), ("--net0", _network(wish)),
        ("--serial0", "socket"), ("--vga", "serial0"), ("--agent", "1"), ("--ipconfig0", _ip(wish))]
    if wish.dns:
        options.append(("--nameserver", " ".join(map(str, wish.dns))))
    if wish.search_domain:
        options.append(("--searchdomain", wish.search_domain))
    options += [("--ciuser", wish.user), ("--sshkeys", str(keys))]
    if ground.release >= 8:                # a first boot that upgrades holds the package lock and changes kernels under drivers
        options.append(("--ciupgrade", "0"))
    options.append(("--onboot", "1" if wish.onboot else "0"))
    return options + [(f"--hostpci{number}", _hostpci(device, wish)) for number, device in enumerate(wish.pci)]


def _network(wish: Wish) -> str:
    return f"virtio,bridge={wish.bridge}" + (f",tag={wish.vlan}" if wish.vlan else "")


def _ip(wish: Wish) -> str:
    suffix = "" if wish.interface.version == 4 else "6"
    text = f"ip{suffix}={wish.interface.with_prefixlen}"
    return text + (f",gw{suffix}={wish.gateway}" if wish.gateway else "")


def _hostpci(device: Pci, wish: Wish) -> str:
    return str(device) + (",pcie=1" if wish.is_pcie else "")


def render_plan(plan: Plan, keys: Path, key_lines: Sequence[str]) -> str:
    """The plan as a shell would take it, the file with the keys included."""
    made = "\n".join(["umask 077", f"mkdir -p {shlex.quote(str(keys.parent))}", f"cat > {shlex.quote(str(keys))} <<'KEYS'",
                      *key_lines, "KEYS"])
    return "\n".join([made, *(shlex.join(argv) for argv in plan.all)]) + "\n"


def render_onboarding(wish: Wish, host_key: str) -> str:
    """The command that comes next, on the host of the certificate authority."""
    words = ["llmgw-onboard-node", "--node", wish.name, "--addr", wish.address]
    words += ["--server", wish.server] if wish.server else []
    words += ["--host-key", host_key] if host_key else []
    words += [] if wish.user == "root" else ["--ssh-user", wish.user, "--become"]
    return shlex.join(words)
