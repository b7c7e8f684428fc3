"""The units: what they promise, and that systemd reads them as written."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.base.errors import Refused, UsageError
from lib.host import systemd
from lib.host.systemd import Unit, agent_unit, control_plane_unit, exec_line, router_unit

AGENT = agent_unit("/usr/bin/python3", "/usr/local/bin/llmgw-agent", "/etc/llmgw/agent.toml", groups=("video", "render"))
CONTROL = control_plane_unit("/usr/bin/python3", "/usr/local/bin/llmgw-ctl", Path("/etc/llmgw"),
                             Path("/var/lib/llmgw/ctl.db"), 7443)
ROUTER = router_unit("/usr/bin/python3", "/usr/local/bin/llmgw-router", Path("/etc/llmgw/router.toml"),
                     Path("/var/lib/llmgw-router"), Path("/etc/llmgw/pki"), 443)


def settings(unit: Unit) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.text.splitlines() if "=" in line and not line.startswith("#"))


def test_stopping_the_agent_stops_nothing_else() -> None:
    assert settings(AGENT)["KillMode"] == "process"
    assert settings(AGENT)["Restart"] == "always"
    assert settings(AGENT)["StartLimitIntervalSec"] == "0"
    assert settings(AGENT)["OOMScoreAdjust"] == "-900"


def test_the_agent_keeps_what_engines_need() -> None:
    for taken in ("PrivateDevices", "MemoryDenyWriteExecute", "PrivateTmp", "Delegate"):
        assert taken not in settings(AGENT)
    assert settings(AGENT)["LimitMEMLOCK"] == "infinity"
    assert settings(AGENT)["SupplementaryGroups"] == "video render"
    assert "SupplementaryGroups" not in settings(agent_unit("/p", "/a", "/c"))


@pytest.mark.parametrize("unit", [CONTROL, ROUTER], ids=lambda unit: unit.name)
def test_who_serves_is_shut_in(unit: Unit) -> None:
    found = settings(unit)
    assert (found["ProtectSystem"], found["NoNewPrivileges"], found["MemoryDenyWriteExecute"]) == ("strict", "yes", "yes")
    assert found["RestartPreventExitStatus"] == "73 78"


def test_each_may_write_its_own_places_only() -> None:
    assert settings(CONTROL)["ReadWritePaths"] == "/etc/llmgw /var/lib/llmgw"
    assert settings(ROUTER)["ReadWritePaths"] == "/var/lib/llmgw-router /etc/llmgw/pki"
    assert settings(ROUTER)["StateDirectory"] == "llmgw-router"


def test_only_a_low_port_needs_a_power() -> None:
    assert settings(CONTROL)["CapabilityBoundingSet"] == ""
    assert settings(ROUTER)["CapabilityBoundingSet"] == "CAP_NET_BIND_SERVICE"


def test_words_stay_words() -> None:
    assert exec_line(["/usr/bin/a", "b c", 'd"e', "f%g", "h$i", "j\\k"]) == r'/usr/bin/a "b c" "d\"e" "f%%g" "h$$i" "j\\k"'
    with pytest.raises(UsageError, match="cannot stand in a unit file"):
        exec_line(["a\nExecStart=/bin/sh"])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", [AGENT, CONTROL, ROUTER], ids=lambda unit: unit.name)
def test_systemd_understands_every_line(unit: Unit, tmp_path: Path) -> None:
    text = "\n".join(line if not line.startswith("ExecStart=") else "ExecStart=/bin/true" for line in unit.text.splitlines())
    (tmp_path / unit.name).write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if unit.name in line and "nknown" in line]
    assert not ours, done.stderr


def test_a_program_is_put_beside_its_older_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, library, links = tmp_path / "llmgw-ctl.pyz", tmp_path / "lib", tmp_path / "bin"
    monkeypatch.setattr(sys, "argv", [str(program)])
    program.write_bytes(b"one")
    link, changed = systemd.place_program("llmgw-ctl", "0.1.0", library=library, links=links)
    assert (link.read_bytes(), len(changed)) == (b"one", 2)
    assert systemd.place_program("llmgw-ctl", "0.1.0", library=library, links=links) == (link, [])
    program.write_bytes(b"two")
    systemd.place_program("llmgw-ctl", "0.1.0", library=library, links=links)
    assert link.read_bytes() == b"two"
    assert (library / "0.1.0" / "llmgw-ctl.pyz").read_bytes() == b"one"
    monkeypatch.setattr(sys, "argv", ["/x/llmgw_ctl.py"])
    with pytest.raises(Refused, match="is not a built program"):
        systemd.place_program("llmgw-ctl", "0.1.0", library=library, links=links)
