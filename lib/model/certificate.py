"""A certificate that was issued, as the control plane keeps it, and its times as people and messages have them.

Room: model. Inside times are Unix seconds; in JSON they are ISO 8601 in UTC. A serial is lower-case hex without leading zeros.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lib.base.errors import Refused, UsageError
from lib.base.names import DNS_LABEL
from lib.model.identity import Role

_SERIAL = re.compile(r"[1-9a-f][0-9a-f]{0,39}")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Who it names, and from when to when."""

    serial: str
    role: Role
    id: str
    not_before: float
    not_after: float

    def __str__(self) -> str:
        return f"certificate {self.serial} of {self.role} {self.id}"


@dataclass(frozen=True, slots=True)
class Revocation:
    """That a certificate is worthless, since when (Unix seconds), and why."""

    serial: str
    at: float
    reason: str = ""


def removed(node: str) -> Refused:
    """What a removed node is told, whatever it asks."""
    return Refused(f"node {node} was removed; onboard it again", hint=f"llmgw-onboard-node --node {node} where the authority is")


def render_time(seconds: float | None) -> str:
    """2026-03-01T12:00:00Z; empty for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: Any, what: str) -> float:
    """Unix seconds of an ISO 8601 time with its zone; UsageError for anything else."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo else _bad_time(text, what)
    except (TypeError, ValueError, OverflowError):
        return _bad_time(text, what)


def _bad_time(text: Any, what: str) -> float:
    raise UsageError(f"{what}: {text!r} is not a time in UTC", hint="write it like 2026-03-01T12:00:00Z")


def parse_serial(text: Any) -> str:
    """A serial as identities have it, however it was written; UsageError where it is none."""
    found = text.replace(":", "").lower().lstrip("0") if isinstance(text, str) else ""
    if not _SERIAL.fullmatch(found):
        raise UsageError(f"{text!r} is not the serial of a certificate", hint="it is hex, as llmgw-ctl ca list shows it")
    return found


def parse_certificate(body: Any) -> Certificate:
    """What the body of `POST /ctl/v1/certificates` says; UsageError naming what is wrong with it."""
    if not isinstance(body, Mapping):
        raise UsageError("certificate: the body must be an object")
    role, id = body.get("role"), body.get("id")
    if role not in list(Role):
        raise UsageError(f"certificate: there is no role {role!r}", hint=f"roles are {', '.join(Role)}")
    if not isinstance(id, str) or not re.fullmatch(DNS_LABEL, id):
        raise UsageError(f"certificate: {id!r} cannot be an id")
    found = Certificate(parse_serial(body.get("serial")), Role(role), id, parse_time(body.get("not_before"), "not_before"),
                        parse_time(body.get("not_after"), "not_after"))
    if found.not_after <= found.not_before:
        raise UsageError("certificate: it ends before it begins")
    return found
