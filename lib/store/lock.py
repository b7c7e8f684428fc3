"""Only one control plane at a state file: a lock beside it, and no file system on which a lock means nothing.

Room: store.
"""

import fcntl
import os
from pathlib import Path

from lib.base.errors import StateLocked, bad_config

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "afs", "ncpfs")


class Lock:
    """An exclusive lock on `<state file>.lock`, held until `release` or the end of the process. The file names its owner."""

    def __init__(self, state: Path) -> None:
        self.path = state.with_name(state.name + ".lock")
        self._handle = _open(self.path)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._handle, 32).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise StateLocked(f"{state} is in use by another control plane, process {owner or 'unknown'}",
                              hint=f"stop process {owner or '(see fuser)'} first, or give this one another state file") from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give it up. The file stays: removing it would let two processes lock two files of one name."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as err:
        raise bad_config(str(path), f"the lock file cannot be opened: {err.strerror}",
                         hint=f"the control plane needs to write in {path.parent}") from err


def refuse_network_filesystem(state: Path, mounts: str | None = None) -> None:
    """ConfigError where the state file would lie on a file system shared between machines."""
    text = Path("/proc/self/mounts").read_text(errors="replace") if mounts is None else mounts
    where = str(state.resolve().parent)
    kind, longest = "", -1
    for line in text.splitlines():
        _, point, fstype, *_ = line.split(" ")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            kind, longest = fstype, len(point)
    if kind in NETWORK:
        raise bad_config(str(state), f"lies on a network file system ({kind}), where SQLite's locks do not hold",
                         hint="name a file on a local disk as state in ctl.toml")
