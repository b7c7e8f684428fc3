"""Where replicas go, and why they do not go elsewhere."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lib.model.catalog import Spec
from lib.model.committed import Change, Committed, Impossible, apply
from lib.model.fleet import EngineFound, Epoch, Gpu, Inventory, KnownNode, NodeState, Placed, Replica, ReplicaState
from lib.rules.placement import Candidate, Refusals, candidates_of, place
from tests.unit.rules.fleets import FABRICS, catalog, inventory


def spec(words: str, source: str = "") -> Spec:
    return catalog(f"p {words}", source=source).spec("p")


def six(**changes: Candidate) -> dict[str, Candidate]:
    return {name: changes.get(name, Candidate(inventory(name), NodeState.READY)) for name in FABRICS}


def placed(result: tuple[Placed, ...] | Refusals) -> tuple[Placed, ...]:
    assert not isinstance(result, Refusals), str(result)
    return result


def why(result: tuple[Placed, ...] | Refusals) -> Mapping[str, str]:
    assert isinstance(result, Refusals)
    return result.nodes


def only(one: Inventory, words: str, source: str = "", **fields: object) -> str:
    candidate = replace(Candidate(one, NodeState.READY), **fields)  # type: ignore[arg-type]
    return why(place(spec(words, source), {one.node: candidate}))[one.node]


def test_all_shards_lie_on_one_fabric_on_a_node_each_with_that_fabrics_adapters() -> None:
    shards = placed(place(spec("shards=2 gpus=2"), six()))
    assert len({FABRICS[shard.node] for shard in shards}) == 1
    assert [shard.rank for shard in shards] == [0, 1]
    assert shards[0].node != shards[1].node
    assert all(shard.adapters == ("mlx5_0", "mlx5_1") and len(shard.gpus) == 2 for shard in shards)


def test_the_rendezvous_binds_the_fabrics_own_address_of_rank_0_and_a_port_of_its_own() -> None:
    first, second = placed(place(spec("shards=2"), six()))
    address, _, port = first.rendezvous.rpartition(":")
    assert address == f"10.1.0.{first.node[1:]}"
    assert int(port) != first.port
    assert second.rendezvous == first.rendezvous


def test_two_fabrics_with_one_fitting_node_each_are_not_a_place() -> None:
    full = {name: Candidate(inventory(name), NodeState.READY, gpus_taken=frozenset(f"{name}-g{i}" for i in range(4)))
            for name in ("n1", "n2", "n4", "n6")}
    refused = why(place(spec("shards=2 gpus=1"), six(**full)))
    assert (refused["n3"], refused["n5"]) == ("ib-a has only 1 such node", "ib-b has only 1 such node")
    assert refused["n6"] == "is on no fabric"
    assert refused["n1"] == "0 of 4 GPUs free, needs 1"


def test_a_named_fabric_is_the_only_one() -> None:
    assert {shard.node for shard in placed(place(spec('shards=2 fabric="ib-b"'), six()))} == {"n4", "n5"}
    assert why(place(spec('shards=2 fabric="ib-c"'), six()))["n1"] == "is not on fabric ib-c"


def test_one_shard_goes_to_a_node_without_fabric_first() -> None:
    assert placed(place(spec("gpus=1"), six()))[0].node == "n6"


def test_one_shard_goes_to_the_fabric_that_is_broken_up_already() -> None:
    no_island = {name: candidate for name, candidate in six().items() if name != "n6"}
    no_island["n5"] = Candidate(inventory("n5"), NodeState.READY, gpus_taken=frozenset({"n5-g0"}))
    assert placed(place(spec("gpus=1"), no_island))[0].node == "n5"


def test_a_spread_profile_avoids_its_siblings() -> None:
    island = Candidate(inventory("n6"), NodeState.READY, siblings=1)
    assert placed(place(spec("gpus=1"), six(n6=island)))[0].node != "n6"
    assert placed(place(spec("gpus=1 spread=false"), six(n6=island)))[0].node == "n6"


def test_a_blamed_node_comes_last_and_is_taken_when_it_is_the_only_one() -> None:
    island = Candidate(inventory("n6"), NodeState.READY, blamed=1.0)
    assert placed(place(spec("gpus=1"), six(n6=island)))[0].node != "n6"
    assert placed(place(spec("gpus=1"), {"n6": island}))[0].node == "n6"


def test_of_several_blamed_nodes_the_one_longest_ago_is_taken() -> None:
    """Where every node of a fabric has failed it once, a replica must not stay with the one that does so again and again."""
    names, wall = ("n1", "n2", "n3"), 10_000.0
    committed = Committed(nodes={name: KnownNode(name) for name in names})
    blamed = {"n1": wall - 5, "n2": wall - 90, "n3": wall - 700}
    candidates = candidates_of(committed, {name: inventory(name) for name in names}, dict.fromkeys(names, NodeState.READY), "p",
                               blamed=blamed, wall=wall)
    assert candidates["n3"].blamed == 0
    assert {shard.node for shard in placed(place(spec("shards=2"), candidates))} == {"n2", "n3"}


def test_a_group_needs_an_adapter_with_a_link_on_every_node() -> None:
    dark = replace(inventory("n4"), adapters=tuple(replace(one, state="DOWN") for one in inventory("n4").adapters))
    nodes = six(n4=Candidate(dark, NodeState.READY))
    assert {shard.node for shard in placed(place(spec("shards=2"), nodes))} <= {"n1", "n2", "n3"}
    assert why(place(spec('shards=2 fabric="ib-b"'), nodes))["n4"] == "no adapter of its fabric is ACTIVE"
    assert placed(place(spec("shards=1"), {"n4": Candidate(dark, NodeState.READY)}))[0].node == "n4"


def test_the_first_rule_that_turns_a_node_away_is_named() -> None:
    one = inventory("n1")
    assert only(one, "gpus=1", state=NodeState.LOST) == "lost"
    assert only(one, "gpus=1", state=NodeState.SUSPECT) == "not heard from for 15 s"
    assert only(one, "gpus=1", state=NodeState.UNREPORTED) == "has not reported yet"
    assert only(one, "gpus=1", cordoned=True) == "cordoned"
    assert only(one, 'node_labels={zone="b"}') == "is not labelled zone=b"
    assert only(inventory("n1", engines=()), "gpus=1") == "has no sim"
    assert only(one, "gpus=9") == "4 of 4 GPUs free, needs 9"
    assert only(one, "gpus=1", ports_taken=frozenset(range(20000, 20020))).startswith("0 free ports in 20000-20019, needs 1")
    broken = replace(one, engines={"sim": EngineFound("/opt/sim", fault="exit 127")})
    assert only(broken, "gpus=1") == "sim does not run: exit 127"
    sick = replace(one, gpus=(Gpu("a", 0, "x", fault="MIG enabled"), Gpu("b", 1, "x")))
    assert only(sick, "gpus=2") == "1 of 2 GPUs free, needs 2 (1 out of order)"


def test_weights_must_be_there_and_whole() -> None:
    words, path = 'engine="llama-server"', "/srv/w.gguf"
    here = inventory("n1", engines=("llama-server",), sources={path: ""})
    assert placed(place(spec(words, path), {"n1": Candidate(here, NodeState.READY)}))
    assert only(replace(here, sources={}), words, path) == "has not looked for /srv/w.gguf yet"
    assert only(replace(here, sources={path: "not there"}), words, path) == "/srv/w.gguf: not there"


def test_refusals_read_as_one_sentence() -> None:
    result = place(spec("shards=2 gpus=4"), {"n1": Candidate(inventory("n1"), NodeState.READY, gpus_taken=frozenset({"n1-g0"})),
                                             "n6": Candidate(inventory("n6"), NodeState.READY)})
    assert str(result) == ("needs 2 nodes on one fabric with sim and 4 free GPUs each: "
                           "n1: 3 of 4 GPUs free, needs 4; n6: is on no fabric")
    assert isinstance(result, Refusals)
    alike = Refusals("1 node", {"n1": "no", "n2": "no", "n3": "0 of 4 GPUs free", "n4": "no"})
    assert alike.text(2) == "needs 1 node: n3: 0 of 4 GPUs free; n1, n2 and 1 more: no"
    many = Refusals("1 node", {f"n{number}": f"{number} free" for number in range(9)})
    assert many.text(4).endswith("n5: 5 free; and 3 more reasons")


def test_a_port_is_not_given_again_before_the_others_have_been() -> None:
    candidates = {"n1": Candidate(inventory("n1"), NodeState.READY)}
    ports = [placed(place(spec("gpus=0"), candidates, turn))[0].port for turn in range(5)]
    assert len(set(ports)) == 5


def test_committing_refuses_what_is_booked_already() -> None:
    first = Replica("a-1", "a", "m", 1, ReplicaState.STARTING, epoch=Epoch(1, "n"),
                    shards=(Placed(0, "n1", ("g0",), port=20000),))
    state = apply(Committed(), Change("a-1", replica=first))
    gpu = replace(first, id="b-1", epoch=Epoch(2, "n"), shards=(Placed(0, "n1", ("g0",), port=20001),))
    port = replace(first, id="b-1", epoch=Epoch(2, "n"), shards=(Placed(0, "n1", ("g1",), port=20000),))
    partial = replace(first, id="b-1", epoch=Epoch(2, "n"), shard_count=2, shards=(Placed(0, "n1", ("g1",), port=20001),))
    for bad in (gpu, port, partial):
        with pytest.raises(Impossible):
            apply(state, Change("b-1", replica=bad))


def test_random_fleets_never_break_a_rule() -> None:
    for seed in range(500):
        dice = random.Random(seed)
        nodes = {f"n{i}": inventory(f"n{i}", fabric=dice.choice(("", "ib-a", "ib-b")), gpus=dice.randint(0, 4),
                                    engines=dice.choice((("sim",), ("sim",), ()))) for i in range(1, dice.randint(1, 9))}
        candidates = {name: Candidate(one, dice.choice((NodeState.READY, NodeState.READY, NodeState.LOST)),
                                      cordoned=dice.random() < 0.2,
                                      gpus_taken=frozenset(gpu.uuid for gpu in one.gpus if dice.random() < 0.3),
                                      ports_taken=frozenset(dice.sample(range(20000, 20020), 5)))
                      for name, one in nodes.items()}
        wanted = spec(f"shards={dice.randint(1, 3)} gpus={dice.randint(0, 3)}")
        result = place(wanted, candidates, dice.randint(0, 99))
        assert result == place(wanted, dict(reversed(candidates.items())), 0) or not isinstance(result, Refusals)
        if isinstance(result, Refusals):
            assert set(result.nodes) == set(candidates)
            assert all(result.nodes.values())
            continue
        assert len({shard.node for shard in result}) == wanted.profile.shards
        for shard in result:
            one = candidates[shard.node]
            assert one.state is NodeState.READY
            assert not one.cordoned
            assert len(shard.gpus) == wanted.profile.gpus
            assert not {*shard.gpus} & one.gpus_taken
            assert shard.port not in one.ports_taken
        if wanted.profile.shards > 1:
            assert len({candidates[shard.node].inventory.fabrics[0].name for shard in result}) == 1
