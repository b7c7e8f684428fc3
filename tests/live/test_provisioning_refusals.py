"""What llmgw-provision-node refuses, before it touches anything; as built, against a strict stand-in for a Proxmox host."""

from pathlib import Path
from typing import Any

import pytest

from tests.live.proxmox_bench import ADDRESS, NAME, VMID, Bench, with_devices
from tests.live.pyz import PYTHON

TOO_LARGE = b"QFI\xfb\x00\x00\x00\x03" + bytes(16) + (50 << 30).to_bytes(8, "big") + bytes(600)
AN_OVERLAY = b"QFI\xfb\x00\x00\x00\x03" + bytes(7) + b"\x01" + bytes(600)


@pytest.fixture
def bench(dist: Path, tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench", dist / "llmgw-provision-node.pyz", PYTHON)


def refused(bench: Bench, *wanted: str, code: int = 4, **changed: Any) -> None:
    """A run that is refused, names all of `wanted`, and changes nothing at all."""
    before = bench.things
    done = bench.run(**changed)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    for text in wanted:
        assert text in done.stderr, done.stderr
    assert (bench.changes, bench.things, bench.left_behind()) == ([], before, [])


@pytest.mark.parametrize("guest, told", [
    ({"node": "pve1"}, "VM 144 (other, on pve1, running)"),
    ({"node": "pve2", "status": "stopped"}, "VM 144 (other, on pve2, stopped)"),
    ({"node": "pve2", "kind": "lxc"}, "container 144 (other, on pve2"), ({"template": 1, "status": "stopped"}, "template 144"),
    ({"unlisted": True}, "made just now")])
def test_an_id_that_exists_anywhere_in_the_cluster_is_refused(guest: dict[str, Any], told: str, bench: Bench) -> None:
    bench.add_guest(VMID, "other", **guest)
    refused(bench, "--vmid: 144 is there already", told)


def test_all_that_is_wrong_with_the_host_is_said_at_once(bench: Bench) -> None:
    bench.add_guest("101", NAME, node="pve2", config={"ipconfig0": f"ip={ADDRESS}/24"})
    bench.keys.write_text("# nothing\n")
    bench.image.write_bytes(b"<html>not found</html>")
    refused(bench, f"--name: {NAME} is the name of VM 101", f"--ip: {ADDRESS} is configured for VM 101",
            "--bridge: pve1 has no bridge vmbr9", "--storage: pve1 has no storage local-lvn; did you mean \"local-lvm\"?",
            "a text or web page", "no public key", "--cores: 65 are more than the 64", "--memory: 1048576 MiB",
            bridge="vmbr9", storage="local-lvn", cores="65", memory="1T")


def test_all_that_is_wrong_with_the_words_is_said_at_once_and_the_host_is_not_even_asked(bench: Bench) -> None:
    wrong = {"vmid": "99", "name": "Node_1", "ip": "10.0.0.144", "gateway": "x", "dns": "10.0.0.1,y", "vlan": "4095", "disk": "0",
             "memory": "much", "cores": "-1", "bios": "efi", "pci": "gpu0", "tags": "a b!", "user": "Root", "server": "http://x"}
    refused(bench, *(f"--{name}: " for name in wrong), code=2, **wrong)
    assert bench.calls == []


@pytest.mark.parametrize("changed, told", [
    ({"ip": "10.0.0.0/24"}, "network or broadcast"), ({"ip": "10.0.0.255/24"}, "network or broadcast"),
    ({"ip": "127.0.0.5/8"}, "cannot be"), ({"ip": "224.0.0.5/24"}, "cannot be"), ({"ip": "10.0.0.144/33"}, "no address"),
    ({"ip": f"{ADDRESS}/255.255.255.0"}, "in digits"), ({"gateway": "10.0.1.1"}, "no host of 10.0.0.0/24"),
    ({"gateway": ADDRESS}, "node itself"), ({"memory": "100"}, "too little"), ({"image": "/a,b"}, "cannot be handed to qm"),
    ({"disk": "1500M"}, "whole GiB"), ({"vmid": "1000000000"}, "no whole number")])
def test_words_that_make_no_sense_are_refused(changed: dict[str, Any], told: str, bench: Bench) -> None:
    refused(bench, told, code=2, **changed)
    assert bench.calls == []


def test_an_address_that_answers_is_refused(bench: Bench) -> None:
    bench.change(lambda state: state["answering"].append(ADDRESS))
    refused(bench, f"--ip: {ADDRESS} is in use: a machine answers there (ping)")
    bench.change(lambda state: state.update(answering=[], neighbours={ADDRESS: "REACHABLE"}))
    refused(bench, "a machine answers there (ARP)")


def test_an_address_of_a_container_that_does_not_run_is_refused_and_another_is_not(bench: Bench) -> None:
    bench.add_guest("102", "web", kind="lxc", status="stopped", config={"net0": f"name=eth0,bridge=vmbr0,ip={ADDRESS}/24"})
    bench.add_guest("103", "near", config={"ipconfig0": f"ip={ADDRESS}0/24"})
    refused(bench, f"{ADDRESS} is configured for container 102")


def test_a_guest_whose_configuration_cannot_be_read_is_told_and_stops_nobody(bench: Bench) -> None:
    bench.add_guest("102", "far", node="pve2")
    bench.fault("before", command="/nodes/pve2/qemu/102/config")
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert "the configuration of VM 102 (far, on pve2, running) cannot be read" in done.stderr


@pytest.mark.parametrize("storage, told", [
    ({"content": "iso,backup"}, "takes no disks"), ({"active": 0}, "not online"), ({"enabled": 0}, "disabled"),
    ({"avail": 1000}, "left")])
def test_a_storage_that_will_not_do_is_refused(storage: dict[str, object], told: str, bench: Bench) -> None:
    bench.change(lambda state: state["storages"]["local-lvm"].update(storage))
    refused(bench, "--storage: local-lvm", told)


def test_volumes_left_of_another_vm_of_that_id_are_named_and_kept(bench: Bench) -> None:
    bench.change(lambda state: state["volumes"].update({"local-lvm:vm-144-cloudinit": {"vmid": "144", "size": 1}}))
    refused(bench, "no guest has the id 144, but volumes of it are left: local-lvm:vm-144-cloudinit")


def test_a_cluster_without_quorum_is_refused(bench: Bench) -> None:
    bench.change(lambda state: state.update(quorate=0))
    refused(bench, "no quorum")


@pytest.mark.parametrize("device, told", [
    ("0000:42:00.0", "pve1 has no device 0000:42:00.0"), ("81:00.0", "in no IOMMU group"),
    ("c1:00.0", "shares its IOMMU group with 0000:c1:00.1"), ("mapping=nope", "there is no PCI mapping nope"),
    ("mapping=far", "names no device of pve1"), ("mapping=gone", "no such device")])
def test_a_device_that_cannot_be_passed_through_is_refused(device: str, told: str, bench: Bench) -> None:
    bench.change(with_devices)
    refused(bench, told, pci=device)


def test_a_device_of_a_running_vm_is_refused(bench: Bench) -> None:
    bench.change(with_devices)
    bench.add_guest("101", "first", config={"hostpci0": "0000:41:00.0,pcie=1"})
    refused(bench, "0000:41:00 is in use by VM 101", pci="41:00")


@pytest.mark.parametrize("content, told", [
    (b"\xfd7zXZ\x00" + bytes(600), "packed with xz"), (AN_OVERLAY, "difference to another"), (bytes(4096), "no disk image"),
    (TOO_LARGE, "cannot be made smaller")])
def test_an_image_that_no_vm_boots_from_is_refused(content: bytes, told: str, bench: Bench) -> None:
    bench.image.write_bytes(content)
    refused(bench, told)


def test_an_image_of_a_storage_is_taken_from_import_and_refused_from_iso(bench: Bench) -> None:
    (bench.host / "local" / "import").mkdir(parents=True)
    bench.image.rename(bench.host / "local" / "import" / "debian.raw")
    refused(bench, "of type iso", image="local:iso/debian.img")
    refused(bench, "there is no storage elsewhere", image="elsewhere:import/debian.raw")
    done = bench.run("--dry-run", image="local:import/debian.raw")
    assert (done.returncode, "import-from=local:import/debian.raw," in done.stdout) == (0, True)


def test_a_missing_image_a_missing_keys_file_and_a_host_that_is_none_are_refused(bench: Bench) -> None:
    refused(bench, "No such file", image="/no/image", ssh_keys="/no/keys")
    for tool in ("qm", "pvesh", "pvesm"):
        (bench.bin / tool).unlink()
    refused(bench, "pvesh not found", "on the Proxmox host", code=3)


@pytest.mark.parametrize("name", [
    "$(touch owned)", "`touch owned`", "../x", "a b", "-rf", "nöde", "n;touch owned", "x" * 64, "", "node\n", "A", "12"])
def test_a_hostile_name_runs_nothing_and_writes_nothing(name: str, bench: Bench) -> None:
    done = bench.run(name=name)
    assert done.returncode == 2, done.stderr
    assert (bench.calls, bench.things, bench.left_behind()) == ([], ({}, {}), [])


@pytest.mark.parametrize("value", ["$(touch owned)", "a,b=c\nd", "../../x y", "--force"])
@pytest.mark.parametrize("flag", [
    "storage", "bridge", "tags", "cpu", "machine", "user", "search_domain", "image", "pci", "dns", "server"])
def test_hostile_values_run_nothing_and_write_nothing(flag: str, value: str, bench: Bench) -> None:
    done = bench.run(**{flag: value})
    assert done.returncode in (2, 4), done.stderr
    assert (bench.changes, bench.things, bench.left_behind()) == ([], ({}, {}), [])


def test_a_second_run_says_that_it_is_there_already_and_changes_nothing(bench: Bench) -> None:
    assert bench.run().returncode == 0
    before, changes = bench.things, len(bench.changes)
    again = bench.run()
    assert (again.returncode, bench.things, len(bench.changes)) == (4, before, changes)
    assert f"--vmid: 144 is there already: VM 144 ({NAME}, on pve1, running)" in again.stderr
