"""What has to change is decided from what is: done twice, nothing."""

import base64
import hashlib
import tomllib
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest

from lib.base.errors import ConfigError
from lib.onboard import plan
from lib.onboard.cluster import Standing, rival
from lib.onboard.facts import Facts
from lib.onboard.files import Agent, agent_toml, differences, parse_agent, read_agent
from lib.onboard.plan import Authority, Mode
from lib.pki.reading import Leaf
from tests.unit.onboard.examples import BARE, WANTED

AGENT = Agent("0.1.0", b"the agent")
AUTHORITY = Authority("lab", "the root")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LEAF = Leaf("ab12", "llmgw://lab/node/llmgw-node04", ("10.0.0.144",), BEGAN, BEGAN + timedelta(days=90), genuine=True)
DONE = replace(BARE, certificate="a certificate", key_fits=True)


def settled() -> Facts:
    """A node that is as it should be."""
    return replace(DONE, ca="the root", agent_toml=agent_toml(WANTED), unit=plan.unit(BARE).text, enabled=True, agent_active=True,
                   agent=AGENT.place({}), versions={"0.1.0": AGENT.digest})


def notes(facts: Facts, *, mode: Mode = Mode.ALL, reason: str = "") -> tuple[str, ...]:
    return plan.make(WANTED, facts, AGENT, AUTHORITY, mode=mode, reason=reason).notes


def test_a_settled_node_needs_nothing() -> None:
    assert notes(settled()) == ()


def test_a_bare_machine_needs_everything() -> None:
    assert len(notes(BARE, reason="it has none yet")) == 6


@pytest.mark.parametrize(("changed", "word"), [
    ({"agent_active": False}, "started"), ({"enabled": False}, "unit"), ({"unit": "older"}, "unit"),
    ({"ca": "other"}, "authority"),
    ({"agent_toml": agent_toml(replace(WANTED, ports="3000-3999"))}, "ports: 3000-3999 -> 20000-20999"),
    ({"agent": "/usr/local/lib/llmgw/0.0.9/llmgw-agent.pyz"}, "agent 0.1.0")])
def test_what_differs_is_put_right_and_named(changed: dict[str, object], word: str) -> None:
    (note,) = notes(replace(settled(), **changed))  # type: ignore[arg-type]
    assert word in note


def reason(leaf: Leaf | None = LEAF, facts: Facts = DONE, valid: tuple[str, ...] | None = ("ab12",), days: float = 1) -> str:
    return plan.certificate_reason(WANTED, facts, leaf, "lab", valid, BEGAN + timedelta(days=days))


def test_a_good_certificate_stays() -> None:
    assert reason() == ""


@pytest.mark.parametrize(("why", "word"), [
    (reason(None), "none yet"), (reason(replace(LEAF, genuine=False)), "another authority"),
    (reason(replace(LEAF, uri="llmgw://lab/node/other")), "for llmgw://lab/node/other"),
    (reason(facts=BARE), "do not belong together"),
    (reason(replace(LEAF, addresses=("10.0.0.9",))), "for 10.0.0.9, not for 10.0.0.144"), (reason(days=91), "has expired"),
    (reason(days=61), "two thirds"), (reason(valid=()), "revoked")])
def test_any_other_certificate_is_replaced_with_the_reason(why: str, word: str) -> None:
    assert word in why


def test_an_agent_of_the_same_version_and_other_bytes_gets_a_place_of_its_own() -> None:
    assert AGENT.place({}) == "/usr/local/lib/llmgw/0.1.0/llmgw-agent.pyz"
    assert AGENT.place({"0.1.0": "other"}) == f"/usr/local/lib/llmgw/0.1.0-{AGENT.digest[:8]}/llmgw-agent.pyz"
    assert AGENT.place({"elsewhere": AGENT.digest}) == "/usr/local/lib/llmgw/elsewhere/llmgw-agent.pyz"


def test_the_agent_travels_only_where_it_is_not_yet() -> None:
    for versions, travels in (({}, True), ({"0.1.0": AGENT.digest}, False)):
        facts = replace(BARE, versions=versions)
        made = plan.make(WANTED, facts, AGENT, AUTHORITY, mode=Mode.ALL, reason="")
        data = plan.to_install(WANTED, facts, AGENT, AUTHORITY, made, Mode.ALL, None)
        assert ("archive" in data) is travels
        assert hashlib.sha256(base64.b64decode(AGENT.text)).hexdigest() == data["agent_digest"]


def test_a_renewal_touches_the_certificate_and_an_upgrade_the_agent() -> None:
    def keys(mode: Mode, issued: tuple[str, str] | None) -> set[str]:
        made = plan.make(WANTED, settled(), AGENT, AUTHORITY, mode=mode, reason="asked for" if issued else "")
        return set(plan.to_install(WANTED, settled(), AGENT, AUTHORITY, made, mode, issued))
    assert keys(Mode.RENEW, ("ab", "pem")) == {"python", "cluster", "serial", "certificate", "ca"}
    assert keys(Mode.UPGRADE, None) == {"python", "cluster", "agent", "agent_digest", "staged_toml"}


def test_the_configuration_holds_what_was_asked_for_and_can_name_a_staged_certificate() -> None:
    wanted = replace(WANTED, fabrics=("ib-a:mlx5_0,mlx5_1",), engines=("llama-server=/opt/a \"b\"",), labels=("rack=7",))
    made = tomllib.loads(agent_toml(wanted))
    assert (made["fabrics"], made["engines"]) == (["ib-a:mlx5_0,mlx5_1"], {"llama-server": '/opt/a "b"'})
    assert made["pki"]["key"] == "/etc/llmgw/pki/node.key"
    assert "/pair-ab12/" in tomllib.loads(agent_toml(wanted, "ab12"))["pki"]["key"]


def test_differences_are_told_key_by_key() -> None:
    before, after = agent_toml(WANTED), agent_toml(replace(WANTED, fabrics=("ib-b",), address="10.0.0.9"))
    assert differences(before, after) == ["address: 10.0.0.144 -> 10.0.0.9", "fabrics: nothing -> ib-b"]
    assert differences(before, before) == []


def archive(**files: str) -> bytes:
    place = BytesIO()
    with zipfile.ZipFile(place, "w") as made:
        for name, text in files.items():
            made.writestr(name.replace("__", "/") + ".py", text)
    return place.getvalue()


def test_only_an_agent_is_taken_for_an_agent() -> None:
    good = archive(llmgw_agent="", lib__base__version='VERSION = "1.2.3"\n')
    assert parse_agent(good, "x").version == "1.2.3"
    for bad in (b"", b"#!/bin/sh\n", archive(llmgw_ctl="", lib__base__version='VERSION = "1"\n'),
                archive(llmgw_agent="", lib__base__version='VERSION = "../../x"\n')):
        with pytest.raises(ConfigError, match=r"is not an llmgw-agent\.pyz"):
            parse_agent(bad, "x")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_agent("/nonexistent")


def test_another_machine_is_a_rival_only_while_it_is_heard() -> None:
    standing = Standing("ready", "10.0.0.144", "run-1", "0.1.0", 2.0)
    assert rival(standing, BARE)
    assert not rival(standing, replace(BARE, agent_run="run-1"))
    assert rival(standing, replace(BARE, agent_run="run-2"))
    assert not rival(replace(standing, heard_s=46.0), BARE)
    assert not rival(replace(standing, heard_s=None), BARE)
    assert not rival(None, BARE)
