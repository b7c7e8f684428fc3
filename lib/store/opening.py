"""Getting at the state file: making it, checking it, lifting it to the newest schema, copying it, and its faults in words.

Room: store. The database file is never opened but by SQLite: closing any other handle on it would drop SQLite's locks.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.base.errors import LlmgwError, Unavailable, bad_config
from lib.base.files import move_durably
from lib.store import schema

CANNOT_WRITE = {sqlite3.SQLITE_FULL: "the disk is full", sqlite3.SQLITE_IOERR: "the disk gives errors",
                sqlite3.SQLITE_READONLY: "it cannot be written", sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
                sqlite3.SQLITE_BUSY: "another program holds it locked", sqlite3.SQLITE_LOCKED: "another program holds it locked",
                sqlite3.SQLITE_PERM: "access is denied"}
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
RESTORE = "move it away, and put its newest undamaged copy in its place"


def connect(path: Path) -> sqlite3.Connection:
    """A connection with our pragmas. Transactions are said aloud; the caller keeps its threads from using it at once."""
    if sqlite3.sqlite_version_info < schema.OLDEST_SQLITE:
        raise bad_config(str(path), f"this Python has SQLite {sqlite3.sqlite_version}, and 3.37 is needed",
                         hint="use a newer distribution's Python")
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        schema.settle(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def create_file(path: Path) -> None:
    """An empty file of mode 0600 where there was none; ConfigError otherwise."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise bad_config(str(path), "there is a state file already",
                         hint="llmgw-ctl serve uses it; remove it to begin anew") from None
    except OSError as err:
        raise bad_config(str(path), f"cannot be made: {err.strerror}",
                         hint=f"does {path.parent} exist, and may it be written?") from err


def refuse_unfit(path: Path) -> None:
    """ConfigError where there is no state file, or one that this user can neither read nor write."""
    if not path.is_file():
        raise bad_config(str(path), "is not a file" if path.exists() else "there is no state file",
                         hint="put its newest copy there; for a new cluster llmgw-ctl init makes one")
    if path.stat().st_size == 0:
        raise bad_config(str(path), "is empty, so what the cluster runs is not in it", hint=RESTORE)
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        raise bad_config(str(path), "cannot be read and written, or its directory cannot, by this user",
                         hint=f"chown {path.parent} and what is in it to the control plane's user, modes 0700 and 0600")


def bring_up(db: sqlite3.Connection, path: Path, migrations: Sequence[str] = schema.MIGRATIONS) -> None:
    """Check that the file is ours and whole, and lift it to the newest schema, after a backup beside it."""
    have = schema.version_of(db)
    if db.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID or have == 0:
        raise bad_config(str(path), "is an SQLite file, but not a state file of llmgw", hint=RESTORE)
    if (answer := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise bad_config(str(path), f"is damaged: {' '.join(answer.split())}", hint=RESTORE)
    if have > len(migrations):
        raise bad_config(str(path), f"has schema {have}, and this build knows {len(migrations)}",
                         hint="install the build that wrote it, or a newer one")
    if have < len(migrations):
        copy_to(db, path.with_name(f"{path.name}.schema-{have}"))
        schema.migrate(db, migrations)


def copy_to(db: sqlite3.Connection, target: Path) -> None:
    """A consistent copy at `target`, which is replaced as a whole or not at all."""
    beside = target.with_name(f".{target.name}.new")
    beside.unlink(missing_ok=True)
    db.execute("VACUUM INTO ?", (str(beside),))
    os.chmod(beside, 0o600)
    move_durably(beside, target)


@contextlib.contextmanager
def outside(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: Unavailable where a later try may succeed, ConfigError where the file is not usable."""
    try:
        yield
    except sqlite3.Error as err:
        raise in_words(path, err) from err


def in_words(path: Path, err: sqlite3.Error) -> LlmgwError | sqlite3.Error:
    """What an error of SQLite means for the state file; itself where it means a fault of ours."""
    code = getattr(err, "sqlite_errorcode", 0) & 0xFF
    if code in DAMAGED:
        return bad_config(str(path), f"is damaged or no state file: {err}", hint=RESTORE)
    if code in CANNOT_WRITE:
        return Unavailable(f"{path}: {CANNOT_WRITE[code]}: {err}", hint="changes are refused until it can be written again; "
                                                                   "what runs goes on running")
    return err
