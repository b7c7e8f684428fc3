"""The control plane and a router as services of a machine that is run by systemd."""

from collections.abc import Iterator

import pytest

from tests.eventually import eventually
from tests.lab.cluster import Cluster
from tests.lab.fixtures import booted
from tests.lab.network import Network
from tests.lab.node import Machine

CTL, ROUTER = "python3 /opt/dist/llmgw-ctl.pyz", "python3 /opt/dist/llmgw-router.pyz"
ROUTER_TOML = """\
name = "gateway"
server = "https://127.0.0.1:7443"
listen = "0.0.0.0:80"
[pki]
certificate = "router/router.pem"
key = "router/router.key"
ca = "router/ca.pem"
"""


@pytest.fixture(scope="module")
def host(net: Network, plane: Cluster) -> Iterator[Machine]:
    """A machine with the programs and an installation, nothing started."""
    with booted(net, 147, binds=(f"{plane.dist}:/opt/dist",)) as made:
        made.run(f"{CTL} init --cluster own --listen 127.0.0.1:7443")
        yield made


def main_pid(host: Machine, unit: str) -> str:
    return host.run(f"systemctl show --property MainPID --value {unit}")


def test_a_dry_run_prints_the_unit_and_installs_nothing(host: Machine) -> None:
    assert "ExecStart=/usr/bin/python3 -I /usr/local/bin/llmgw-ctl --dir /etc/llmgw serve" in host.run(f"{CTL} install --dry-run")
    assert host.attempt("systemctl cat llmgw-ctl").returncode != 0


@pytest.fixture(scope="module")
def control(host: Machine) -> Machine:
    done = host.attempt(f"{CTL} install")
    assert done.returncode == 0, done.stderr
    eventually(lambda: host.attempt(f"{CTL} status").returncode == 0, timeout_s=30, every_s=0.3)
    return host


def test_the_control_plane_is_installed_enabled_and_started_by_one_command(control: Machine) -> None:
    assert control.run("systemctl is-enabled llmgw-ctl; systemctl is-active llmgw-ctl") == "enabled\nactive"
    status = control.run(f"cat /proc/{main_pid(control, 'llmgw-ctl')}/status")
    assert "CapEff:\t0000000000000000" in status


def test_installed_again_nothing_changes(control: Machine) -> None:
    before = main_pid(control, "llmgw-ctl")
    assert "nothing changed" in control.attempt(f"{CTL} install").stderr
    assert main_pid(control, "llmgw-ctl") == before


def test_a_killed_control_plane_comes_back(control: Machine) -> None:
    before = main_pid(control, "llmgw-ctl")
    control.run("systemctl kill --signal=KILL llmgw-ctl")
    eventually(lambda: main_pid(control, "llmgw-ctl") not in ("0", before), timeout_s=20, every_s=0.3)
    eventually(lambda: control.attempt(f"{CTL} status").returncode == 0, timeout_s=30, every_s=0.3)


def test_a_router_is_installed_and_serves_on_a_low_port_without_powers(control: Machine) -> None:
    control.run(f"{CTL} ca issue --role router --name gateway --out /etc/llmgw/router")
    control.write("/etc/llmgw/router.toml", ROUTER_TOML)
    done = control.attempt(f"{ROUTER} install")
    assert done.returncode == 0, done.stderr
    eventually(lambda: control.run("curl --silent http://127.0.0.1/health"), timeout_s=30, every_s=0.3)
    assert "nothing changed" in control.attempt(f"{ROUTER} install").stderr
    status = control.run(f"cat /proc/{main_pid(control, 'llmgw-router')}/status")
    assert "CapEff:\t0000000000000400" in status                           # CAP_NET_BIND_SERVICE
    assert control.run("stat -c %a /var/lib/llmgw-router") == "700"


def test_a_configuration_that_is_refused_is_told_and_not_tried_for_ever(control: Machine) -> None:
    control.run("systemctl stop llmgw-ctl; echo nonsense >> /etc/llmgw/ctl.toml; systemctl start llmgw-ctl || true")
    eventually(lambda: control.attempt("systemctl is-failed llmgw-ctl").stdout.strip() == "failed", timeout_s=20, every_s=0.3)
    assert control.run("systemctl show --property ExecMainStatus --value llmgw-ctl") == "78"
