"""Names in the order a person expects, addresses with their ports."""

import random

import pytest

from lib.base.address import host_port, parse_host_port
from lib.base.names import natural


def test_natural_order_reads_numbers_as_numbers() -> None:
    names = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_11", "mlx5_26", "rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0"]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=natural)[:6] == names[:6]
    assert natural("2") < natural("mlx")


@pytest.mark.parametrize(("text", "pair"), [("0.0.0.0:7443", ("0.0.0.0", 7443)), ("[::1]:80", ("::1", 80))])
def test_an_address_and_a_port_are_one_text_both_ways(text: str, pair: tuple[str, int]) -> None:
    assert parse_host_port(text) == pair
    assert host_port(*pair) == text


@pytest.mark.parametrize("text", ["1.2.3.4", "1.2.3.4:99999", "1.2.3.400:80", "host:80", ":80", "::1:80", "1.2.3.4:"])
def test_anything_else_is_neither(text: str) -> None:
    assert parse_host_port(text) is None
