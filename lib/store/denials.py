"""revoked.jsonl beside the state file: revocations and removals, so that bringing back an older state file undoes none.

Room: store. Lines are only ever added, each synced to disk before the transaction that it belongs to is committed. A line that a
crash cut off was never answered, and is skipped.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.base.errors import Unavailable, bad_config
from lib.base.files import sync_directory
from lib.model.certificate import Revocation

NAME = "revoked.jsonl"


@dataclass(frozen=True, slots=True)
class Denied:
    """What the file says in the end: an id that was removed may have been onboarded again."""

    revoked: Mapping[str, Revocation] = field(default_factory=dict)
    removed: Mapping[str, float] = field(default_factory=dict)          # node id -> when
    returned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Line:
    """One line: exactly one of the three is said."""

    at: float
    serial: str = ""
    reason: str = ""
    removed: str = ""                      # a node id
    returned: str = ""                     # a node id that was onboarded again

    def render(self) -> str:
        said = {"serial": self.serial, "reason": self.reason, "removed": self.removed, "returned": self.returned}
        return json.dumps({"at": self.at, **{key: value for key, value in said.items() if value}}) + "\n"


class DenialFile:
    """The file beside `state`. One process writes it: whoever holds the lock of the state file."""

    def __init__(self, state: Path) -> None:
        self.path = state.with_name(NAME)

    def read(self) -> Denied:
        """Everything said so far; nothing where there is no file. ConfigError where it cannot be read."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return Denied()
        except OSError as err:
            raise bad_config(str(self.path), f"cannot be read: {err.strerror}",
                             hint="without it a revoked certificate might be let in") from err
        return _fold(filter(None, map(_parse, text.splitlines())))

    def append(self, lines: Iterable[Line]) -> None:
        """Add lines and sync them to disk; Unavailable where that cannot be."""
        text = "".join(line.render() for line in lines)
        if not text:
            return
        try:
            fresh = not self.path.exists()
            with open(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
                file.write((b"\n" if torn else b"") + text.encode())
                os.fsync(file.fileno())
            if fresh:
                sync_directory(self.path.parent)
        except OSError as err:
            raise Unavailable(f"cannot write {self.path}: {err.strerror}", hint="nothing was revoked") from err


def _parse(text: str) -> Line | None:
    try:
        value: Any = json.loads(text)
        return Line(float(value["at"]), *(str(value.get(key, "")) for key in ("serial", "reason", "removed", "returned")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _fold(lines: Iterable[Line]) -> Denied:
    revoked: dict[str, Revocation] = {}
    removed: dict[str, float] = {}
    returned: set[str] = set()
    for line in lines:
        if line.serial:
            revoked.setdefault(line.serial, Revocation(line.serial, line.at, line.reason))
        if line.removed:
            removed[line.removed] = line.at
            returned.discard(line.removed)
        if line.returned:
            removed.pop(line.returned, None)
            returned.add(line.returned)
    return Denied(revoked, removed, frozenset(returned))
