"""router.toml: every fault at once, and defaults that fit."""

from pathlib import Path

import pytest

from lib.base.errors import ConfigError
from lib.gateway.settings import read_settings

GOOD = 'name = "r1"\nserver = "https://10.0.0.140:7443"\n'


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "router.toml"
    file.write_text(text)
    return file


def test_two_lines_are_enough(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, GOOD))
    assert (settings.host, settings.port, settings.listen) == ("0.0.0.0", 8080, "0.0.0.0:8080")
    assert settings.workers >= 1
    assert settings.limits.body == 64 << 20
    assert settings.table_file == Path("/var/lib/llmgw-router/table.json")


def test_paths_count_from_the_file_and_ipv6_is_understood(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, GOOD + 'listen = "[::1]:81"\nstate_dir = "s"\n[timeouts]\nfirst_byte = 60\n'))
    assert (settings.host, settings.port, settings.listen) == ("::1", 81, "[::1]:81")
    assert settings.state_dir == tmp_path / "s"
    assert settings.limits.first_byte_s == 60


def test_every_fault_is_listed_with_its_line(tmp_path: Path) -> None:
    text = ('name = "R1"\nserver = "http://x"\nlisten = "here"\nworkers = 0\nstat_dir = "x"\n'
            "[limits]\nbody_mib = 0\n[timeouts]\nidle = \"long\"\n[pki]\ncert = \"x\"\n")
    with pytest.raises(ConfigError) as refused:
        read_settings(write(tmp_path, text))
    assert {(fault.line, fault.key) for fault in refused.value.faults} == {
        (1, "name"), (2, "server"), (3, "listen"), (4, "workers"), (5, "stat_dir"), (7, "limits.body_mib"), (9, "timeouts.idle"),
        (11, "pki.cert")}
    assert any("state_dir" in fault.hint for fault in refused.value.faults)
