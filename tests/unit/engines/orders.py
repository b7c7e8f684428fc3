"""Orders and launches for the tests of this directory."""

from dataclasses import replace
from typing import Any

from lib.engines import Launch
from lib.model.fleet import Gpu
from lib.model.wire import ShardOrder

GPUS = tuple(Gpu(f"GPU-{letter}", index, "H100") for index, letter in enumerate("abcd"))
ORDER = ShardOrder(
    replica="r1", counter=7, nonce="00112233aabbccdd", rank=0, shard_count=1, may_start=True, profile="p", model="m",
    engine="sim", source="/srv/m.gguf", served_names=("m", "alias"), addr="10.0.0.4", port=20001, engine_key="secret")


def launch(**changes: Any) -> Launch:
    """A launch of ORDER with some of it changed."""
    return Launch(replace(ORDER, **changes), ("/opt/program",), "127.0.0.1", GPUS, "ib0", "10.1.0.4", "/var/cache/x")


def two_shards(rank: int = 0, **changes: Any) -> Launch:
    """One shard of a replica of two, on a fabric."""
    return launch(rank=rank, shard_count=2, rdzv="10.1.0.4:20002", adapters=("mlx5_2", "mlx5_10"), **changes)
