"""Rank 0 is ready when its own engine answers health, lists the model and completes a token, and not a moment before."""

import socket
from pathlib import Path

import pytest

from lib.model.fleet import ShardState
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.live.shims import ENGINE, Shim, free_pair, make_order, make_probe, pki_of, python, running, server_argv


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return pki_of(Certificates(tmp_path_factory.mktemp("pki")))


def stays_starting(shim: Shim, detail: str) -> None:
    """It has been asked several times, and still only starts."""
    assert shim.wait_until(lambda state: detail in state.detail).state is ShardState.STARTING


def test_while_it_loads_the_last_log_line_is_told(tmp_path: Path, pki: dict[str, str]) -> None:
    port = free_pair()
    with running(tmp_path / "s", server_argv(port, after=str(tmp_path / "go")), order=make_order(port), probe=make_probe(),
                 **pki) as shim:
        stays_starting(shim, "loading weights")
        (tmp_path / "go").touch()
        assert shim.wait_for(ShardState.READY).detail == ""


def test_an_engine_that_lists_another_model_is_not_ready(tmp_path: Path, pki: dict[str, str]) -> None:
    port = free_pair()
    asked = tmp_path / "asked"
    argv = server_argv(port, names="other,another", asked=str(asked))
    with running(tmp_path / "s", argv, order=make_order(port), probe=make_probe(), **pki) as shim:
        eventually(lambda: asked.read_text().count("/v1/models") >= 3)
        stays_starting(shim, "loading weights")


@pytest.mark.parametrize("more, flags", [
    ({"path": "/nowhere"}, {}), ({"models_path": "/nowhere"}, {}), ({}, {"posts": "500"}),
])
def test_every_step_of_the_probe_has_to_succeed(tmp_path: Path, pki: dict[str, str], more: dict[str, str],
                                                flags: dict[str, str]) -> None:
    port, asked = free_pair(), tmp_path / "asked"
    argv = server_argv(port, asked=str(asked), **flags)
    with running(tmp_path / "s", argv, order=make_order(port), probe=make_probe(**more), **pki) as shim:
        eventually(lambda: asked.read_text().count("GET") >= 6)
        stays_starting(shim, "loading weights")


def test_a_probe_without_a_canary_asks_for_no_token(tmp_path: Path, pki: dict[str, str]) -> None:
    port, asked = free_pair(), tmp_path / "asked"
    argv = server_argv(port, asked=str(asked), posts="500")
    with running(tmp_path / "s", argv, order=make_order(port), probe=make_probe(canary=False), **pki) as shim:
        shim.wait_for(ShardState.READY)
        assert "POST" not in asked.read_text()


def test_a_stranger_who_answers_on_the_engines_port_does_not_make_it_ready(tmp_path: Path, pki: dict[str, str]) -> None:
    """And is not told the engine key either."""
    with socket.create_server((ENGINE, 0)) as stranger:
        port = stranger.getsockname()[1]
        with running(tmp_path / "s", python("import time; time.sleep(600)"), order=make_order(port), probe=make_probe(),
                     **pki) as shim:
            stays_starting(shim, "answered by a process that is not the engine's")
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.accept()


def test_three_failed_probes_degrade_a_ready_shard_and_a_good_one_mends_it(tmp_path: Path, pki: dict[str, str]) -> None:
    port, sick = free_pair(), tmp_path / "sick"
    with running(tmp_path / "s", server_argv(port, sick=str(sick)), order=make_order(port), probe=make_probe(), **pki) as shim:
        shim.wait_for(ShardState.READY)
        sick.touch()
        assert shim.wait_for(ShardState.DEGRADED).detail == "/health answers 503"
        sick.unlink()
        assert shim.wait_for(ShardState.READY).detail == ""
