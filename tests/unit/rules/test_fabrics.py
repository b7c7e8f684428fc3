"""Which adapters a declared fabric gets."""

import pytest

from lib.base.errors import Refused
from lib.model.fleet import Adapter
from lib.rules.fabrics import assign


def adapters(*names: str, layer: str = "InfiniBand") -> list[Adapter]:
    return [Adapter(name, link_layer=layer, state="ACTIVE") for name in names]


def test_a_fabric_takes_two_adapters_in_natural_order() -> None:
    assert assign(["ib-b", "ib-a"], adapters("mlx5_10", "mlx5_2", "mlx5_1", "mlx5_0")) == (
        ("ib-b", ("mlx5_0", "mlx5_1")), ("ib-a", ("mlx5_2", "mlx5_10")))


def test_named_adapters_are_taken_as_named_and_the_rest_is_shared() -> None:
    found = adapters("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4")
    assert assign(["ib-a:mlx5_0,mlx5_2,mlx5_4", "ib-b"], found) == (
        ("ib-a", ("mlx5_0", "mlx5_2", "mlx5_4")), ("ib-b", ("mlx5_1", "mlx5_3")))


def test_a_node_that_declares_nothing_is_an_island_whatever_it_has() -> None:
    assert assign([], adapters("mlx5_0", "mlx5_1")) == ()


def test_ethernet_does_not_count() -> None:
    found = [*adapters("mlx5_0", "mlx5_2"), *adapters("mlx5_1", layer="Ethernet")]
    assert assign(["ib-a"], found) == (("ib-a", ("mlx5_0", "mlx5_2")),)


@pytest.mark.parametrize(("claims", "found", "words"), [
    (["ib-a"], ["mlx5_0"], "exactly 2 InfiniBand adapters"),
    (["ib-a"], ["mlx5_0", "mlx5_1", "mlx5_2"], "3 are free"),
    (["ib-a", "ib-b"], ["mlx5_0", "mlx5_1", "mlx5_2"], "exactly 4"),
    (["ib-a:mlx5_0", "ib-b:mlx5_0"], ["mlx5_0", "mlx5_1"], "adapter mlx5_0 is under two fabrics"),
    (["ib-a:mlx5_9"], ["mlx5_0"], "there is no adapter mlx5_9"),
])
def test_what_is_not_certain_is_refused_with_the_adapters_found(claims: list[str], found: list[str], words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        assign(claims, adapters(*found))
    for name in found:
        assert f"{name} (InfiniBand, ACTIVE)" in str(caught.value)
    assert "name the adapters" in caught.value.hint


def test_an_ethernet_adapter_named_for_a_fabric_is_refused_as_such() -> None:
    with pytest.raises(Refused, match="mlx5_1 is Ethernet"):
        assign(["ib-a:mlx5_1"], adapters("mlx5_1", layer="Ethernet"))


@pytest.mark.parametrize("claims", [["ib-a", "ib-a"], ["ib-a:"], [""], ["IB A"]])
def test_a_claim_that_is_no_claim_is_refused(claims: list[str]) -> None:
    with pytest.raises(Refused):
        assign(claims, adapters("mlx5_0", "mlx5_1"))
