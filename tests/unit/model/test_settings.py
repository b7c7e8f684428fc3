"""ctl.toml, read whole or refused whole."""

from pathlib import Path

import pytest

from lib.base.errors import ConfigError
from lib.model.settings import read_ctl_settings

GOOD = 'cluster = "lab"\nlisten = "10.0.0.1:7443"\nserver = "https://10.0.0.1:7443"\nstate = "state/ctl.db"\n'


def faults(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "ctl.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_ctl_settings(tmp_path)
    return [f"{fault.key}: {fault.problem} {fault.hint}" for fault in refused.value.faults]


def test_paths_count_from_the_files_own_directory_unless_they_are_absolute(tmp_path: Path) -> None:
    (tmp_path / "ctl.toml").write_text(GOOD + '[ca]\ndirectory = "/srv/ca"\n')
    settings = read_ctl_settings(tmp_path)
    assert (settings.state, settings.catalog) == (tmp_path / "state/ctl.db", tmp_path / "catalog.toml")
    assert (settings.certificate, settings.authority) == (tmp_path / "pki/control-plane.pem", Path("/srv/ca"))
    assert (settings.cluster, settings.listen) == ("lab", ("10.0.0.1", 7443))


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path, 'cluster = "Lab"\nlisten = "somewhere"\nserver = "http://x:1"\nstaet = "x"\n[pki]\nkey = 3\n')
    for part in ("cluster: 'Lab' is not a cluster's name", "listen: 'somewhere' is not an address and port",
                 "server: 'http://x:1' is not a URL", "state: is missing", 'staet: unknown key did you mean "state"?',
                 "pki.key: must be a string"):
        assert any(part in fault for fault in found), (part, found)


def test_half_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "is not TOML" in faults(tmp_path, 'cluster = "la')[0]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ctl_settings(tmp_path)
