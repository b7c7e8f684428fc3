"""What this installation has started, and the highest orders it has obeyed: the memory that forbids starting a thing twice.

Room: agent. Written and synced before an engine is started, so that neither a crash, nor a reboot, nor a control plane
restored from an old backup can start an epoch a second time.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.base.errors import UsageError, bad_config
from lib.base.files import read_json, write_json
from lib.model.codec import decode, encode
from lib.model.fleet import ShardKey
from lib.model.wire import Seen

KEPT = 10_000                               # entries; the oldest are forgotten first


@dataclass(frozen=True, slots=True)
class _Page:
    """The journal as it lies on disk."""

    node_uid: str
    seen: Seen = field(default_factory=Seen)
    started: tuple[str, ...] = ()           # "replica counter rank", oldest first


class Journal:
    """The journal file in the state directory. A damaged one is refused: starting from nothing could start things twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._page = self._read() if path.exists() else _Page(secrets.token_hex(16))
        self._keys: dict[ShardKey, None] = dict.fromkeys(_key(line) for line in self._page.started)
        if not path.exists():
            self._write()

    def _read(self) -> _Page:
        try:
            return decode(_Page, read_json(self._path))
        except UsageError as err:
            raise bad_config(str(self._path), f"is damaged: {err}",
                             hint="stop what runs in this state directory, then move the file away") from None

    @property
    def node_uid(self) -> str:
        """The random id of this installation."""
        return self._page.node_uid

    @property
    def seen(self) -> Seen:
        """The highest (lineage, cp_epoch, rev) obeyed."""
        return self._page.seen

    @property
    def started(self) -> Collection[ShardKey]:
        """Every shard ever started here, by (replica, counter, rank)."""
        return self._keys.keys()

    def obey(self, seen: Seen) -> None:
        """Remember that orders of `seen` were accepted. Lineage and cp_epoch are on disk on return, a mere rev need not be."""
        durable = (seen.lineage, seen.cp_epoch) != (self.seen.lineage, self.seen.cp_epoch)
        self._page = replace(self._page, seen=seen)
        if durable:
            self._write()

    def note_start(self, key: ShardKey) -> None:
        """Commit to starting `key`; returns once it is on disk."""
        self._keys[key] = None
        while len(self._keys) > KEPT:
            del self._keys[next(iter(self._keys))]
        self._write()

    def _write(self) -> None:
        started = tuple(f"{replica} {counter} {rank}" for replica, counter, rank in self._keys)
        self._page = replace(self._page, started=started)
        write_json(self._path, encode(self._page))


def _key(line: str) -> ShardKey:
    replica, counter, rank = line.rsplit(" ", 2)
    return replica, int(counter), int(rank)
