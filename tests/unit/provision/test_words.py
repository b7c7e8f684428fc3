"""From flags to a wish, from a wish to commands, and back from a configuration: the pure parts of provisioning."""

from pathlib import Path
from typing import Any

import pytest

import llmgw_provision
from lib.base.errors import Refused, UsageError
from lib.host.run import Outcome
from lib.provision.arrival import refusal
from lib.provision.facts import parse_claim, parse_neighbours
from lib.provision.image import Image, parse_image
from lib.provision.keys import Keys, parse_keys
from lib.provision.plan import Ground, Mark, make_plan, render_onboarding
from lib.provision.readback import differences, dump_differences
from lib.provision.undo import made_volumes
from lib.provision.wish import Pci, Wish, parse_wish
from lib.remote.proxmox import Guest
from tests.live.proxmox_bench import KEY

GROUND = Ground("pve1", 9, "/img/debian.qcow2", 2 << 30)
MARK, KEYS = Mark("f" * 32), Keys((KEY,), 0)
FLAGS: dict[str, Any] = {
    "vmid": "144", "name": "llmgw-node04", "ip": "10.0.0.144/24", "gateway": None, "dns": None, "search_domain": None,
    "bridge": "vmbr0", "vlan": None, "storage": "local-lvm", "image": "/img/debian.qcow2", "disk": "32G", "cores": "4",
    "memory": "8G", "cpu": "host",
    "machine": "q35", "bios": "ovmf", "pci": None, "user": "root", "tags": None, "onboot": True, "server": None}


def wish(**changed: Any) -> Wish:
    return parse_wish(FLAGS | changed)


def option(name: str, **changed: Any) -> str | None:
    create = make_plan(wish(**changed), GROUND, MARK, Path("/k")).create
    return create[create.index(f"--{name}") + 1] if f"--{name}" in create else None


def test_the_page_names_every_flag_and_every_flag_has_help() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "provision.md").read_text()
    for each in llmgw_provision.ARGS:
        assert each.options["help"]
        assert f"`{each.names[-1]}" in page, each.names


@pytest.mark.parametrize("text, mib", [("64G", 65536), ("64", 64), ("1T", 1 << 20), ("512MiB", 512), ("2GB", 2048)])
def test_memory_counts_in_mib_unless_a_letter_says_otherwise(text: str, mib: int) -> None:
    if mib >= 256:
        assert wish(memory=text).memory_mib == mib
    else:
        with pytest.raises(UsageError, match="too little"):
            wish(memory=text)


def test_an_address_of_a_new_family_gives_its_own_words() -> None:
    assert option("ipconfig0", ip="fd00::144/64", gateway="fd00::1") == "ip6=fd00::144/64,gw6=fd00::1"
    assert option("ipconfig0") == "ip=10.0.0.144/24"


def test_name_servers_are_one_string_with_blanks() -> None:
    assert option("nameserver", dns=["10.0.0.1,10.0.0.2", "10.0.0.3"]) == "10.0.0.1 10.0.0.2 10.0.0.3"
    assert option("nameserver") is None


def test_pcie_is_said_only_where_the_machine_has_it() -> None:
    assert option("hostpci0", pci=["41:00.0"]) == "0000:41:00.0,pcie=1"
    assert option("hostpci0", pci=["mapping=gpu0"], machine="pc") == "mapping=gpu0"


def test_secure_boot_stays_off_and_other_firmware_needs_no_disk_for_its_variables() -> None:
    assert "pre-enrolled-keys=0" in str(option("efidisk0"))
    assert option("efidisk0", bios="seabios") is None


def test_the_disk_grows_only_where_it_must() -> None:
    assert make_plan(wish(), GROUND, MARK, Path("/k")).resize[-1] == "32G"
    assert make_plan(wish(disk="2"), GROUND, MARK, Path("/k")).resize == ()


def test_a_device_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="named twice"):
        wish(pci=["41:00.0", "0000:41:00.0"])


def test_a_slot_covers_its_functions_and_a_function_only_itself() -> None:
    assert Pci("0000:41:00").covers("0000:41:00.1")
    assert not Pci("0000:41:00.0").covers("0000:41:00.1")
    assert not Pci("0000:41:0").covers("0000:41:00.1")


def stored(**changed: Any) -> dict[str, str]:
    create = make_plan(wish(), GROUND, MARK, Path("/k")).create
    config = {name.removeprefix("--"): value for name, value in zip(create[3::2], create[4::2], strict=True)}
    config |= {"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "sshkeys": KEY.replace(" ", "%20") + "%0A",
               "scsi0": "local-lvm:vm-144-disk-0,discard=on,iothread=1,size=32G,ssd=1",
               "scsi1": "local-lvm:vm-144-cloudinit,media=cdrom", "digest": "0", "description": f"{MARK.description}\n",
               "efidisk0": "local-lvm:vm-144-disk-1,efitype=4m,pre-enrolled-keys=0,size=4M"}
    return {key: value for key, value in (config | changed).items() if value is not None}


def test_what_is_stored_as_asked_for_has_no_differences_in_whatever_order_it_is_written() -> None:
    create = make_plan(wish(), GROUND, MARK, Path("/k")).create
    assert differences(create, stored(), KEYS, 32 << 30) == []
    assert differences(create, stored(ipconfig0="ip=10.0.0.144/24"), KEYS, 32 << 30) == []


@pytest.mark.parametrize("key, value", [("scsi0", "other:vm-144-disk-0,discard=on,iothread=1,size=32G,ssd=1"), ("onboot", "0"),
                                        ("scsi0", "local-lvm:vm-144-disk-0,discard=on,iothread=1,size=2G,ssd=1"), ("cores", "40"),
                                        ("scsi1", "local-lvm:vm-144-disk-3,media=cdrom"), ("efidisk0", None), ("cpu", "kvm64"),
                                        ("description", "another")])
def test_any_difference_is_found(key: str, value: str | None) -> None:
    create = make_plan(wish(), GROUND, MARK, Path("/k")).create
    assert len(differences(create, stored(**{key: value}), KEYS, 32 << 30)) >= 1


def test_the_cloud_init_text_must_have_the_name_and_all_keys() -> None:
    assert dump_differences(f"#cloud-config\nhostname: a\nssh_authorized_keys:\n  - {KEY}\n", "a", KEYS) == []
    assert len(dump_differences("#cloud-config\nhostname: ab\n", "a", KEYS)) == 2


def test_keys_lose_comments_and_options_and_broken_ones_are_left_out() -> None:
    broken = ("ssh-dss AAAA", "ssh-ed25519 AAAA", f"ssh-rsa {KEY.split()[1]}", f'from="x" {KEY}')
    keys = parse_keys("\n".join(["# x", "", f"{KEY} a: b #c", KEY, *broken]))
    assert (keys.usable, keys.left_out) == ((KEY,), 4)


@pytest.mark.parametrize("head, told", [(b"\x1f\x8b", "gzip"), (b"QFI\xfb", "cut off"), (b"", "no disk image"),
                                        (b"QFI\xfb\x00\x00\x00\x03".ljust(79, b"\x00") + b"\x04", "another file")])
def test_what_is_no_image_is_refused(head: bytes, told: str) -> None:
    with pytest.raises(Refused, match=told):
        parse_image(head, 512, "x")


def test_images_tell_the_size_of_the_disk_in_them() -> None:
    head = b"QFI\xfb\x00\x00\x00\x02" + bytes(16) + (5 << 30).to_bytes(8, "big") + bytes(99)
    assert parse_image(head, 1, "x") == Image("qcow2", 5 << 30)
    assert parse_image(bytes(510) + b"\x55\xaa", 4096, "x") == Image("raw", 4096)
    assert parse_image(b"KDMV" + bytes(8) + (8).to_bytes(8, "little"), 1, "x") == Image("vmdk", 4096)


def test_claims_of_other_guests_are_read_from_vms_and_containers() -> None:
    guest = Guest(1, "a", "pve1", "qemu", "running")
    claim = parse_claim(guest, {
        "ipconfig0": "gw=10.0.0.1,ip=10.0.0.5/24", "net0": "name=eth0,ip=10.0.0.6/24,ip6=fd00::6/64",
        "description": "ip=10.0.0.7", "hostpci0": "host=41:00;0000:42:00.1,pcie=1", "hostpci1": "mapping=gpu0"})
    assert claim.addresses == {"10.0.0.5", "10.0.0.6", "fd00::6"}
    assert claim.devices == {"0000:41:00", "0000:42:00.1"}


def test_neighbours_that_the_kernel_knows() -> None:
    assert parse_neighbours('[{"dst":"10.0.0.1","state":["STALE"]}]') == {"STALE"}
    assert parse_neighbours("") == parse_neighbours("[]") == parse_neighbours("nonsense") == set()


def test_only_volumes_that_create_says_it_made_count_as_made() -> None:
    said = "  Logical volume \"x\" created.\nscsi0: successfully created disk 'a:vm-1-disk-0,size=2G'\n"
    assert made_volumes(said) == {"a:vm-1-disk-0"}


def test_a_name_with_a_domain_behind_it_is_the_name_and_another_is_not() -> None:
    assert refusal(Outcome(0, "a.lab.example\n", ""), "a") == ""
    assert "says its name is 'ab'" in refusal(Outcome(0, "ab\n", ""), "a")
    assert refusal(Outcome(255, "", "Warning\nConnection refused\n"), "a") == "Connection refused"


def test_the_next_command_can_be_pasted() -> None:
    line = render_onboarding(wish(user="admin", server="https://[fd00::1]:7443"), "SHA256:x")
    assert line.startswith("llmgw-onboard-node --node llmgw-node04 --addr 10.0.0.144 --server 'https://[fd00::1]:7443'")
