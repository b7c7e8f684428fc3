"""Where `cryptography` comes from: the wheels that a .pyz carries, unpacked for this interpreter; else what is installed.

Room: pki. A compiled module cannot be imported out of a zip. The machine's own cryptography is never used where wheels are
carried, however new it is: what was tested is what runs.
"""

import atexit
import importlib.util
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from lib.base.errors import LlmgwError

_provided = False


def provide() -> None:
    """Make `import cryptography` find the carried wheels first. Cheap when called again; a source tree carries none."""
    global _provided
    if _provided or importlib.util.find_spec("carried") is None:
        return
    carried = files("carried")
    fitting = _fitting(carried.joinpath("wheels").iterdir())
    if isinstance(carried, Path):           # running from the start-up cache: a directory of ours, locked while we run
        target = carried / f"native-{platform.machine()}"
        _unpack_once(fitting, target)
    else:                                   # running from the zip itself, as no cache can be written
        target = Path(tempfile.mkdtemp(prefix="llmgw-native-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)
        _unpack(fitting, target)
    sys.path.insert(0, str(target))
    _provided = True


def fits(wheel: str, python: tuple[int, int], machine: str) -> bool:
    """Whether a wheel of this file name runs on CPython `python` (its minor version counts) on `machine`."""
    _, _, tag, abi, platforms = wheel.removesuffix(".whl").split("-")
    minor = int(tag.removeprefix("cp3"))
    return platforms.endswith(f"_{machine}") and (minor <= python[1] if abi == "abi3" else abi == tag and minor == python[1])


def _fitting(wheels: Iterable[Traversable]) -> list[Traversable]:
    """The carried wheels of this interpreter; it takes one of each package, so two."""
    abi = f"cp{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}"
    found = [wheel for wheel in wheels if wheel.name.endswith(".whl") and not sys.abiflags
             and sys.implementation.name == "cpython" and fits(wheel.name, sys.version_info[:2], platform.machine())]
    if len(found) != 2:
        raise LlmgwError(f"this file carries no cryptography for {sys.implementation.name} {abi} on {platform.machine()}",
                         hint="run it with CPython 3.11 to 3.14 on x86-64 or arm64 Linux")
    return found


def _unpack(wheels: Sequence[Traversable], target: Path) -> None:
    for wheel in wheels:
        with as_file(wheel) as path, zipfile.ZipFile(path) as archive:
            archive.extractall(target)


def _unpack_once(wheels: Sequence[Traversable], target: Path) -> None:
    """Unpack unless it is there whole; two processes may do it at once, and either result will do."""
    if _is_whole(wheels, target):
        return
    work = Path(tempfile.mkdtemp(prefix=".native-", dir=target.parent))
    _unpack(wheels, work)
    if target.exists() and not _is_whole(wheels, target):
        target.rename(work.with_name(f"{work.name}-damaged"))     # a power cut left half of it
    with suppress(OSError):                                       # the other process was first
        work.rename(target)
    shutil.rmtree(work, ignore_errors=True)


def _is_whole(wheels: Sequence[Traversable], target: Path) -> bool:
    """Whether every file of the wheels is there in its full length."""
    for wheel in wheels:
        with as_file(wheel) as path, zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                file = target / entry.filename
                if not file.exists() or (not entry.is_dir() and file.stat().st_size != entry.file_size):
                    return False
    return True
