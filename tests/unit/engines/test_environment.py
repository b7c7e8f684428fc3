"""The environment of an engine: made from nothing, guarantees last."""

import pytest

from lib.base.errors import Refused
from lib.engines import ENGINES
from tests.unit.engines.orders import launch, two_shards

ALL = pytest.mark.parametrize("name", sorted(ENGINES))


@ALL
def test_nothing_of_the_agents_environment_reaches_an_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    monkeypatch.setenv("http_proxy", "http://proxy")
    found = ENGINES[name].environment(launch())
    assert "LLAMA_ARG_PORT" not in found
    assert "http_proxy" not in found
    assert {"PATH", "LANG", "HOME"} <= set(found)


@ALL
def test_an_engine_is_offline_marked_and_keyed(name: str) -> None:
    found = ENGINES[name].environment(launch())
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["LLMGW_SHARD"] == "r1.7.0.00112233aabbccdd"
    assert "secret" in found.values()
    assert not any("secret" in word for word in ENGINES[name].command(launch()))


@ALL
def test_gpus_are_named_by_index_and_in_pci_order(name: str) -> None:
    found = ENGINES[name].environment(launch(gpus=("GPU-c", "GPU-b")))
    assert found["CUDA_VISIBLE_DEVICES"] == "2,1"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@ALL
def test_a_shard_without_gpus_sees_none(name: str) -> None:
    assert ENGINES[name].environment(launch())["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match="GPU-z"):
        ENGINES["sim"].environment(launch(gpus=("GPU-z",)))


def test_a_shard_on_a_fabric_is_told_exactly_its_adapters_and_interface() -> None:
    found = ENGINES["sim"].environment(two_shards(1))
    assert found["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_10:1"
    assert found["NCCL_NET"] == "IB"
    assert found["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert found["GLOO_SOCKET_IFNAME"] == "ib0"


def test_a_single_shard_is_told_nothing_of_adapters() -> None:
    assert not [name for name in ENGINES["sim"].environment(launch()) if name.startswith("NCCL_IB")]


def test_a_profile_may_change_comforts_but_no_guarantee() -> None:
    wish = {"NCCL_DEBUG": "INFO", "MINE": "1", "NCCL_IB_HCA": "mlx5", "CUDA_VISIBLE_DEVICES": "0,1", "LLMGW_SHARD": "x",
            "HF_HUB_OFFLINE": "0", "LLMGW_ENGINE_KEY": "known"}
    found = ENGINES["sim"].environment(two_shards(env=wish))
    assert (found["NCCL_DEBUG"], found["MINE"]) == ("INFO", "1")
    assert found["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_10:1"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["LLMGW_SHARD"] == "r1.7.0.00112233aabbccdd"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["LLMGW_ENGINE_KEY"] == "secret"


@ALL
@pytest.mark.parametrize("variable", ["NCCL_IB_HCA", "CUDA_VISIBLE_DEVICES", "LLMGW_SHARD", "LLMGW_ENGINE_KEY", "HF_HUB_OFFLINE"])
def test_a_profile_that_sets_a_guarantee_is_refused_by_name(name: str, variable: str) -> None:
    assert variable in ENGINES[name].rules().bad_variable(variable)


@ALL
def test_an_ordinary_variable_is_allowed(name: str) -> None:
    assert ENGINES[name].rules().bad_variable("OMP_NUM_THREADS") == ""
