"""The tables of the state file, and how an older file is lifted to them.

Room: store. MIGRATIONS only ever grows: an entry that has been released is never changed. Rows that decisions rest on are
kept as one JSON value each, so that a field more in `model.fleet` needs no migration; what is searched by has a column.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

APPLICATION_ID = 0x6C6C6D67                # "llmg": tells our file from any other SQLite file
OLDEST_SQLITE = (3, 37)                    # STRICT tables

MIGRATIONS: tuple[str, ...] = (            # entry n lifts a file from user_version n to n + 1
    "CREATE TABLE meta (k TEXT PRIMARY KEY, v TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE node (id TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT",
    "CREATE TABLE replica (id TEXT PRIMARY KEY, profile TEXT NOT NULL, state TEXT NOT NULL, counter INTEGER NOT NULL, "
    "row TEXT NOT NULL, spec TEXT) STRICT",
    "CREATE TABLE held (replica TEXT NOT NULL, counter INTEGER NOT NULL, rank INTEGER NOT NULL, node TEXT NOT NULL, "
    "row TEXT NOT NULL, PRIMARY KEY (replica, counter, rank)) STRICT",
    "CREATE TABLE apikey (id TEXT PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL UNIQUE, limits TEXT NOT NULL) STRICT",
    "CREATE TABLE revoked (serial TEXT PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL) STRICT",
    "CREATE TABLE event (seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, target TEXT NOT NULL, "
    "text TEXT NOT NULL) STRICT",
    "CREATE TABLE audit (seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL, "
    "target TEXT NOT NULL, result TEXT NOT NULL) STRICT",
    "CREATE TABLE op (key TEXT PRIMARY KEY, body_sha256 TEXT NOT NULL, actor TEXT NOT NULL, at REAL NOT NULL, "
    "answer TEXT NOT NULL, rev INTEGER NOT NULL) STRICT",
    "CREATE TABLE cert (serial TEXT PRIMARY KEY, role TEXT NOT NULL, id TEXT NOT NULL, not_before REAL NOT NULL, "
    "not_after REAL NOT NULL, issued_at REAL NOT NULL) STRICT",
    "CREATE TABLE removed (id TEXT PRIMARY KEY, at REAL NOT NULL) STRICT",
)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT; ROLLBACK on any exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def version_of(db: sqlite3.Connection) -> int:
    """The file's schema version: how many migrations it has had."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Lift the file to the newest schema, all steps in one transaction."""
    with transaction(db):
        for sql in migrations[version_of(db):]:
            db.execute(sql)
        db.execute(f"PRAGMA user_version = {len(migrations)}")


def settle(db: sqlite3.Connection) -> None:
    """The pragmas every connection needs: durable commits, and distrust of a damaged file."""
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF",
                   "cell_size_check = ON", "busy_timeout = 2000", "journal_size_limit = 16777216"):
        db.execute(f"PRAGMA {pragma}").fetchall()
