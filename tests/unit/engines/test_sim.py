"""The sim engine seen by llmgw: command, rules, and how its flags are read."""

import pytest

from lib.base.errors import UsageError
from lib.engines import ENGINES, rules
from lib.engines.sim_flags import FAULTS, parse_settings
from lib.model.catalog import parse_catalog
from lib.model.fleet import FaultClass
from tests.unit.engines.orders import two_shards

SIM = ENGINES["sim"]
SAMPLE = {"load-exit": "=3", "exit-0-after": "=1", "exit": "=3@1", "hang-after": "=2", "truncate-after": "=2",
          "first-byte-delay": "=1", "idle-close": "=1", "slow": "=2"}


def test_ranks_differ_in_their_rank_alone() -> None:
    leader, worker = SIM.command(two_shards(0)), SIM.command(two_shards(1))
    assert leader[:2] == ["/opt/program", "sim-engine"]
    assert [pair for pair in zip(leader, worker, strict=True) if pair[0] != pair[1]] == [("0", "1")]


def test_what_llmgw_passes_is_what_the_engine_reads() -> None:
    settings = parse_settings(SIM.command(two_shards(1, args=("--slots", "3")))[2:])
    assert (settings.rank, settings.shards, settings.rendezvous, settings.port) == (1, 2, ("10.1.0.4", 20002), 20001)
    assert (settings.names, settings.group, settings.slots) == (("m", "alias"), "r1.e7-00112233aabbccdd", 3)


def test_only_rank_0_serves_and_is_probed() -> None:
    assert (SIM.serves(0), SIM.serves(1)) == (True, False)
    probe = SIM.readiness(two_shards(0))
    assert probe
    assert probe.served_name == "m"
    assert SIM.readiness(two_shards(1)) is None


@pytest.mark.parametrize("args", [["--port", "1"], ["--host=0.0.0.0"], ["--rank", "0"], ["--group", "x"], ["--rendezvous", "a:1"],
                                  ["--model-name", "x"], ["--help"]])
def test_a_profile_may_not_set_what_llmgw_sets(args: list[str]) -> None:
    assert "llmgw sets it" in SIM.rules().bad_argument(args)


@pytest.mark.parametrize("args,words", [
    (["--token-rat", "5"], "--token-rate"), (["--slots", "0"], "at least 1"), (["--slots", "many"], "whole number"),
    (["--token-rate", "nan"], "nan"), (["--fault", "hang-aftr=1"], "hang-after"), (["--fault", "hang-after"], "needs a value"),
    (["--fault", "comments=3"], "no value"), (["--fault", "exit=3"], "no value"), (["--slots"], "expected one argument")])
def test_a_profiles_mistake_is_told_when_the_catalog_is_read(args: list[str], words: str) -> None:
    assert words in SIM.rules().bad_argument(args)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_can_be_asked_for_in_a_profile(name: str) -> None:
    word = f"1:{name}{SAMPLE.get(name, '')}"
    assert SIM.rules().bad_argument(["--fault", f"{word},comments"]) == ""
    assert name in parse_settings(SIM.command(two_shards(1, args=("--fault", word)))[2:]).faults
    assert name not in parse_settings(SIM.command(two_shards(0, args=("--fault", word)))[2:]).faults


def test_a_fault_without_rank_strikes_where_it_makes_sense() -> None:
    args = ("--fault", "no-join,hang-after=1", "--fault", "ignore-term")
    assert set(parse_settings(SIM.command(two_shards(0, args=args))[2:]).faults) == {"hang-after", "ignore-term"}
    assert set(parse_settings(SIM.command(two_shards(1, args=args))[2:]).faults) == {"no-join", "ignore-term"}


@pytest.mark.parametrize("argv", [["--shards", "2"], ["--rank", "1"], ["--rendezvous", "nowhere"], ["--bogus"]])
def test_flags_that_fit_nothing_are_refused_in_one_line(argv: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_settings(argv)
    assert "\n" not in str(refused.value)


def test_the_catalog_refuses_what_the_engines_refuse() -> None:
    text = """
[models.m]
[profiles.p]
model = "m"
engine = "sim"
args = ["--port", "5"]
env = {NCCL_IB_HCA = "mlx5"}
[profiles.q]
model = "m"
engine = "llama-server"
shards = 2
env = {LLAMA_ARG_PORT = "5"}
"""
    with pytest.raises(Exception, match="llmgw sets it") as refused:
        parse_catalog(text, "catalog.toml", rules())
    for words in ("NCCL_IB_HCA cannot be set", "LLAMA_ARG_PORT cannot be set", "runs in one shard only", "needs the weights"):
        assert words in str(refused.value)


@pytest.mark.parametrize("code,line,fault", [
    (1, "ERROR cannot bind 127.0.0.1:20000: Address already in use", FaultClass.RESOURCE), (2, "", FaultClass.CONFIGURATION),
    (6, "rendezvous: ranks [1] did not join within 5 s", FaultClass.TRANSIENT), (0, "", FaultClass.TRANSIENT),
    (-9, "", FaultClass.TRANSIENT)])
def test_its_death_is_judged(code: int, line: str, fault: FaultClass) -> None:
    assert SIM.classify(code, [line])[0] is fault
