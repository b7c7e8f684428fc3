"""Files that are either the old one or the new one, whatever happens in between.

Room: base.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError, bad_config


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Replace `path` by `data`, as a whole and for good: a reader or a power cut finds the old file or the new one."""
    with _written_beside(path, data, mode) as draft:
        os.replace(draft, path)


def create_atomic(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """The same where nothing has this name yet; FileExistsError otherwise."""
    with _written_beside(path, data, mode) as draft:
        os.link(draft, path)               # unlike a rename it fails where the name is taken


@contextmanager
def _written_beside(path: Path, data: bytes | str, mode: int) -> Iterator[str]:
    """A synced file beside `path`, to be put in its place. Raises LlmgwError naming the path, FileExistsError as it is."""
    draft = ""
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
        sync_directory(path.parent)
    except FileExistsError:
        raise
    except OSError as err:
        raise LlmgwError(f"cannot write {path}: {err.strerror}") from err
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def move_durably(made: Path, place: Path) -> None:
    """Put a finished file in its place, both on one file system, so that a power cut leaves a whole one. Raises OSError."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    os.replace(made, place)
    sync_directory(place.parent)


def stamp(path: Path) -> tuple[int, ...]:
    """Something that differs once the file has been written or replaced; empty while there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def sync_directory(path: Path) -> None:
    """Make a rename or a removal in this directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """`write_atomic` of `value` as JSON."""
    write_atomic(path, render_json(value), mode=mode)


def render_json(value: Any) -> str:
    """JSON as our files hold it: indented, with sorted keys."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def read_text(path: Path) -> str:
    """The text of a file; ConfigError naming it where it is missing, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        raise bad_config(str(path), f"cannot be read: {err.strerror}") from err
    except UnicodeDecodeError:
        raise bad_config(str(path), "is not UTF-8 text") from None


def read_json(path: Path) -> Any:
    """The JSON value in a file; ConfigError naming file and line where there is none."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as err:
        raise bad_config(str(path), f"is not JSON: {err.msg}", line=err.lineno) from None
