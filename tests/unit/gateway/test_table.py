"""Tables as workers use them: swapped whole, with replicas that stay keeping what they have."""

from dataclasses import replace

import pytest

from lib.base.errors import UsageError
from lib.gateway.cells import Cells
from lib.gateway.table import Numbered, Routes, build_routes, check_table, is_older
from lib.model.wire import Endpoint, KeyEntry, ModelRoute, RouterTable

END = Endpoint("r1", 3, "aa", "10.0.0.1", 20000, "n1", "key", "ready")


def table(*endpoints: Endpoint, rev: int = 1, **more: object) -> RouterTable:
    return replace(RouterTable(rev, "demo", {"m": ModelRoute(("small",), endpoints)}, (KeyEntry("k", "0" * 64),), cp_epoch=1,
                               lineage="l"), **more)  # type: ignore[arg-type]


def build(one: RouterTable, old: Routes) -> Routes:
    return build_routes(Numbered(one), Cells(1), old)


def test_names_and_aliases_lead_to_one_model() -> None:
    routes = build(table(END), Routes())
    assert routes.models["m"] is routes.models["small"]
    assert routes.loaded
    assert not Routes().loaded


def test_an_epoch_that_stays_keeps_its_load_and_one_that_left_is_gone() -> None:
    old = build(table(END), Routes())
    kept = old.models["m"].replicas[0]
    kept.raise_load()
    same = build(table(replace(END, state="degraded"), rev=2), old)
    assert same.models["m"].replicas == (kept,)
    assert (kept.inflight, kept.degraded, kept.gone) == (1, True, False)
    rebuilt = build(table(replace(END, counter=4), rev=3), same)
    assert rebuilt.models["m"].replicas[0] is not kept
    assert kept.gone


@pytest.mark.parametrize("change", [
    {"addr": "host"}, {"port": 0}, {"port": 70000}, {"node": "N 1"}, {"nonce": "x\r\n"}, {"counter": -1}, {"engine_key": ""},
    {"engine_key": "a\r\nb: c"}, {"engine_key": "a b"}])
def test_a_replica_that_cannot_be_dialled_refuses_the_table(change: dict[str, object]) -> None:
    check_table(table(END), "demo")
    with pytest.raises(UsageError, match="r1"):
        check_table(table(replace(END, **change)), "demo")  # type: ignore[arg-type]


def test_other_reasons_to_refuse_a_table() -> None:
    with pytest.raises(UsageError, match="cluster"):
        check_table(table(END), "other")
    with pytest.raises(UsageError, match="two models"):
        check_table(table(models={"m": ModelRoute(("a",)), "a": ModelRoute()}), "demo")
    with pytest.raises(UsageError, match="SHA-256"):
        check_table(table(keys=(KeyEntry("k", "xyz"),)), "demo")


def test_older_means_a_step_back_in_the_same_lineage() -> None:
    now = table(rev=5, cp_epoch=2)
    assert is_older(replace(now, rev=4), now)
    assert is_older(replace(now, rev=9, cp_epoch=1), now)
    assert not is_older(replace(now, rev=1, cp_epoch=3), now)
    assert not is_older(replace(now, rev=1, lineage="other"), now)
    assert not is_older(now, None)
