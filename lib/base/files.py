"""Files that are either the old one or the new one, whatever happens in between.

Room: base.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError, bad_config


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Replace `path` by `data`: write beside it, fsync, rename, fsync the directory. Raises LlmgwError naming the path."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as err:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise LlmgwError(f"cannot write {path}: {err.strerror}") from err


def sync_directory(path: Path) -> None:
    """Make a rename or a removal in this directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """`write_atomic` of `value` as indented JSON with sorted keys."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n", mode=mode)


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
