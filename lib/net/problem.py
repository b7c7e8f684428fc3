"""Errors on the wire: an LlmgwError as JSON, and back into the same class on the other side.

Room: net.
"""

import dataclasses
from typing import Any

from lib.base.errors import (
    Blocked,
    Cancelled,
    ConfigError,
    Fault,
    LlmgwError,
    NotFound,
    Refused,
    StateLocked,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    UsageError,
)

_CLASSES: tuple[type[LlmgwError], ...] = (UsageError, NotFound, Refused, Blocked, TimedOut, UnknownOutcome,
                                          Cancelled, Unavailable, StateLocked)
_BY_NAME = {kind.__name__: kind for kind in _CLASSES}
_BY_STATUS = {kind.status: kind for kind in reversed(_CLASSES)}
_FAULT_FIELDS = {field.name: field.type for field in dataclasses.fields(Fault)}


def render_problem(err: LlmgwError) -> dict[str, Any]:
    """The body of an error answer."""
    problem: dict[str, Any] = {"message": str(err), "hint": err.hint, "type": type(err).__name__}
    if isinstance(err, ConfigError):
        problem["faults"] = [dataclasses.asdict(fault) for fault in err.faults]
    return {"error": problem}


def parse_problem(status: int, answer: Any, where: str) -> LlmgwError:
    """The error in an answer of `where`, with `status` as it came. What carries no error of ours is one in itself."""
    problem = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(problem, dict):
        return LlmgwError(f"{where} answered {status} without saying why",
                          hint="is this the address of the right server?")
    faults = _faults(problem.get("faults"))
    kind = _BY_NAME.get(str(problem.get("type"))) or _BY_STATUS.get(status, LlmgwError)
    err = ConfigError(faults) if faults else kind(str(problem.get("message")), hint=str(problem.get("hint") or ""))
    err.status = status
    return err


def _faults(value: Any) -> list[Fault]:
    rows = value if isinstance(value, list) else []
    return [fault for row in rows if isinstance(row, dict) and (fault := _fault(row))]


def _fault(row: dict[str, Any]) -> Fault | None:
    known = {key: item for key, item in row.items() if key in _FAULT_FIELDS}
    return Fault(**known) if {"file", "line", "key", "problem"} <= known.keys() else None
