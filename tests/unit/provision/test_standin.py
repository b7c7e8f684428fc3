"""The stand-in for a Proxmox host is as strict as the tests of provisioning believe."""

import pytest

from tests.standins.pve_options import Refused, parse_options


@pytest.mark.parametrize("words", [
    ["--nope", "1"], ["--name", "a_b"], ["--name", ""], ["--memory", "8G"], ["--net0", "virtio,bridge=vmbr0,tag=4095"],
    ["--net0", "virtio,bridge=vmbr0,vlan=20"], ["--ipconfig0", "ip=10.0.0.144"], ["--ipconfig0", "gw=10.0.0.1"],
    ["--scsi0", "local-lvm:32,import-from=/x"], ["--hostpci0", "gpu0,pcie=1"], ["--hostpci0", "41:00,mapping=gpu0"],
    ["--tags", "a b!"], ["--nameserver", "10.0.0.1,10.0.0.2"],
    ["--onboot"], ["--onboot", "maybe"], ["--boot", "order=disk0"], ["--bios", "efi"],
    ["--cpu", "$(id)"], ["--name", "a", "--name", "b"], ["onboot", "1"]])
def test_what_the_real_programs_refuse_is_refused(words: list[str]) -> None:
    with pytest.raises(Refused):
        parse_options(words, 9)


def test_options_of_a_newer_release_are_unknown_to_an_older_one() -> None:
    assert parse_options(["--ciupgrade", "0", "--hostpci0", "mapping=gpu0"], 8)
    for words in (["--ciupgrade", "0"], ["--hostpci0", "mapping=gpu0"]):
        with pytest.raises(Refused):
            parse_options(words, 7)
