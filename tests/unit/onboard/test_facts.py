"""What stops an onboarding, and what is only said."""

from dataclasses import replace

import pytest

from lib.onboard.facts import Tried, engine_problems, problems, remarks
from tests.unit.onboard.examples import ADAPTERS, BARE, NOW, WANTED


def test_a_machine_that_has_everything_has_no_problem() -> None:
    assert problems(WANTED, BARE, NOW) == []


def test_everything_that_is_missing_is_listed() -> None:
    found = problems(WANTED, replace(BARE, uid=1000, openssl=False, systemd=False), NOW)
    assert len(found) == 3
    assert "--become" in found[0]


@pytest.mark.parametrize(("skew_s", "count"), [(0, 0), (59, 0), (-59, 0), (61, 1), (-61, 1), (7200, 1)])
def test_a_clock_may_be_a_minute_off(skew_s: float, count: int) -> None:
    found = problems(WANTED, replace(BARE, time=NOW + skew_s), NOW)
    assert len(found) == count
    assert all("UTC there" in each and "UTC here" in each for each in found)


def test_a_fabric_needs_its_adapters() -> None:
    wanted = replace(WANTED, fabrics=("ib-a", "ib-b"))
    assert problems(wanted, replace(BARE, adapters=ADAPTERS), NOW) == []
    assert "found: mlx5_0" in problems(wanted, replace(BARE, adapters=ADAPTERS[:3]), NOW)[0]
    assert "does not exist there" in problems(wanted, replace(BARE, ib_root=False), NOW)[0]


def test_another_hostname_is_said_and_stops_nothing() -> None:
    assert any("its hostname is other" in each for each in remarks(WANTED, replace(BARE, hostname="other")))
    assert problems(WANTED, replace(BARE, hostname="other"), NOW) == []


def test_a_node_without_engines_is_told_what_it_is_good_for() -> None:
    assert any("sim engine and nothing else" in each for each in remarks(WANTED, BARE))
    assert not [each for each in remarks(replace(WANTED, engines=("llama-server=/x",)), BARE) if "sim" in each]


def test_an_address_that_is_not_its_own_is_said() -> None:
    assert any("none of its own addresses (10.0.0.144)" in each for each in remarks(replace(WANTED, address="10.9.9.9"), BARE))


def test_an_engine_without_a_version_is_a_problem() -> None:
    wanted = replace(WANTED, engines=("llama-server=/x",))
    assert engine_problems(wanted, {}, {"llama-server": "4242"}) == []
    assert "ends with status 127" in engine_problems(wanted, {"llama-server": Tried(127, err="no libfoo")}, {})[0]
    assert "does not run" in engine_problems(wanted, {"llama-server": Tried(None, err="Exec format error")}, {})[0]
