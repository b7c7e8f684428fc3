"""agent.toml: checked whole, every fault with its line."""

from pathlib import Path

import pytest

from lib.agent.settings import read_settings
from lib.base.address import address_fault
from lib.base.errors import ConfigError

GOOD = '''node = "llmgw-node04"
server = "https://10.0.0.140:7443"
address = "10.0.0.144"
fabrics = ["ib-b:mlx5_2,mlx5_3"]
ports = "20000-20099"
state_dir = "state"

[pki]
certificate = "node.pem"
key = "node.key"
ca = "/etc/llmgw/pki/ca.pem"

[engines]
llama-server = "/opt/llama/llama-server"

[fabric_addresses]
ib-b = "10.1.0.4"
'''


def written(directory: Path, text: str) -> Path:
    (directory / "agent.toml").write_text(text)
    return directory / "agent.toml"


def test_relative_paths_count_from_the_file(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, GOOD))
    assert (settings.state_dir, settings.key) == (tmp_path / "state", tmp_path / "node.key")
    assert settings.ca == Path("/etc/llmgw/pki/ca.pem")
    assert (settings.port_low, settings.port_high) == (20000, 20099)


@pytest.mark.parametrize("old, new, fault", [
    ('node = "llmgw-node04"', 'node = "Node_4"', "1: node: 'Node_4' is not a node id"),
    ("https://10.0.0.140:7443", "http://10.0.0.140:7443", "2: server: "),
    ('"10.0.0.144"', '"169.254.1.1"', "3: address: 169.254.1.1 is not an address that other nodes can reach"),
    ('"10.0.0.144"', '"somewhere"', "3: address: 'somewhere' is not an IP address"),
    ('"20000-20099"', '"20099-20000"', "5: ports: "),
    ('"20000-20099"', '"80"', "5: ports: "),
    ("llama-server =", "lama-server =", 'did you mean "llama-server"?'),
    ('"/opt/llama/llama-server"', '"llama-server"', "not an absolute path"),
    ("ib-b = ", "ib-c = ", "'ib-c' is not among fabrics"),
    ("state_dir", "state_dri", 'unknown key (did you mean "state_dir"?)'),
    ("[pki]", "[pki]\nkey_password = 1", "9: pki.key_password: unknown key"),
    ('fabrics = ["ib-b:mlx5_2,mlx5_3"]', "fabrics = [7]", "4: fabrics: must be a list of strings"),
])
def test_a_fault_is_told_with_its_line_and_a_remedy(tmp_path: Path, old: str, new: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(written(tmp_path, GOOD.replace(old, new)))
    assert fault in str(refused.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(written(tmp_path, 'node = 4\nadress = "x"\n'))
    assert {fault.key for fault in refused.value.faults} == {"node", "server", "address", "adress"}


def test_a_half_written_file_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent.toml:\d+: is not TOML"):
        read_settings(written(tmp_path, GOOD[:100]))


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.11", "fd00::1"])
def test_an_address_that_others_can_reach_is_fine(address: str) -> None:
    assert address_fault(address) == ""


@pytest.mark.parametrize("address", ["0.0.0.0", "169.254.3.4", "fe80::1", "224.0.0.1", "10.0.0"])
def test_an_address_that_others_cannot_reach_is_not(address: str) -> None:
    assert address_fault(address)
