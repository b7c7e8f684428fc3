"""The machine itself: a cloud image booted by QEMU from exactly the options of llmgw-provision-node, reached by ssh."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.lab.cluster import cluster
from tests.lab.network import Host
from tests.live.proxmox_bench import ADDRESS, NAME, VMID, Bench
from tests.live.pyz import PYTHON
from tests.live.vm_image import cloud_image, lacking
from tests.programs import alive
from tests.standins.pve import State

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces want root")]
BOOT_S = "420"
SMALL = {"memory": "640M", "cores": "2", "disk": "4G", "bios": "seabios"}


@pytest.fixture
def namespace() -> Iterator[str]:
    """The Proxmox host's network: a bridge with an address of its own."""
    name = f"llmgw-pve-{os.getpid()}"
    host("ip", "netns", "add", name)
    for words in ("link set lo up", "link add vmbr0 type bridge", "addr add 10.0.0.1/24 dev vmbr0", "link set vmbr0 up"):
        host("ip", "-n", name, *words.split())
    yield name
    host("ip", "netns", "del", name)


@pytest.fixture
def bench(dist: Path, tmp_path: Path, namespace: str) -> Iterator[Bench]:
    """The stand-in for the host, which boots its VMs for real; ssh, ping and ip are the real ones, inside its network."""
    assert not lacking(), f"apt-get install what brings {', '.join(lacking())}"
    image = cloud_image()
    bench = Bench(tmp_path / "bench", dist / "llmgw-provision-node.pyz", PYTHON)
    bench.image = image / "vm.qcow2"
    for tool in ("ping", "ip", "ssh"):
        real = shlex.join(["ip", "netns", "exec", namespace, tool])
        (bench.bin / tool).write_text(f'#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin exec {real} "$@"\n')
    (bench.bin / "ssh-keygen").unlink()
    host("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(bench.directory / "tmp" / "id"))
    bench.keys.write_text(Path(f"{bench.temporary}/id.pub").read_text())
    lab = {"netns": namespace, "bridge": "vmbr0", "kernel": str(image / "vmlinuz"), "initrd": str(image / "initrd")}
    bench.change(lambda state: state.update(qemu=lab))
    yield bench
    for pid_file in bench.host.glob("vm*.pid"):
        pid = int(pid_file.read_text())
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: not alive(pid))      # type: ignore[misc]


def host(*words: str) -> str:
    """Run a program of this machine."""
    return subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60).stdout


def ask(bench: Bench, address: str, command: str, user: str = "root") -> str:
    """What a VM answers over ssh."""
    options = ["-oBatchMode=yes", "-oLogLevel=ERROR", "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null"]
    identity = f"{bench.temporary}/id"
    return host(str(bench.bin / "ssh"), "-F", "none", "-i", identity, *options, f"{user}@{address}", command).strip()


def provision(bench: Bench, vmid: str, name: str, address: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A small machine."""
    flags = {"vmid": vmid, "name": name, "ip": f"{address}/24", "identity": f"{bench.temporary}/id", "timeout": BOOT_S}
    words = bench.words(**SMALL | flags | more)
    with bench.start(words) as process:
        out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess((), process.returncode, out, err)


def test_a_provisioned_machine_boots_as_asked_and_two_of_one_image_share_no_identity(bench: Bench) -> None:
    first = provision(bench, VMID, NAME, ADDRESS)
    assert first.returncode == 0, first.stderr + console(bench, VMID)
    fingerprint = shlex.split(first.stdout)[-1]
    assert fingerprint in ask(bench, ADDRESS, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    assert ask(bench, ADDRESS, "hostname") == NAME
    assert f"inet {ADDRESS}/24" in ask(bench, ADDRESS, "ip -4 -o addr show eth0")
    assert "default via 10.0.0.1" in ask(bench, ADDRESS, "ip route show default")
    assert "lab.example" in ask(bench, ADDRESS, "resolvectl status")
    assert int(ask(bench, ADDRESS, "df -BM --output=size / | tail -1").rstrip("M")) > 3500      # grown with the disk
    taken = bench.run(vmid="145", name="llmgw-node05", ip=f"{ADDRESS}/24", memory="640M")
    assert (taken.returncode, "is in use: a machine answers there" in taken.stderr) == (4, True), taken.stderr

    second = provision(bench, "145", "llmgw-node05", "10.0.0.145", user="llmgw")
    assert second.returncode == 0, second.stderr + console(bench, "145")
    assert ask(bench, "10.0.0.145", "sudo -n id -u; hostname", user="llmgw").split() == ["0", "llmgw-node05"]
    for command in ("cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub", "cat /var/lib/cloud/data/instance-id"):
        assert ask(bench, ADDRESS, command) != ask(bench, "10.0.0.145", command, user="llmgw")


def test_the_two_commands_of_adding_a_node_make_a_ready_node(bench: Bench, namespace: str, dist: Path, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    with cluster(Host(namespace, "10.0.0.1"), dist, tmp_path / "control") as control:
        made = provision(bench, VMID, NAME, ADDRESS, server=control.url, user="llmgw")
        assert made.returncode == 0, made.stderr + console(bench, VMID)
        program, *printed = shlex.split(made.stdout)            # as printed, and who we are
        ours = ("--dir", str(control.directory), "--ssh-key", f"{bench.temporary}/id", "--wait", "300")
        done = control.program(program, *printed, *ours, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        assert control.node(NAME)["state"] == "ready"
        assert ask(bench, ADDRESS, "systemctl is-active llmgw-agent", user="llmgw") == "active"


def console(bench: Bench, vmid: str) -> str:
    """The end of what a VM wrote on its console."""
    file = bench.host / f"vm{vmid}.console"
    return file.read_text(errors="replace")[-3000:] if file.exists() else ""


def test_a_machine_that_cannot_be_reached_is_told_in_time_and_kept(bench: Bench, namespace: str) -> None:
    broken = bench.temporary / "initrd"
    broken.write_text("nothing to boot from")               # it will never get as far as ssh

    def boot_from_it(state: State) -> None:
        state["qemu"]["initrd"] = str(broken)
    bench.change(boot_from_it)
    done = bench.run(**SMALL | {"timeout": "15"})
    assert done.returncode == 6, done.stderr
    assert "is not there in time" in done.stderr
    assert "qm terminal 144" in done.stderr
    assert json.loads((bench.host / "state.json").read_text())["guests"][VMID]["status"] == "running"
