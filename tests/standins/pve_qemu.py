"""Booting a VM of the Proxmox stand-in for real: QEMU without hardware help, and a NoCloud drive made of the VM's options."""

import subprocess
from pathlib import Path

from tests.standins.pve_cloudinit import meta_data, network_config
from tests.standins.pve_options import properties

Lab = dict[str, str]                       # netns, bridge, kernel, initrd


def boot(directory: Path, lab: Lab, vmid: str, config: dict[str, str], user: str, volumes: dict[str, dict[str, str]]) -> None:
    """Start the VM; its pid is in `vm<id>.pid`, its console in `vm<id>.console`."""
    disk, seed = directory / f"vm{vmid}.qcow2", make_seed(directory, vmid, config, user)
    drive = volumes[config["scsi0"].split(",")[0]]
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", drive["source"], str(disk), str(drive["size"]))
    tap = f"tap{vmid}"
    run("ip", "-n", lab["netns"], "tuntap", "add", "dev", tap, "mode", "tap")
    run("ip", "-n", lab["netns"], "link", "set", tap, "master", lab["bridge"], "up")
    mac = properties(config["net0"])["virtio"].lower()
    run("ip", "netns", "exec", lab["netns"], "qemu-system-x86_64", "-name", config["name"], "-machine", config["machine"],
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", config["cores"], "-m", config["memory"],
        "-nodefaults", "-display", "none",
        "-serial", f"file:{directory}/vm{vmid}.console", "-kernel", lab["kernel"], "-initrd", lab["initrd"],
        "-append", "root=LABEL=root ro console=ttyS0 net.ifnames=0", "-device", "virtio-scsi-pci,id=scsi",
        "-drive", f"file={disk},if=none,id=disk,format=qcow2,cache=unsafe", "-device", "scsi-hd,bus=scsi.0,scsi-id=0,drive=disk",
        "-drive", f"file={seed},if=none,id=seed,format=raw,readonly=on", "-device", "scsi-cd,bus=scsi.0,scsi-id=1,drive=seed",
        "-netdev", f"tap,id=n0,ifname={tap},script=no,downscript=no", "-device", f"virtio-net-pci,netdev=n0,mac={mac}",
        "-device", "virtio-rng-pci", "-daemonize", "-pidfile", f"{directory}/vm{vmid}.pid")


def make_seed(directory: Path, vmid: str, config: dict[str, str], user: str) -> Path:
    """The cloud-init drive."""
    seed = directory / f"seed{vmid}"
    seed.mkdir()
    network = network_config(config)
    for name, text in (("user-data", user), ("network-config", network), ("meta-data", meta_data(user, network))):
        (seed / name).write_text(text)
    files = map(str, sorted(seed.iterdir()))
    run("genisoimage", "-quiet", "-output", f"{seed}.iso", "-volid", "cidata", "-joliet", "-rock", *files)
    return Path(f"{seed}.iso")


def run(*words: str) -> None:
    """Run a program of this machine, whatever stand-ins are on the path of whoever calls."""
    subprocess.run(words, check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, timeout=120)
