"""Starts a role from its .pyz: out of a cache with byte-code where there can be one, else out of the zip itself.

Room: packaging; travels in every .pyz as `llmgw_boot` and may import nothing of ours. Python compiles what it imports from a zip
again at every start, so the first start unpacks and compiles the archive into a directory of the user's own; later ones, and
everything a running process still has to import, come from there: a .pyz may be replaced under a running process.

    <cache>/<role>-<digest of the archive>-<Python>/     0700; appears whole, by a rename; locked while in use

Only a directory of ours that nobody else could have written is believed. Whatever is wrong with it, the program still runs.
"""

import contextlib
import fcntl
import importlib
import os
import stat
import sys
import time
from collections.abc import Iterator

KEEP = 3                    # unused versions of a role left in the cache, for going back and forth between two
PATIENCE_S = 20.0           # how long to wait for another first start that is compiling already
SIZES = "sizes"             # names and sizes of all files of a cache: a power cut can leave empty ones behind


def start(role: str, digest: str) -> int:
    """Run the role's main(); the exit code."""
    archive = os.path.dirname(os.path.abspath(__file__))
    try:
        home = cached(archive, f"{role}-{digest}-{sys.implementation.cache_tag}")
    except OSError:         # read-only disk, no home, somebody else's directory, no locks on this file system: slower, not worse
        home = archive
    except KeyboardInterrupt:
        return 130
    # What travels in the archive is what was tested: the machine's own packages must not be found, however Python was started.
    sys.path[:] = [home, *(path for path in sys.path[1:] if os.path.basename(path) not in ("site-packages", "dist-packages"))]
    # Who starts itself again (a shim, an engine) starts this version, whatever a link says by then.
    sys.argv[0] = os.path.realpath(archive)
    return int(importlib.import_module(role).main())


def cached(archive: str, key: str) -> str:
    """The directory to run from, made first where it is not there or damaged. OSError where that cannot be."""
    top = cache_top()
    home = os.path.join(top, key)
    if use(home):
        return home
    with only_one(top):
        if not use(home):
            prune(top, key)
            make(archive, home)
            if not use(home):
                raise OSError(f"{home} cannot be used")
    return home


def cache_top() -> str:
    """The cache's directory, by its real path, proved to be ours alone to write. OSError where it is not."""
    given = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]      # systemd's CacheDirectory=
    if given:
        top = given
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        top = os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "llmgw")
    if not os.path.isabs(top):
        raise OSError(f"{top} is not an absolute path")
    os.makedirs(os.path.dirname(top), mode=0o700, exist_ok=True)
    top = os.path.join(os.path.realpath(os.path.dirname(top)), os.path.basename(top))
    with contextlib.suppress(FileExistsError):
        os.mkdir(top, 0o700)
    require_ours(os.lstat(top), 0o022, top)
    parent = top
    while parent != "/":
        parent = os.path.dirname(parent)
        info = os.lstat(parent)
        if info.st_uid not in (0, os.geteuid()) or (info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX):
            raise OSError(f"others could replace {top}: see the owner and mode of {parent}")
    return top


def require_ours(info: os.stat_result, forbidden: int, path: str) -> None:
    """OSError unless this is a true directory (no link) of this user, without the forbidden mode bits."""
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & forbidden:
        raise OSError(f"{path} is not a directory of this user alone")


def use(home: str) -> bool:
    """Whether `home` is whole; then it stays locked against pruning until this process ends. OSError where it is not ours."""
    try:
        handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    require_ours(os.fstat(handle), 0o077, home)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        whole = is_whole(home)
    except BlockingIOError:     # being pruned at this moment
        whole = False
    if whole:
        os.utime(home)          # the last use, for prune
    else:
        os.close(handle)
    return whole


def is_whole(home: str) -> bool:
    """Whether every file is there in its full length."""
    try:
        with open(os.path.join(home, SIZES), encoding="utf-8") as file:
            lines = file.read().splitlines()
        return bool(lines) and lines[-1] == "end" and all(
            os.stat(f"{home}/{name}").st_size == int(size) for size, _, name in (line.partition(" ") for line in lines[:-1]))
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def only_one(top: str) -> Iterator[None]:
    """Of several first starts at once, one compiles and the others wait for it, with a deadline: it may have been stopped."""
    handle = os.open(os.path.join(top, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def make(archive: str, home: str) -> None:
    """Unpack and compile beside `home`, then rename: nobody ever sees half of it. Only a first start pays for these imports."""
    import py_compile
    import shutil
    import tempfile
    import warnings
    import zipfile

    work = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(home))
    try:
        with zipfile.ZipFile(archive) as file:
            names = sorted(set(file.namelist()) - {"__main__.py", "llmgw_boot.py"})
            file.extractall(work, names)
        with warnings.catch_warnings(action="ignore"):      # a newer Python's opinion of vendored code is not for the operator
            for name in [name for name in names if name.endswith(".py")]:
                compiled = py_compile.compile(f"{work}/{name}", dfile=f"{home}/{name}", doraise=True,
                                              invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
                names.append(os.path.relpath(str(compiled), work))
        with open(f"{work}/{SIZES}", "w", encoding="utf-8") as sizes:
            sizes.writelines(f"{os.path.getsize(f'{work}/{name}')} {name}\n" for name in names)
            sizes.write("end\n")
        retire(home)
        os.rename(work, home)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def retire(home: str) -> None:
    """Move a directory out of the way, then remove it."""
    import shutil
    import tempfile

    if os.path.lexists(home):
        aside = tempfile.mkdtemp(prefix=".old-", dir=os.path.dirname(home))
        os.rename(home, f"{aside}/home")
        shutil.rmtree(aside, ignore_errors=True)


def prune(top: str, key: str) -> None:
    """Remove what older archives of this role left, but for the last few and what a process still runs from. Under the lock."""
    import shutil

    role = key.split("-")[0]
    entries = [entry for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    for entry in [entry for entry in entries if entry.name.startswith((".new-", ".old-"))]:     # of starts that were killed
        shutil.rmtree(entry.path, ignore_errors=True)
    others = [entry for entry in entries if entry.name.startswith(f"{role}-") and entry.name != key]
    for entry in sorted(others, key=lambda entry: entry.stat().st_mtime, reverse=True)[KEEP:]:
        handle = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            retire(entry.path)
        except BlockingIOError:
            pass                # in use
        finally:
            os.close(handle)
