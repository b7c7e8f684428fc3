"""Keys made where they live, by the openssl command: a signing request travels, the key does not.

Room: host. The key is never in an argument, a pipe or a log; it goes from openssl straight into a file of its own.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

from lib.base.errors import LlmgwError, UsageError
from lib.base.files import sync_directory
from lib.host.run import run

COMMON_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


def make_key_and_csr(key: Path, csr: Path, cn: str, *, openssl: str = "openssl") -> None:
    """A new P-256 key (0600) and a signing request of it. Both or none are there afterwards, unless the machine dies
    between two renames: so `key` must not be one in use."""
    if not re.fullmatch(COMMON_NAME, cn):
        raise UsageError(f"{cn!r} cannot be the common name of a certificate", hint="it is a node id: a DNS label")
    work = _beside(key)
    try:
        made_key, made_csr = work / "key", work / "csr"
        run([openssl, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", made_key])
        made_key.chmod(0o600)
        run([openssl, "req", "-new", "-key", made_key, "-subj", f"/CN={cn}", "-out", made_csr])
        made_csr.chmod(0o644)
        _move(made_key, key)
        _move(made_csr, csr)
    except OSError as err:
        raise LlmgwError(f"cannot write {err.filename}: {err.strerror}") from err
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _beside(key: Path) -> Path:
    """A directory that nobody else can look into, on the same file system as the key."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{key.name}.", dir=key.parent))
    except OSError as err:
        raise LlmgwError(f"cannot write {key}: {err.strerror}", hint=f"does {key.parent} exist, and is it ours?") from err


def _move(made: Path, place: Path) -> None:
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    os.replace(made, place)
    sync_directory(place.parent)
