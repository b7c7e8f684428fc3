"""Every wrong word is told at once, before anybody is spoken to."""

from dataclasses import replace

import pytest

from lib.base.errors import UsageError
from lib.onboard.wanted import Wanted, check

GOOD = Wanted("llmgw-node04", "10.0.0.144", "https://10.0.0.140:7443", ("ib-a:mlx5_0,mlx5_1", "ib-b"),
              ("llama-server=/opt/llama/llama-server",), labels=("rack=7",))


def faults(**changed: object) -> str:
    with pytest.raises(UsageError) as caught:
        check(replace(GOOD, **changed))  # type: ignore[arg-type]
    return str(caught.value)


def test_good_words_pass() -> None:
    check(GOOD)


@pytest.mark.parametrize("node", ["GPU-Node01", "node_1", "node.a.b", "n" * 64, "-x", "ノード", "a b", "../x", "$(id)", "42", "",
                                  "a\n"])
def test_only_a_dns_label_is_a_node(node: str) -> None:
    assert "a node's id is a DNS label" in faults(node=node)


def test_the_name_to_use_is_told() -> None:
    assert "'gpu-node01' would do" in faults(node="GPU-NODE01")
    assert "would do" not in faults(node="ノード")


@pytest.mark.parametrize("server", ["http://10.0.0.140:7443", "https://10.0.0.140", "https://u:p@h:1", "https://h:7443/x", "https://h:99999",
                                    "https://$(id):7443", "https://-oProxyCommand=x:7443", "h:7443"])
def test_only_a_plain_https_url_is_a_server(server: str) -> None:
    assert "is not the URL of a control plane" in faults(server=server)


@pytest.mark.parametrize("address", ["10.0.0", "::", "fe80::1", "node04", "10.0.0.1; id"])
def test_an_address_that_others_cannot_reach_is_refused(address: str) -> None:
    assert "--addr" in faults(address=address)


def test_all_that_is_wrong_is_told_at_once() -> None:
    said = faults(fabrics=("ib a", "ib-b", "ib-b:mlx5_2"), engines=("lama-server=/x", "sim=/x", "llama-server=rel"), ports="1-2",
                  labels=("x", "a=1", "a=2"), nvidia_smi="nvidia-smi", ssh_user="-oProxyCommand=id")
    assert len(said.splitlines()) == 10
    assert 'did you mean "llama-server"?' in said
    assert "the agent carries it" in said


def test_an_adapter_is_under_one_fabric() -> None:
    assert "adapter mlx5_0 is under two fabrics" in faults(fabrics=("ib-a:mlx5_0", "ib-b:mlx5_0"))


def test_engines_and_labels_become_tables() -> None:
    assert GOOD.programs == {"llama-server": "/opt/llama/llama-server"}
    assert GOOD.words == {"rack": "7"}
    assert GOOD.host_port == ("10.0.0.140", 7443)
