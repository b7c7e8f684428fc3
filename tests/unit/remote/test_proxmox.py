"""What is made of the words of pvesh, pvesm and qm, and what of words that make no sense."""

import os
from pathlib import Path

import pytest

from lib.base.errors import LlmgwError, NotFound
from lib.remote import proxmox
from lib.remote.contact import Contact, parse_fingerprint
from lib.remote.proxmox import CommandFailed, Guest


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs that say what a test lets them say."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def program(says: Path, name: str, text: str) -> None:
    (says / name).write_text(f"#!/bin/sh\n{text}\n")
    (says / name).chmod(0o755)


def test_a_host_without_a_cluster_is_quorate(says: Path) -> None:
    program(says, "pvesh", """echo '[{"type":"node","name":"pve","local":1}]'""")
    assert proxmox.read_standing() == proxmox.Standing("pve", True)


@pytest.mark.parametrize("text", [
    "{}", "no JSON", "[1]", '[{"type":"node","name":"a","local":0}]', '[{"type":"node","local":1}]'])
def test_words_that_make_no_sense_are_an_error_that_names_the_call(text: str, says: Path) -> None:
    program(says, "pvesh", f"echo '{text}'")
    with pytest.raises(LlmgwError, match="pvesh get /cluster/status"):
        proxmox.read_standing()


def test_ids_come_as_numbers_and_as_strings(says: Path) -> None:
    rows = '[{"vmid":"100","node":"a","type":"qemu"},{"vmid":101,"node":"b","type":"lxc","name":"web"}]'
    program(says, "pvesh", f"echo '{rows}'")
    assert proxmox.read_guests() == (Guest(100, "", "a", "qemu", "unknown"), Guest(101, "web", "b", "lxc", "unknown"))


def test_an_id_is_taken_only_when_the_host_says_so(says: Path) -> None:
    program(says, "pvesh", "echo 'vmid: VM 144 already exists' >&2; exit 2")
    assert proxmox.is_taken(144)
    program(says, "pvesh", "echo '\"144\"'")
    assert not proxmox.is_taken(144)
    program(says, "pvesh", "echo 'ipcc_send_rec failed' >&2; exit 2")
    with pytest.raises(LlmgwError, match="ipcc_send_rec failed"):
        proxmox.is_taken(144)


def test_a_list_of_volumes_without_any_is_empty(says: Path) -> None:
    program(says, "pvesm", "echo 'Volid Format Type Size VMID'")
    assert proxmox.read_volumes("local", 144) == frozenset()


def test_a_failed_change_keeps_the_reason_and_what_was_said_before(says: Path) -> None:
    program(says, "qm", "echo 'kvm: no such device'; echo 'start failed: QEMU exited with code 1' >&2; exit 1")
    with pytest.raises(CommandFailed, match="qm start 144: start failed") as err:
        proxmox.change(("qm", "start", "144"), timeout_s=10)
    assert "kvm: no such device" in err.value.hint
    assert "kvm: no such device" in err.value.output


def test_a_change_past_its_time_is_asked_to_end_and_may_clean_up(says: Path, tmp_path: Path) -> None:
    program(says, "qm", f"trap 'echo cleaned > {tmp_path}/cleaned; exit 1' TERM; sleep 30 & wait")
    with pytest.raises(LlmgwError, match=r"still running after 0\.5 s"):
        proxmox.change(("qm", "create", "144"), timeout_s=0.5)
    assert (tmp_path / "cleaned").exists()


def test_without_the_programs_it_says_where_to_run_it(says: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(says))
    with pytest.raises(NotFound) as err:
        proxmox.read_release()
    assert "on the Proxmox host" in err.value.hint


def test_a_contact_never_shares_known_hosts_and_puts_no_word_of_a_person_into_an_option() -> None:
    words = Contact("root", "10.0.0.144", Path("/run/x/known_hosts")).argv("hostname")
    assert words[-3:] == ["--", "10.0.0.144", "hostname"]
    assert "UserKnownHostsFile=/run/x/known_hosts" in words
    assert "GlobalKnownHostsFile=/dev/null" in words


def test_a_fingerprint_is_found_in_what_ssh_keygen_prints() -> None:
    print_of = "SHA256:" + "a" * 43
    assert parse_fingerprint(f"256 {print_of} 10.0.0.144 (ED25519)\n") == print_of
    assert parse_fingerprint("no such file") == ""
