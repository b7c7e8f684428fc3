"""Fetches the wheels that requirements.lock pins, and keeps them in build/wheels between builds.

Room: packaging (builds the .pyz files, never travels in one). The hash is the identity: a wheel is used only if its bytes have
a hash that the lock names, each time anew, so a cache that somebody touched is fetched again instead of believed.
"""

import hashlib
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
BUILD = ROOT / "build"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")      # CPythons a control plane may run on
MACHINES = ("x86_64", "aarch64")
NEEDS_PIP = ("building fetches a few pinned packages and needs pip for it, which this Python has not\n"
             "  hint: apt-get install python3-pip (or python3-venv), then run ./build.sh again")


class BuildError(Exception):
    """The build cannot go on; the text says what to do."""


def section(name: str, lock: Path = LOCK) -> str:
    """The lines of one `# [name]` section of the lock, as pip reads them."""
    parts = re.split(r"^# \[(\w+)\].*$", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if name not in sections:
        raise BuildError(f"{lock} has no section [{name}]")
    return sections[name].strip() + "\n"


def pinned(name: str) -> set[str]:
    """The hashes a section names."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", section(name)))


def present(name: str, directory: Path) -> dict[str, Path]:
    """The wheels of a section that lie in `directory`, by hash; files with any other hash are not seen."""
    hashes = ((hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in sorted(directory.glob("*.whl")))
    return {digest: path for digest, path in hashes if digest in pinned(name)}


def targets(name: str) -> Iterator[list[str]]:
    """pip's words for every platform a section is wanted for."""
    if name == "pure":                          # charset-normalizer has compiled wheels too; they cannot live in a zip
        yield ["--implementation", "py", "--abi", "none", "--platform", "any", "--python-version", PYTHONS[0]]
    elif name == "native":
        for machine in MACHINES:
            for python in PYTHONS:
                yield ["--implementation", "cp", "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3",
                       "--python-version", python, "--platform", f"manylinux_2_28_{machine}",
                       "--platform", f"manylinux2014_{machine}"]
    else:
        yield []


def wheels(name: str) -> list[Path]:
    """All wheels of a section, verified, sorted by file name; fetched first where some are not there yet."""
    directory = BUILD / "wheels" / name
    directory.mkdir(parents=True, exist_ok=True)
    found = present(name, directory)
    if found.keys() != pinned(name):
        fetch(name, directory)
        found = present(name, directory)
    if missing := pinned(name) - found.keys():
        raise BuildError(f"{len(missing)} wheels of [{name}] in {LOCK.name} could not be fetched: sha256 {min(missing)}, …")
    return sorted(found.values(), key=lambda path: path.name)


def fetch(name: str, directory: Path) -> None:
    """Let pip download a section. pip itself refuses what has not the pinned hash."""
    print(f"fetching the pinned packages of [{name}]", file=sys.stderr)
    requirements = BUILD / f"{name}.txt"
    requirements.write_text(section(name), encoding="utf-8")
    for stale in set(directory.glob("*.whl")) - set(present(name, directory).values()):
        stale.unlink()                          # pip would take a damaged file of the right name for the wheel
    for words in targets(name):
        pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", *words,
            "--find-links", str(directory), "--dest", str(directory), "--requirement", str(requirements))


def pip(*words: str) -> None:
    """Run pip; its own complaint is what a person needs to see."""
    done = subprocess.run([*_pip_command(), *words, "--disable-pip-version-check"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise BuildError(f"pip {words[0]} failed (exit {done.returncode}):\n" + "\n".join(errors[-12:]))


def _pip_command() -> Sequence[str]:
    """This Python's pip, or one in a virtual environment of the build's own."""
    private = BUILD / "pip"
    for python in (sys.executable, str(private / "bin" / "python")):
        command = (python, "-m", "pip")
        if os.path.exists(python) and subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0:
            return command
    try:
        venv.create(private, with_pip=True)
    except (subprocess.CalledProcessError, OSError):    # Debian's Python without python3-venv has no ensurepip
        raise BuildError(NEEDS_PIP) from None
    return (str(private / "bin" / "python"), "-m", "pip")
