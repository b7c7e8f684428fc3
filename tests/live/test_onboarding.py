"""Onboarding for real: over ssh, into machines that boot their own systemd, in a network of their own."""

import base64
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lib.host.standin import stand_in_adapters, write_infiniband
from tests.eventually import eventually
from tests.lab.cluster import Cluster
from tests.lab.fixtures import booted
from tests.lab.network import Network
from tests.lab.node import Machine

CATALOG = """\
[models.small]
[profiles.small]
model = "small"
engine = "sim"
shards = 1
gpus = 0
replicas = 1
"""
FirstRun = tuple[Machine, "subprocess.CompletedProcess[str]", Path]
MAIN_PID = "systemctl show --property MainPID --value llmgw-agent"
LOOK = f"{MAIN_PID}; ls -l --time-style=full-iso /etc/llmgw /etc/llmgw/pki"
DROP_IN = "/etc/systemd/system/llmgw-agent.service.d/break.conf"


@pytest.fixture(scope="module")
def first_run(net: Network, plane: Cluster) -> Iterator[FirstRun]:
    """A machine that was onboarded as root by one command, what that said, and what crossed ssh."""
    with booted(net, 144) as node:
        with plane.recorded() as (env, record):
            done = plane.onboard(node, env=env)
        assert done.returncode == 0, done.stderr
        yield node, done, record


@pytest.fixture(scope="module")
def node(first_run: FirstRun) -> Machine:
    return first_run[0]


def test_one_command_makes_a_bare_machine_a_ready_node(plane: Cluster, first_run: FirstRun) -> None:
    node, done, _ = first_run
    assert done.stdout == "llmgw-node04 is ready\n"
    row = plane.node(node.name)
    assert (row["state"], row["fabrics"], list(row["engines"])) == ("ready", [], ["sim"])
    assert node.run("systemctl is-active llmgw-agent; systemctl is-enabled llmgw-agent") == "active\nenabled"


def test_a_node_without_an_engine_path_is_said_to_run_the_sim_engine_and_nothing_else(first_run: FirstRun) -> None:
    assert "will run the sim engine and nothing else" in first_run[1].stderr


def test_the_private_key_never_leaves_the_node(plane: Cluster, first_run: FirstRun) -> None:
    node, done, record = first_run
    key = node.run("cat /etc/llmgw/pki/node.key")
    assert "PRIVATE KEY" in key
    assert node.run("stat -Lc %a /etc/llmgw/pki/node.key") == "600"
    crossed = [path.read_bytes() for path in record.iterdir() if path.suffix in (".in", ".out", ".err", ".argv")]
    crossed += [base64.b64decode(line) for path in record.glob("*.in") for line in path.read_bytes().splitlines()]
    body = key.splitlines()[1].encode()
    assert len(crossed) > 16
    assert not [data for data in crossed if b"PRIVATE KEY" in data or body in data]
    assert any(b"CERTIFICATE REQUEST" in data for data in crossed)
    assert any(b'"do": "install"' in data for data in crossed)
    told = done.stderr + (plane.home / "serve.log").read_text()
    told += node.run("journalctl --no-pager; cat /proc/*/cmdline | tr '\\0' ' '")
    assert key.splitlines()[1] not in told


def test_what_runs_on_the_node_is_a_constant_whatever_was_asked_for(first_run: FirstRun) -> None:
    remote = {path.read_text().splitlines()[-1] for path in first_run[2].glob("*.argv")} - {first_run[0].address}
    assert len(remote) == 1
    assert first_run[0].name not in remote.pop()


def test_curl_on_the_node_trusts_the_control_plane_without_flags(plane: Cluster, node: Machine) -> None:
    pki = "--cert /etc/llmgw/pki/node.pem --key /etc/llmgw/pki/node.key"
    answer = node.run(f"curl --silent --show-error {pki} {plane.url}/ctl/v1/status")
    assert "a certificate of role node may not call" in answer
    assert node.attempt(f"curl --silent --capath /nonexistent --cacert /dev/null {plane.url}").returncode in (60, 77)


def test_the_agent_runs_as_a_user_of_its_own_and_cannot_write_the_system(node: Machine) -> None:
    pid = node.run(MAIN_PID)
    status = node.run(f"cat /proc/{pid}/status")
    assert "Uid:\t0" not in status
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    assert node.run(f"grep -c ' / ro' /proc/{pid}/mountinfo || grep ' / / ' /proc/{pid}/mountinfo")


def test_a_second_run_changes_nothing_and_says_so(plane: Cluster, node: Machine) -> None:
    before = node.run(LOOK)
    again = plane.onboard(node)
    assert again.returncode == 0, again.stderr
    assert "changed        nothing" in again.stderr
    assert node.run(LOOK) == before


def test_a_dry_run_says_what_would_change_and_changes_nothing(plane: Cluster, node: Machine) -> None:
    before = node.run("cat /etc/llmgw/agent.toml")
    said = plane.onboard(node, "--dry-run", "--label", "rack=7")
    assert said.returncode == 0, said.stderr
    assert "labels.rack: nothing -> 7" in said.stderr
    assert (said.stdout, node.run("cat /etc/llmgw/agent.toml")) == ("", before)


@pytest.fixture(scope="module")
def engine_pid(plane: Cluster, node: Machine) -> Callable[[], int]:
    """Tells the pid of an engine that runs on the node, once it is ready."""
    (plane.directory / "catalog.toml").write_text(CATALOG)

    def pid() -> int:
        rows = {row["profile"]: row for row in plane.ask("replicas")}
        row = rows["small"]
        assert row["state"] == "ready", row
        shard = row["shards"][0]
        assert shard["node"] == node.name
        return int(shard["pid"])
    eventually(pid, timeout_s=60, every_s=0.5)
    return pid


def restarted(node: Machine, words: str) -> None:
    before = node.run(MAIN_PID)
    node.run(words)
    eventually(lambda: node.run(MAIN_PID) not in ("0", before), timeout_s=20, every_s=0.3)


def test_an_engine_outlives_restarts_and_kills_of_the_agent(engine_pid: Callable[[], int], node: Machine) -> None:
    pid = engine_pid()
    restarted(node, "systemctl restart llmgw-agent")
    restarted(node, "systemctl kill --kill-whom=main --signal=KILL llmgw-agent")
    eventually(lambda: engine_pid() == pid, timeout_s=30, every_s=0.5)
    node.run(f"kill -0 {pid}")


def test_other_words_change_the_configuration_and_disturb_no_engine(engine_pid: Callable[[], int], plane: Cluster,
                                                                    node: Machine) -> None:
    pid = engine_pid()
    done = plane.onboard(node, "--label", "rack=8")
    assert done.returncode == 0, done.stderr
    assert "labels.rack: nothing -> 8" in done.stderr
    assert "1 shard running, which stay" in done.stderr
    eventually(lambda: engine_pid() == pid, timeout_s=30, every_s=0.5)
    assert plane.onboard(node).returncode == 0


def test_another_fabric_and_another_address_disturb_no_engine(engine_pid: Callable[[], int], plane: Cluster, node: Machine,
                                                              tmp_path: Path) -> None:
    pid, moved = engine_pid(), "10.0.0.154"
    write_infiniband(tmp_path / "ib", stand_in_adapters(node.name, ("mlx5_0", "mlx5_1")))
    tree = subprocess.run(["tar", "-C", tmp_path, "-c", "ib"], capture_output=True, check=True).stdout
    node.run("base64 -d | tar -C /opt -x", text=base64.b64encode(tree).decode())
    assert node.host.run("ip", "addr", "add", f"{moved}/24", "dev", "eth0").returncode == 0
    done = plane.onboard(node, "--fabric", "ib-a", "--ib-root", "/opt/ib/class/infiniband", address=moved)
    assert done.returncode == 0, done.stderr
    assert f"its certificate is for {node.address}, not for {moved}" in done.stderr
    assert "fabrics: nothing -> ib-a" in done.stderr
    row = plane.ask("node", node.name)
    assert (row["fabrics"], row["address"]) == (["ib-a"], moved)
    eventually(lambda: engine_pid() == pid, timeout_s=30, every_s=0.5)
    assert plane.onboard(node).returncode == 0
    assert plane.ask("node", node.name)["fabrics"] == []


def test_a_renewal_changes_the_key_and_the_certificate_and_nothing_else(engine_pid: Callable[[], int], plane: Cluster,
                                                                        node: Machine) -> None:
    pid, key, toml = engine_pid(), node.run("cat /etc/llmgw/pki/node.key"), node.run("cat /etc/llmgw/agent.toml")
    done = plane.onboard(node, "--renew")
    assert done.returncode == 0, done.stderr
    assert "changed        certificate\n" in done.stderr
    assert node.run("cat /etc/llmgw/pki/node.key") != key
    assert node.run("cat /etc/llmgw/agent.toml") == toml
    eventually(lambda: engine_pid() == pid, timeout_s=30, every_s=0.5)


def test_the_agent_renews_what_onboarding_gave_it(engine_pid: Callable[[], int], plane: Cluster, node: Machine) -> None:
    pid = engine_pid()
    done = plane.onboard(node, "--renew", "--days", "0.0002")        # seconds
    assert done.returncode == 0, done.stderr
    eventually(lambda: node.run("openssl x509 -checkend 6000000 -noout -in /etc/llmgw/pki/node.pem"), timeout_s=40, every_s=0.5)
    issued = re.search(r"certificate +([0-9a-f]+), until", done.stderr)
    assert issued
    assert issued[1] not in node.run("openssl x509 -noout -serial -in /etc/llmgw/pki/node.pem").lower()
    assert "changed        nothing" in plane.onboard(node).stderr
    assert engine_pid() == pid


def test_an_upgrade_puts_the_new_agent_beside_the_old_and_leaves_engines_alone(
        engine_pid: Callable[[], int], plane: Cluster, node: Machine, tmp_path: Path) -> None:
    pid, old = engine_pid(), node.run("readlink -f /usr/local/bin/llmgw-agent")
    newer = tmp_path / "llmgw-agent.pyz"
    newer.write_bytes((plane.dist / "llmgw-agent.pyz").read_bytes())
    with zipfile.ZipFile(newer, "a") as archive:
        archive.writestr("newer", "")
    done = plane.onboard(node, "--upgrade", "--agent-file", str(newer))
    assert done.returncode == 0, done.stderr
    new = node.run("readlink -f /usr/local/bin/llmgw-agent")
    assert new != old
    assert node.run(f"test -f {old} && echo kept") == "kept"           # the shim runs from it
    eventually(lambda: engine_pid() == pid, timeout_s=30, every_s=0.5)
    assert plane.onboard(node, "--upgrade").returncode == 0


def test_a_second_live_machine_of_the_same_id_is_refused_naming_both_addresses(net: Network, plane: Cluster,
                                                                               node: Machine) -> None:
    with booted(net, 147) as other:
        refused = plane.onboard(other, name=node.name)
        assert refused.returncode == 4, refused.stderr
        assert node.address in refused.stderr
        assert other.address in refused.stderr
        assert other.run("ls /etc/llmgw 2>/dev/null || echo nothing") == "nothing"
        copy = node.run("tar -C / -cz etc/llmgw var/lib/llmgw/journal.json | base64")      # the disk of the first, copied
        other.run("base64 -d | tar -C / -xz", text=copy)
        assert plane.onboard(other, name=node.name).returncode == 4
        assert plane.node(node.name)["state"] == "ready"


def test_sudo_does_as_well_as_root_and_its_refusal_is_told(net: Network, plane: Cluster) -> None:
    with booted(net, 145) as node:
        asked = plane.onboard(node, "--ssh-user", "plain", "--become")
        assert (asked.returncode, "NOPASSWD" in asked.stderr) == (1, True), asked.stderr
        weak = plane.onboard(node, "--ssh-user", "plain")
        assert (weak.returncode, "is not root" in weak.stderr) == (1, True), weak.stderr
        done = plane.onboard(node, "--ssh-user", "admin", "--become")
        assert done.returncode == 0, done.stderr
        assert plane.node(node.name)["state"] == "ready"
        _remove_and_return(plane, node)


@pytest.mark.slow
def test_a_machine_takes_the_place_of_a_live_one_only_when_told_to(net: Network, plane: Cluster) -> None:
    with booted(net, 147) as old, booted(net, 148) as new:
        assert plane.onboard(old, name="llmgw-node09").returncode == 0
        assert plane.onboard(new, name="llmgw-node09").returncode == 4
        done = plane.onboard(new, "--reonboard", "--wait", "120", name="llmgw-node09")
        assert done.returncode == 0, done.stderr
        assert plane.ask("node", "llmgw-node09")["address"] == new.address
        eventually(lambda: "its certificate has been revoked" in old.run("journalctl -u llmgw-agent -o cat"), timeout_s=20)


def _remove_and_return(plane: Cluster, node: Machine) -> None:
    """Case O11: a removed node is shut out by name, and onboarding it again is its way back."""
    removed = plane.ctl("remove", node.name, "--yes")
    assert removed.returncode == 0, removed.stderr
    eventually(lambda: f"{node.name} was removed" in (plane.home / "serve.log").read_text(), timeout_s=20)
    eventually(lambda: "was removed" in node.run("journalctl -u llmgw-agent -o cat"), timeout_s=20, every_s=0.5)
    back = plane.onboard(node)
    assert back.returncode == 0, back.stderr
    assert "its certificate has been revoked" in back.stderr
    assert plane.node(node.name)["state"] == "ready"


def drop_in(lines: str) -> str:
    """A command that changes the agent's unit."""
    return f"mkdir -p {os.path.dirname(DROP_IN)}; printf '[Service]\\n{lines}\\n' > {DROP_IN}"


FAILURES = {
    "no key can be made": ("printf '#!/bin/sh\\nexit 1\\n' > /usr/local/bin/openssl; chmod 755 /usr/local/bin/openssl",
                           "rm /usr/local/bin/openssl", 1),
    "the trust store fails": ("mv /usr/sbin/update-ca-certificates /root/kept; printf '#!/bin/sh\\nexit 3\\n' > "
                              "/usr/sbin/update-ca-certificates; chmod 755 /usr/sbin/update-ca-certificates",
                              "mv /root/kept /usr/sbin/update-ca-certificates", 1),
    "the state cannot be kept": ("rm -rf /var/lib/llmgw; touch /var/lib/llmgw", "rm /var/lib/llmgw", 1),
    "the agent does not start": (drop_in("ExecStart=\\nExecStart=/bin/false"), f"rm {DROP_IN}", 1),
    "the agent is not seen": (drop_in("PrivateNetwork=yes"), f"rm {DROP_IN}", 6)}


@pytest.fixture(scope="module")
def fresh(net: Network) -> Iterator[Machine]:
    with booted(net, 146) as made:
        yield made


def test_after_a_failure_at_any_step_the_same_command_converges(plane: Cluster, fresh: Machine) -> None:
    def unrevoked() -> list[str]:
        return [row["serial"] for row in plane.ask("ca", "list") if row["id"] == fresh.name and not row["revoked_at"]]
    for what, (breaks, mends, code) in FAILURES.items():
        fresh.run(breaks)
        failed = plane.onboard(fresh, "--wait", "4")
        assert failed.returncode == code, (what, failed.stderr)
        assert "hint" in failed.stderr, (what, failed.stderr)
        assert unrevoked() == [], what
        fresh.run(mends)
    done = plane.onboard(fresh)
    assert done.returncode == 0, done.stderr
    assert len(unrevoked()) == 1
    assert plane.onboard(fresh).stderr.count("changed        nothing") == 1
