"""The product's own sim engine under two shims: both halves of a replica, as an agent would start them."""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lib.engines import ENGINES, Launch
from lib.host.process import identify
from lib.model.fleet import Epoch, ShardState
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.live.shims import ENGINE, NONCE, Shim, free_pair, make_order, pki_of, running
from tests.live.test_shim_guard import ask, dial
from tests.programs import program


def start(stack: ExitStack, tmp_path: Path, pki: dict[str, str], rank: int, port: int, rdzv: str) -> Shim:
    order = replace(make_order(port, rank=rank, engine="sim"), shard_count=2, rdzv=rdzv)
    launch = Launch(order, program("agent"), ENGINE, home=str(tmp_path))
    sim = ENGINES["sim"]
    probe = sim.readiness(launch)
    more: dict[str, Any] = {"env": sim.environment(launch), "order": order, **pki,
                            "probe": replace(probe, interval_s=0.1) if probe else None}
    return stack.enter_context(running(tmp_path / str(rank), sim.command(launch), **more))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


def test_rank_0_serves_through_its_guard_only_once_the_worker_has_joined_and_fails_without_it(
        tmp_path: Path, certificates: Certificates) -> None:
    port, rdzv = free_pair(), f"127.0.0.11:{free_pair()}"
    with ExitStack() as stack:
        leader = start(stack, tmp_path, pki_of(certificates), 0, port, rdzv)
        eventually(lambda: leader.log)
        assert leader.wait_until(lambda state: bool(state.detail)).state is ShardState.STARTING
        worker = start(stack, tmp_path, {}, 1, 0, rdzv)
        leader.wait_for(ShardState.READY, 20)
        engines = [shim.wait_for(ShardState.READY).engine_pid for shim in (leader, worker)]
        with dial(leader, certificates.router(), Epoch(7, NONCE).server_name) as link:
            answer = ask(link, "/v1/chat/completions", json.dumps(
                {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}).encode())
            assert b'"usage"' in answer
        worker.signal(9)
        eventually(lambda: not identify(engines[1]))
        ended = leader.wait_exit(30)
        assert not ended.requested
        assert ended.detail
        assert not identify(engines[0])
