"""The command line of ssh, its failures in words, and host keys."""

import base64
from pathlib import Path

import pytest

from lib.base.errors import Refused, UsageError
from lib.host.run import Outcome
from lib.remote.hostkeys import HostKey, Pin, find, parse_pin, parse_scan, record, recorded, with_key
from lib.remote.ssh import COMMAND, Target, argv, no_answer

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519" + b"k" * 36).decode()
KEY = HostKey("ssh-ed25519", BLOB)
TARGET = Target("10.0.0.144")


def test_nothing_but_a_constant_is_run_there() -> None:
    assert argv(TARGET, Path("/c"))[-3:] == ["--", "10.0.0.144", COMMAND]
    assert argv(Target("10.0.0.144", become=True), Path("/c"))[-1] == f"sudo -n {COMMAND}"


def test_a_host_key_is_believed_only_when_asked_to() -> None:
    assert "-oStrictHostKeyChecking=yes" in argv(TARGET, Path("/c"))
    assert "-oBatchMode=yes" in argv(TARGET, Path("/c"))
    assert "-oStrictHostKeyChecking=accept-new" in argv(Target("10.0.0.144", accept_new=True), Path("/c"))
    pinned = argv(Target("10.0.0.144", known_hosts=(Path("/a b/%h"),), pinned=True), Path("/c"))
    assert '-oUserKnownHostsFile="/a b/%%h"' in pinned
    assert "-oGlobalKnownHostsFile=/dev/null" in pinned


@pytest.mark.parametrize(("said", "word", "refused"), [
    ("No ED25519 host key is known for 10.0.0.144 and you have requested strict checking.", "--host-key", True),
    ("Host key for 10.0.0.144 has changed and you have requested strict checking.", "ssh-keygen -R", True),
    ("Host key verification failed.", "--host-key", True),
    ("root@10.0.0.144: Permission denied (publickey).", "--ssh-key", False),
    ("ssh: connect to host 10.0.0.144 port 22: Connection refused", "is sshd running there", False),
    ("ssh: connect to host 10.0.0.144 port 22: Connection timed out", "firewall", False),
    ("ssh: connect to host 10.0.0.144 port 22: No route to host", "network", False),
    ("kex_exchange_identification: Connection closed by remote host", "log of sshd", False),
    ("something new", "by hand", False)])
def test_failures_of_ssh_become_sentences_with_a_way_out(said: str, word: str, refused: bool) -> None:
    err = no_answer(TARGET, Outcome(255, "", said))
    assert word in err.hint
    assert isinstance(err, Refused) is refused
    assert str(err).startswith("root@10.0.0.144: ")


def test_failures_behind_ssh_are_told_apart() -> None:
    assert "NOPASSWD" in no_answer(TARGET, Outcome(1, "", "sudo: a password is required")).hint
    assert "no python3" in str(no_answer(TARGET, Outcome(127, "", "sh: 1: python3: not found")))
    assert "ended with 1: KeyError: 'x'" in str(no_answer(TARGET, Outcome(1, "", "KeyError: 'x'")))


def test_a_pin_is_a_fingerprint_or_a_key() -> None:
    assert parse_pin(KEY.fingerprint) == Pin(KEY.fingerprint)
    assert parse_pin(f"ssh-ed25519 {BLOB} root@node") == Pin(KEY.fingerprint, KEY)
    assert find(Pin(KEY.fingerprint, KEY), "10.0.0.144", 22) == KEY
    for wrong in ("", "SHA256:short", "ssh-dss AAAA", "ssh-ed25519 $(id)", "MD5:00:11"):
        with pytest.raises(UsageError, match="neither a fingerprint nor a public key"):
            parse_pin(wrong)


def test_a_host_has_one_recorded_key(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    record(file, "10.0.0.1", 22, KEY)
    record(file, "10.0.0.144", 2222, HostKey("ssh-rsa", "A" * 20))
    record(file, "10.0.0.144", 2222, KEY)
    assert recorded([file.read_text()], "10.0.0.144", 2222) == [KEY]
    assert len(file.read_text().splitlines()) == 2
    assert with_key("", "10.0.0.1", 22, KEY) == f"10.0.0.1 ssh-ed25519 {BLOB}\n"


def test_what_keyscan_prints_is_read() -> None:
    text = f"# 10.0.0.144:22 SSH-2.0-OpenSSH_9.2\n10.0.0.144 ssh-ed25519 {BLOB}\n[10.0.0.144]:2222 ssh-rsa {'A' * 20}\nnonsense\n"
    assert parse_scan(text) == [KEY, HostKey("ssh-rsa", "A" * 20)]
