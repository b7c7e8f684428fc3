"""Model values to rows and back.

Room: store.
"""

import json
import sqlite3
from typing import Any

from lib.model.catalog import Spec
from lib.model.certificate import Certificate, Revocation
from lib.model.codec import decode, encode
from lib.model.committed import ApiKey, Change, Committed
from lib.model.fleet import Held, KnownNode, Replica, ShardKey
from lib.model.identity import Role
from lib.model.wire import KeyLimits


def dump(value: Any) -> str:
    """A model value as compact JSON."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"))


def load(db: sqlite3.Connection) -> Committed:
    """The whole committed state."""
    meta = dict(db.execute("SELECT k, v FROM meta"))
    nodes = [decode(KnownNode, json.loads(row)) for (row,) in db.execute("SELECT row FROM node ORDER BY id")]
    replicas, specs = _load_replicas(db)
    held = [decode(Held, json.loads(row)) for (row,) in db.execute("SELECT row FROM held ORDER BY replica, counter, rank")]
    keys = [ApiKey(id, name, digest, decode(KeyLimits, json.loads(limits)))
            for id, name, digest, limits in db.execute("SELECT id, name, sha256, limits FROM apikey ORDER BY id")]
    return Committed(
        cluster=meta["cluster"], lineage=meta["lineage"], cp_epoch=int(meta["cp_epoch"]), counter=int(meta["counter"]),
        rev=int(meta["rev"]), nodes={node.id: node for node in nodes}, replicas=replicas, specs=specs,
        held={item.key: item for item in held}, keys={key.id: key for key in keys},
        revoked=tuple(serial for (serial,) in db.execute("SELECT serial FROM revoked ORDER BY serial")),
        catalog=meta.get("catalog", ""), catalog_file=meta.get("catalog_file", ""),
        certificates={known.serial: known for known in _load_certificates(db)},
        removed=frozenset(id for (id,) in db.execute("SELECT id FROM removed")))


def _load_certificates(db: sqlite3.Connection) -> list[Certificate]:
    return [Certificate(serial, Role(role), id, begins, ends) for serial, role, id, begins, ends in db.execute(
        "SELECT serial, role, id, not_before, not_after FROM cert ORDER BY id, issued_at")]


def save_certificate(db: sqlite3.Connection, known: Certificate, wall: float) -> None:
    """A certificate that was not known."""
    row = (known.serial, known.role.value, known.id, known.not_before, known.not_after, wall)
    db.execute("INSERT INTO cert (serial, role, id, not_before, not_after, issued_at) VALUES (?, ?, ?, ?, ?, ?)", row)


def save_revocation(db: sqlite3.Connection, what: Revocation) -> None:
    """A revocation; the first one of a serial stands."""
    row = (what.serial, what.at, what.reason)
    db.execute("INSERT OR IGNORE INTO revoked (serial, at, reason) VALUES (?, ?, ?)", row)


def load_revocations(db: sqlite3.Connection) -> dict[str, Revocation]:
    """Every revocation by serial."""
    return {serial: Revocation(serial, at, reason) for serial, at, reason in db.execute("SELECT serial, at, reason FROM revoked")}


def _load_replicas(db: sqlite3.Connection) -> tuple[dict[str, Replica], dict[str, Spec]]:
    replicas, specs = {}, {}
    for id, row, spec in db.execute("SELECT id, row, spec FROM replica ORDER BY id"):
        replicas[id] = decode(Replica, json.loads(row))
        if spec is not None:
            specs[id] = decode(Spec, json.loads(spec))
    return replicas, specs


def set_meta(db: sqlite3.Connection, key: str, value: object) -> None:
    """One fact about the whole file."""
    db.execute("INSERT INTO meta (k, v) VALUES (?, ?) ON CONFLICT (k) DO UPDATE SET v = excluded.v", (key, str(value)))


def write_change(db: sqlite3.Connection, change: Change, after: Committed) -> None:
    """Make the rows that `change` touched agree with `after`."""
    if change.replica is not None or change.remove:
        _write_replica(db, change.target if change.remove else change.replica.id, after)  # type: ignore[union-attr]
    for key in [item.key for item in change.hold] + list(change.release):
        _write_held(db, key, after)
    if change.node is not None:
        save_node(db, change.node)
    if change.forget:
        db.execute("DELETE FROM node WHERE id = ?", (change.target,))


def _write_replica(db: sqlite3.Connection, id: str, after: Committed) -> None:
    row, spec = after.replicas.get(id), after.specs.get(id)
    db.execute("DELETE FROM replica WHERE id = ?", (id,))
    if row is not None:
        db.execute("INSERT INTO replica (id, profile, state, counter, row, spec) VALUES (?, ?, ?, ?, ?, ?)",
                   (id, row.profile, row.state.value, row.epoch.counter if row.epoch else 0, dump(row),
                    None if spec is None else dump(spec)))


def _write_held(db: sqlite3.Connection, key: ShardKey, after: Committed) -> None:
    db.execute("DELETE FROM held WHERE replica = ? AND counter = ? AND rank = ?", key)
    if item := after.held.get(key):
        db.execute("INSERT INTO held (replica, counter, rank, node, row) VALUES (?, ?, ?, ?, ?)", (*key, item.node, dump(item)))


def save_node(db: sqlite3.Connection, node: KnownNode) -> None:
    """A node as it now is."""
    db.execute("INSERT INTO node (id, row) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET row = excluded.row",
               (node.id, dump(node)))
