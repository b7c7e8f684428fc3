"""What has to change on a node, decided from what it is and what is wanted.

Room: onboard. Pure: done twice, the second plan is empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lib.host.systemd import Unit, agent_unit
from lib.onboard import files
from lib.onboard.facts import Facts
from lib.onboard.files import Agent
from lib.onboard.wanted import Wanted
from lib.pki.reading import Leaf


class Mode(StrEnum):
    """How much of it."""

    ALL, RENEW, UPGRADE = "all", "renew", "upgrade"


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's words that matter here."""

    cluster: str
    ca_pem: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`certificate`: why a new one is wanted, empty where the old one stays. `notes`: what will change, one line each."""

    certificate: str
    agent_place: str
    send_agent: bool
    notes: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return not self.notes


def certificate_reason(wanted: Wanted, facts: Facts, leaf: Leaf | None, cluster: str, valid: Sequence[str] | None,
                       now: datetime) -> str:
    """Why the node needs a new certificate, or an empty string. `valid`: serials that are not revoked, None where not known."""
    if leaf is None:
        return "it has none yet"
    rules = (
        (leaf.genuine, "its certificate is of another authority"),
        (leaf.uri == f"llmgw://{cluster}/node/{wanted.node}", f"its certificate is for {leaf.uri or 'nobody'}"),
        (facts.key_fits, "its key and certificate do not belong together"),
        (wanted.address in leaf.addresses, f"its certificate is for {', '.join(leaf.addresses)}, not for {wanted.address}"),
        (now < leaf.not_after, "its certificate has expired"),
        (now < leaf.not_before + (leaf.not_after - leaf.not_before) * 2 / 3, "two thirds of its certificate's life are over"),
        (valid is None or leaf.serial in valid, "its certificate has been revoked"))
    return next((reason for holds, reason in rules if not holds), "")


def make(wanted: Wanted, facts: Facts, agent: Agent, authority: Authority, *, mode: Mode, reason: str) -> Plan:
    """What is to be done, as lines that can be shown."""
    place = agent.place(facts.versions)
    notes: list[str] = []
    if reason:
        notes.append(f"a new key and certificate: {reason}")
    if mode is not Mode.RENEW and facts.agent != place:
        notes.append(f"agent {agent.version} in {place}")
    if mode is Mode.ALL:
        notes += _configuration_notes(wanted, facts, authority)
    return Plan(reason, place, agent.digest not in facts.versions.values(), tuple(notes))


def _configuration_notes(wanted: Wanted, facts: Facts, authority: Authority) -> list[str]:
    notes = []
    if facts.ca != authority.ca_pem:
        notes.append("the cluster's authority, trusted by the whole system" if facts.trust else "the cluster's authority")
    if not facts.agent_toml:
        notes.append(f"{files.CONFIG}, new")
    elif (toml := files.agent_toml(wanted)) != facts.agent_toml:
        notes += [f"{files.CONFIG}: {line}" for line in files.differences(facts.agent_toml, toml) or ["rewritten"]]
    if unit(facts).text != facts.unit or not facts.enabled:
        notes.append(f"unit {unit(facts).name}")
    if not facts.agent_active:
        notes.append("the agent, started")
    return notes


def unit(facts: Facts) -> Unit:
    """The unit for this node."""
    return agent_unit(facts.python, files.LINK, files.CONFIG, state_dir=files.STATE_DIR, groups=facts.groups)


def to_install(wanted: Wanted, facts: Facts, agent: Agent, authority: Authority, plan: Plan, mode: Mode,
               issued: tuple[str, str] | None) -> Mapping[str, Any]:
    """The data of `install` in node_program.py. `issued`: serial and PEM of a new certificate."""
    data: dict[str, Any] = {"python": facts.python, "cluster": authority.cluster}
    staged = issued[0] if issued else ""
    if issued:
        data |= {"serial": issued[0], "certificate": issued[1], "ca": authority.ca_pem}
    if mode is not Mode.RENEW:
        data |= {"agent": plan.agent_place, "agent_digest": agent.digest}
        data |= {"archive": agent.text} if plan.send_agent else {}
    if mode is Mode.ALL:
        data |= {"ca": authority.ca_pem, "state_dir": files.STATE_DIR, "unit": unit(facts).text,
                 "agent_toml": files.agent_toml(wanted), "staged_toml": files.agent_toml(wanted, staged)}
    if mode is Mode.UPGRADE:
        data |= {"staged_toml": facts.agent_toml}
    return data
