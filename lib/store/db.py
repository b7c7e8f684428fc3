"""The state file: one SQLite database, one process, one writer.

Room: store. What is committed is what is said to anyone: readers get an immutable snapshot that changes only after a commit.
Nothing decides here; a change is checked by `model.committed.apply` and made durable.
"""

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lib.base.errors import NotFound, Refused, Unavailable, UsageError
from lib.model.certificate import Certificate, Revocation, removed
from lib.model.committed import ApiKey, Change, Committed, apply, stamped
from lib.model.identity import Role
from lib.store import rows, schema
from lib.store.denials import DenialFile, Denied, Line
from lib.store.lock import Lock, refuse_network_filesystem
from lib.store.opening import bring_up, connect, copy_to, create_file, in_words, outside, refuse_unfit

EVENTS_KEPT, AUDIT_KEPT, OPS_KEPT = 10_000, 100_000, 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """One line of `llmgw-ctl events`. `at` is wall-clock seconds."""

    seq: int
    at: float
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One operator action: who (certificate name), what, on what, and how it ended."""

    seq: int
    at: float
    actor: str
    action: str
    target: str
    result: str


class Transaction:
    """What can be done inside `Store.change`. All of it is one transaction and one rev."""

    def __init__(self, db: sqlite3.Connection, state: Committed, wall: float) -> None:
        self._db, self._wall = db, wall
        self._before = state
        self.after = replace(state, rev=state.rev + 1)        # the state as it will be once committed
        self.denials: list[Line] = []      # for revoked.jsonl, written just before the commit

    @property
    def rev(self) -> int:
        """The rev this transaction will have."""
        return self._before.rev + 1

    def begin_cp_epoch(self) -> None:
        """A control plane starts: orders of any earlier one are old from now on."""
        self.after = replace(self.after, cp_epoch=self.after.cp_epoch + 1)
        rows.set_meta(self._db, "cp_epoch", self.after.cp_epoch)

    def perform(self, change: Change) -> None:
        """Make one decision durable, its event included. Blocked where its ground is gone, Impossible where it breaks a rule."""
        rev = self.rev
        self.after = replace(apply(replace(self.after, rev=rev - 1), change), rev=rev)
        rows.write_change(self._db, stamped(change, rev), self.after)
        if change.event:
            self.event(change.target, change.event)

    def event(self, target: str, text: str) -> None:
        """One line for `llmgw-ctl events`; the oldest go once there are too many."""
        seq = self._db.execute("INSERT INTO event (at, target, text) VALUES (?, ?, ?)", (self._wall, target, text)).lastrowid
        self._db.execute("DELETE FROM event WHERE seq <= ?", ((seq or 0) - EVENTS_KEPT,))

    def audit(self, actor: str, action: str, target: str, result: str) -> None:
        """One line of the audit trail. `Store.change` writes the one for a success by itself."""
        seq = self._db.execute("INSERT INTO audit (at, actor, action, target, result) VALUES (?, ?, ?, ?, ?)",
                               (self._wall, actor, action, target, result)).lastrowid
        self._db.execute("DELETE FROM audit WHERE seq <= ?", ((seq or 0) - AUDIT_KEPT,))

    def save_key(self, key: ApiKey) -> None:
        """Add an API key, or change its name and limits."""
        self._db.execute("INSERT INTO apikey (id, name, sha256, limits) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                         "name = excluded.name, limits = excluded.limits", (key.id, key.name, key.sha256, rows.dump(key.limits)))
        self.after = replace(self.after, keys={**self.after.keys, key.id: key})

    def delete_key(self, id: str) -> None:
        """Forget an API key; NotFound where there is none."""
        if id not in self.after.keys:
            raise NotFound(f"there is no API key {id}", hint="llmgw-ctl keys list shows them")
        self._db.execute("DELETE FROM apikey WHERE id = ?", (id,))
        self.after = replace(self.after, keys={key: item for key, item in self.after.keys.items() if key != id})

    def set_catalog(self, text: str, file_digest: str) -> None:
        """Keep the text of a catalog that was found good, and what the file holds at this moment."""
        rows.set_meta(self._db, "catalog", text)
        rows.set_meta(self._db, "catalog_file", file_digest)
        self.after = replace(self.after, catalog=text, catalog_file=file_digest)

    def cordon(self, node: str, on: bool) -> None:
        """Let nothing new onto a node, or let it again; NotFound where there is none."""
        if node not in self.after.nodes:
            raise NotFound(f"there is no node {node}", hint="llmgw-ctl nodes lists them")
        known = replace(self.after.nodes[node], cordoned=on)
        rows.save_node(self._db, known)
        self.after = replace(self.after, nodes={**self.after.nodes, node: known})

    def record(self, certificate: Certificate, *, returns: bool = False) -> bool:
        """Keep a certificate that was issued; False where it was known. With `returns` it brings a removed node back."""
        known = self.after.certificates.get(certificate.serial)
        if known is not None and (known.role, known.id) != (certificate.role, certificate.id):
            raise Refused(f"serial {certificate.serial} is known as the {known}")
        gone = certificate.role is Role.NODE and certificate.id in self.after.removed
        if gone and not returns:
            raise removed(certificate.id)
        if known is not None:
            return False
        rows.save_certificate(self._db, certificate, self._wall)
        self.after = replace(self.after, certificates={**self.after.certificates, certificate.serial: certificate})
        if gone:
            self._unmark(certificate.id)
            self.denials.append(Line(self._wall, returned=certificate.id))
        return True

    def revoke(self, serial: str, reason: str) -> None:
        """Put a certificate's serial (lower-case hex) on the deny-list, for ever."""
        if serial not in self.after.revoked:
            self._deny(Revocation(serial, self._wall, reason))
            self.denials.append(Line(self._wall, serial=serial, reason=reason))

    def remove_node(self, id: str, reason: str) -> None:
        """Shut a node out: its id, and every certificate it is known to have had. NotFound where nothing is known of it."""
        theirs = [known.serial for known in self.after.certificates.values() if (known.role, known.id) == (Role.NODE, id)]
        if id not in self.after.nodes and not theirs:
            raise NotFound(f"there is no node {id!r}", hint="llmgw-ctl nodes lists them")
        for serial in theirs:
            self.revoke(serial, reason)
        if id not in self.after.removed:
            self._mark(id, self._wall)
            self.denials.append(Line(self._wall, removed=id))

    def catch_up(self, denied: Denied) -> None:
        """Make this file and revoked.jsonl say the same: an older state file that was brought back undoes nothing."""
        known = rows.load_revocations(self._db)
        for serial in denied.revoked.keys() - known.keys():
            self._deny(denied.revoked[serial])
        self.denials += [Line(known[serial].at, serial, known[serial].reason) for serial in known.keys() - denied.revoked.keys()]
        for id in self.after.removed & denied.returned:
            self._unmark(id)
        self.denials += [Line(self._wall, removed=id) for id in self.after.removed - denied.removed.keys()]
        for id in denied.removed.keys() - self.after.removed:
            self._mark(id, denied.removed[id])

    def _deny(self, what: Revocation) -> None:
        rows.save_revocation(self._db, what)
        self.after = replace(self.after, revoked=tuple(sorted({*self.after.revoked, what.serial})))

    def _mark(self, id: str, at: float) -> None:
        self._db.execute("INSERT INTO removed (id, at) VALUES (?, ?)", (id, at))
        self.after = replace(self.after, removed=self.after.removed | {id})

    def _unmark(self, id: str) -> None:
        self._db.execute("DELETE FROM removed WHERE id = ?", (id,))
        self.after = replace(self.after, removed=self.after.removed - {id})

    def remember(self, key: str, body_sha256: str, actor: str, answer: str) -> None:
        """Keep the answer given to an idempotency key, in the transaction that did the work."""
        self._db.execute("INSERT INTO op (key, body_sha256, actor, at, answer, rev) VALUES (?, ?, ?, ?, ?, ?)",
                         (key, body_sha256, actor, self._wall, answer, self.rev))
        self._db.execute("DELETE FROM op WHERE rev < (SELECT min(rev) FROM (SELECT rev FROM op ORDER BY rev DESC LIMIT ?))",
                         (OPS_KEPT,))


class Store:
    """The open state file. Any thread may call any method; writers wait for each other, readers of `state()` for nobody."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: Lock, wall: Callable[[], float]) -> None:
        self.path = path
        self.fault = ""                    # why the last write failed; empty while writes work
        self._db, self._lock, self._wall = db, lock, wall
        self._turn = threading.RLock()
        self._state = rows.load(db)
        self._denials = DenialFile(path)

    @classmethod
    def create(cls, path: Path, cluster: str) -> None:
        """Make an empty state file with a new lineage, mode 0600. ConfigError where there is one already."""
        create_file(path)
        with ExitStack() as undo, outside(path):
            undo.callback(Lock(path).release)
            db = connect(path)
            undo.callback(db.close)
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            schema.migrate(db)
            with schema.transaction(db):
                fresh = {"cluster": cluster, "lineage": uuid.uuid4().hex, "cp_epoch": 0, "counter": 0, "rev": 0}
                for key, value in fresh.items():
                    rows.set_meta(db, key, value)

    @classmethod
    def open(cls, path: Path, *, wall: Callable[[], float] = time.time) -> "Store":
        """Lock, check, migrate, and begin a new cp_epoch.

        StateLocked names the process that has it; ConfigError says what is wrong with the file and what to do about it.
        """
        refuse_unfit(path)
        refuse_network_filesystem(path)
        with ExitStack() as undo, outside(path):
            lock = Lock(path)
            undo.callback(lock.release)
            db = connect(path)
            undo.callback(db.close)
            bring_up(db, path)
            store = cls(path, db, lock, wall)
            with store.change("", "start") as step:
                step.begin_cp_epoch()
                step.catch_up(store._denials.read())
            undo.pop_all()
        return store

    def state(self) -> Committed:
        """The committed state as of the last commit."""
        return self._state

    @contextmanager
    def change(self, actor: str, action: str, target: str = "") -> Iterator[Transaction]:
        """One transaction: committed when the block ends, rolled back when it raises; then `rev` has risen by one.

        `actor` is the operator's certificate name, and the audit trail gets a line; empty for the control plane itself.
        Unavailable where the disk is full or broken: then nothing has changed, in the file or in `state()`.
        """
        with self._turn, self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                step = Transaction(self._db, self._state, self._wall())
                yield step
                if actor:
                    step.audit(actor, action, target, "done")
                rows.set_meta(self._db, "rev", step.after.rev)
                rows.set_meta(self._db, "counter", step.after.counter)
                self._denials.append(step.denials)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._state, self.fault = step.after, ""

    def refused(self, actor: str, action: str, target: str, why: str) -> None:
        """Note in the audit trail that an operator's action was refused. Not a change of desired state: no rev."""
        with self._turn, self._translated(), schema.transaction(self._db):
            Transaction(self._db, self._state, self._wall()).audit(actor, action, target, f"refused: {why}")

    def probe(self) -> bool:
        """Whether the file can be written; clears `fault` if so. For the loop, while `fault` is set."""
        try:
            with self._turn, self._translated(), schema.transaction(self._db):
                rows.set_meta(self._db, "probed_at", self._wall())
        except Unavailable:
            return False
        self.fault = ""
        return True

    def recall(self, key: str, body_sha256: str) -> str | None:
        """The answer once given to this idempotency key, or None; UsageError where it came with another body."""
        with self._turn, outside(self.path):
            row = self._db.execute("SELECT body_sha256, answer FROM op WHERE key = ?", (key,)).fetchone()
        if row is not None and row[0] != body_sha256:
            raise UsageError(f"idempotency key {key} was used for another request", hint="use a new key for each change")
        return None if row is None else str(row[1])

    def events(self, after: int = 0, limit: int = 1000) -> tuple[Event, ...]:
        """The newest `limit` events with a seq above `after`, oldest first."""
        with self._turn, outside(self.path):
            found = self._db.execute("SELECT seq, at, target, text FROM event WHERE seq > ? ORDER BY seq DESC LIMIT ?",
                                     (after, limit)).fetchall()
        return tuple(Event(*row) for row in reversed(found))

    def audit_trail(self, after: int = 0, limit: int = 1000) -> tuple[AuditEntry, ...]:
        """The newest `limit` audit lines with a seq above `after`, oldest first."""
        with self._turn, outside(self.path):
            found = self._db.execute("SELECT seq, at, actor, action, target, result FROM audit WHERE seq > ? "
                                     "ORDER BY seq DESC LIMIT ?", (after, limit)).fetchall()
        return tuple(AuditEntry(*row) for row in reversed(found))

    def revocations(self) -> dict[str, Revocation]:
        """Every revocation by serial, with its time and reason."""
        with self._turn, outside(self.path):
            return rows.load_revocations(self._db)

    def backup(self, target: Path) -> None:
        """A consistent copy of the file, whole or not at all."""
        with self._turn, outside(target):
            copy_to(self._db, target)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of writing as ours. A commit that failed half-way is looked up in the file: that alone knows."""
        try:
            yield
        except sqlite3.Error as err:
            told = in_words(self.path, err)
            if told is err:
                raise
            self.fault = str(told)
            with suppress(sqlite3.Error):
                self._state = rows.load(self._db)
            raise told from err

    def close(self) -> None:
        """Close the file and let another process have it."""
        with self._turn:
            self._db.close()
            self._lock.release()
