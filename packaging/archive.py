"""Builds dist/: one .pyz a role, the same bytes for the same tree wherever and however it is built.

Room: packaging. What travels is decided by place and suffix alone, so that a clone, a tarball and a tree with leftovers of an
editor in it give the same archive; names are sorted, times and modes fixed, nothing is compressed (zlib's versions differ).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wheels import BUILD, ROOT, BuildError, wheels

DIST = ROOT / "dist"
SHEBANG = b"#!/usr/bin/env python3\n"
DATA = frozenset({".py", ".toml", ".md", ".sql", ".html", ".css", ".js", ".txt", ".json", ".service"})
LICENCES = ("licen", "notice", "copying", "authors")
CARRIED = b'"""What this archive brings along beside its code: docs, and for some roles wheels or another archive."""\n'


@dataclass(frozen=True, slots=True)
class Role:
    """One door: the module at the root, the file it becomes, and what it carries besides."""

    module: str
    program: str
    authority: bool = False         # carries cryptography
    carries: tuple[str, ...] = ()   # other programs, built before it


ROLES = (
    Role("llmgw_ctl", "llmgw-ctl", authority=True),
    Role("llmgw_agent", "llmgw-agent"),
    Role("llmgw_router", "llmgw-router"),
    Role("llmgw_onboard", "llmgw-onboard-node", authority=True, carries=("llmgw-agent",)),
    Role("llmgw_provision", "llmgw-provision-node"),
)


def travels(path: Path) -> bool:
    """Whether a file below lib/ or docs/ belongs into the archives."""
    return (path.is_file() and not path.is_symlink() and path.suffix in DATA
            and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts))


def own_files(role: Role) -> dict[str, bytes]:
    """Everything of ours that a role's archive holds, by name in the archive."""
    files = {str(path.relative_to(ROOT)): path.read_bytes() for path in (ROOT / "lib").rglob("*") if travels(path)}
    files |= {f"carried/docs/{path.name}": path.read_bytes() for path in (ROOT / "docs").glob("*.md") if travels(path)}
    files[f"{role.module}.py"] = (ROOT / f"{role.module}.py").read_bytes()
    files["certifi.py"] = (ROOT / "packaging" / "certifi_stub.py").read_bytes()
    files["llmgw_boot.py"] = (ROOT / "packaging" / "boot.py").read_bytes()
    files["carried/__init__.py"] = CARRIED
    files |= {f"carried/{name}.pyz": (DIST / f"{name}.pyz").read_bytes() for name in role.carries}
    return files


def vendored_files() -> dict[str, bytes]:
    """The pure Python packages, unpacked, with their licences and without the rest of their metadata."""
    files: dict[str, bytes] = {}
    for wheel in wheels("pure"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                top, _, rest = name.partition("/")
                if not top.endswith(".dist-info"):
                    files[name] = archive.read(name)
                elif rest.split("/")[-1].lower().startswith(LICENCES):
                    files[f"carried/licences/{top.removesuffix('.dist-info')}/{rest.split('/')[-1]}"] = archive.read(name)
    return {name: data for name, data in files.items() if not name.endswith("/")}


def main_module(role: Role, files: Mapping[str, bytes]) -> bytes:
    """`__main__.py` of an archive; it names a digest of all the rest, under which the unpacked archive is cached."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    text = (ROOT / "packaging" / "main_template.py").read_text(encoding="utf-8")
    for mark, value in (("@PROGRAM@", role.program), ("@ROLE@", role.module), ("@DIGEST@", digest.hexdigest()[:24])):
        text = text.replace(mark, value)
    return text.encode()


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """A stored zip behind a shebang, put in place by a rename: a process that runs the old one keeps its file."""
    new = path.with_name(f".{path.name}.{os.getpid()}")     # two builds at once (a test run and a person) do not meet
    with new.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in sorted(files.items()):
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.create_system, entry.external_attr = 3, 0o100644 << 16
                archive.writestr(entry, data)
    new.chmod(0o755)
    new.replace(path)


def build_role(role: Role, vendored: Mapping[str, bytes]) -> Path:
    """One .pyz."""
    files = {**own_files(role), **vendored}
    if role.authority:
        files |= {f"carried/wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels("native")}
    path = DIST / f"{role.program}.pyz"
    write_archive(path, files | {"__main__.py": main_module(role, files)})
    return path


def warn_of_strangers() -> None:
    """Say which files travel that git does not know: a forgotten `git add`, or something that does not belong there."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--others", "lib", "docs"],
                             capture_output=True, text=True, check=False)
    strangers = [name for name in listing.stdout.splitlines() if travels(ROOT / name)]
    if strangers:
        print(f"note: {len(strangers)} files travel that git does not know, {strangers[0]} the first", file=sys.stderr)


def build() -> None:
    """All of dist/."""
    missing = [role.module for role in ROLES if not (ROOT / f"{role.module}.py").exists()]
    if missing:
        raise BuildError(f"{', '.join(missing)} not found beside build.sh: this tree is not whole")
    DIST.mkdir(exist_ok=True)
    DIST.chmod(0o755)
    vendored = vendored_files()
    for role in ROLES:
        path = build_role(role, vendored)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
    dispatcher = DIST / "llmgw"
    dispatcher.write_bytes((ROOT / "packaging" / "llmgw.sh").read_bytes())
    dispatcher.chmod(0o755)
    warn_of_strangers()


def unpack_engine() -> Path:
    """build/engine with a real llama-server in bin/ and a small model, for the tests that want them."""
    target = BUILD / "engine"
    stamp = target / "complete"
    state = "\n".join(wheel.name for wheel in wheels("engine"))
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != state:
        shutil.rmtree(target, ignore_errors=True)
        for wheel in wheels("engine"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
        for program in target.glob("*/bin/*"):
            program.chmod(0o755)
        stamp.write_text(state, encoding="utf-8")
    return target


def main() -> int:
    """`archive.py` builds dist/, `archive.py engine` makes build/engine and prints where."""
    os.umask(0o022)
    try:
        if sys.argv[1:] == ["engine"]:
            print(unpack_engine())
        else:
            build()
    except (BuildError, OSError) as err:
        print(f"build: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
