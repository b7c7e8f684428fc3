"""catalog.toml: taken whole or refused whole, with every fault told."""

from collections.abc import Sequence

import pytest

from lib.base.errors import ConfigError
from lib.model.catalog import Catalog, EngineRules, parse_catalog


def no_port(args: Sequence[str]) -> str:
    return "--port is set by llmgw" if "--port" in args else ""


ENGINES = {"sim": EngineRules(False, True, no_port), "llama-server": EngineRules(True, False, no_port)}
GOOD = """
[models.gemma-3-270m]
source = "/srv/models/gemma.gguf"
aliases = ["small", "default"]

[profiles.gemma-cpu]
model = "gemma-3-270m"
engine = "llama-server"
replicas = 2
args = ["--ctx-size", "4096"]

[profiles.pair]
model = "gemma-3-270m"
engine = "sim"
shards = 2
gpus = 4
fabric = "ib-a"
"""


def parse(text: str) -> Catalog:
    return parse_catalog(text, "catalog.toml", ENGINES)


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return [str(fault) for fault in caught.value.faults]


def test_a_good_catalog_is_taken_with_its_defaults() -> None:
    catalog = parse(GOOD)
    cpu, pair = catalog.profiles["gemma-cpu"], catalog.profiles["pair"]
    assert (cpu.shards, cpu.gpus, cpu.replicas, cpu.args, cpu.spread) == (1, 0, 2, ("--ctx-size", "4096"), True)
    assert (pair.shards, pair.gpus, pair.fabric) == (2, 4, "ib-a")
    assert catalog.spec("pair").model.aliases == ("small", "default")


def test_an_empty_catalog_wants_nothing() -> None:
    assert parse("") == Catalog()


def test_every_fault_is_told_at_once_each_with_its_line() -> None:
    bad = GOOD.replace('engine = "sim"', 'engine = "simm"').replace("replicas = 2", "replicsa = 2").replace(
        'model = "gemma-3-270m"\nengine = "llama', 'model = "gemma-3-270"\nengine = "llama')
    assert faults(bad) == [
        'catalog.toml:7: profiles.gemma-cpu.model: there is no model \'gemma-3-270\' (did you mean "gemma-3-270m"?)',
        'catalog.toml:9: profiles.gemma-cpu.replicsa: unknown key (did you mean "replicas"?)',
        'catalog.toml:14: profiles.pair.engine: there is no engine \'simm\' (did you mean "sim"?)']


@pytest.mark.parametrize(("old", "new", "words"), [
    ("shards = 2", "shards = 0", "0 is outside 1 to 64"),
    ("gpus = 4", 'gpus = "4"', "must be a whole number, not a string"),
    ("gpus = 4", "gpus = true", "must be a whole number"),
    ('engine = "sim"', 'engine = "llama-server"', "llama-server runs in one shard only"),
    ('source = "/srv/models/gemma.gguf"', 'source = "gemma.gguf"', "set source to an absolute path"),
    ('"--ctx-size", "4096"', '"--port", "1"', "--port is set by llmgw"),
    ('"small", "default"', '"small", "small"', "'small' is already an alias"),
    ('"small", "default"', '"gemma-3-270m"', "'gemma-3-270m' is already a model"),
    ('"small", "default"', '"sm all"', "cannot be a model name"),
    ("[profiles.pair]", "[profiles.Pair]", "'Pair' cannot be a profile name"),
    ("fabric =", "fabrc =", "unknown key"),
    ('fabric = "ib-a"', 'env = {"A=B" = "1"}', "a variable name is empty or holds '='"),
    ("[profiles.pair]", "[profile.pair]", "profile: unknown key"),
])
def test_what_does_not_fit_is_refused(old: str, new: str, words: str) -> None:
    assert old in GOOD
    assert any(words in fault for fault in faults(GOOD.replace(old, new)))


def test_half_a_file_is_refused_with_the_line() -> None:
    (only,) = faults(GOOD[: GOOD.index("4096") + 2])
    assert only.startswith("catalog.toml:")
    assert "is not TOML" in only


def test_the_generation_changes_with_what_an_engine_is_made_from_and_with_nothing_else() -> None:
    before = parse(GOOD).generation("pair")
    for same in (GOOD.replace("gpus = 4", "gpus = 4\nreplicas = 5\nmax_inflight = 3\nstop_timeout = 1\nspread = false"),
                 GOOD.replace('["small", "default"]', '["tiny"]'), GOOD.replace("replicas = 2", "replicas = 3"),
                 "\n\n" + GOOD.replace('fabric = "ib-a"\n', "").replace("shards = 2", 'fabric = "ib-a"\nshards = 2')):
        assert parse(same).generation("pair") == before
    for other in (GOOD.replace("gpus = 4", "gpus = 3"), GOOD.replace("shards = 2", "shards = 3"),
                  GOOD.replace("gemma.gguf", "other.gguf"), GOOD.replace('fabric = "ib-a"', 'fabric = "ib-b"'),
                  GOOD.replace("gpus = 4", 'gpus = 4\nargs = ["x"]'), GOOD.replace("gpus = 4", 'gpus = 4\nenv = {A = "b"}')):
        assert parse(other).generation("pair") != before
