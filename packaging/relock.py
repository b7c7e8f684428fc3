"""Writes requirements.lock anew from packaging/requirements.in: the newest versions, with the hashes of every wheel used.

Room: packaging. Run by hand when a pin is to move (it needs `uv` on PATH, which resolves for all platforms at once);
the difference is then read and tested like any other change.
"""

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

from wheels import LOCK, ROOT, pip, section, targets

SOURCE = ROOT / "packaging" / "requirements.in"
HEAD = """# What llmgw is built from and tested with: written by packaging/relock.py from packaging/requirements.in.
# Every wheel that is used is named by its hash; nothing else is ever unpacked or installed.
"""


def resolved(name: str, *flags: str) -> str:
    """A section of requirements.in with versions, for every platform."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate",
               *flags, "-"]
    return subprocess.run(command, input=section(name, SOURCE), text=True, check=True, stdout=subprocess.PIPE).stdout


def locked(name: str, pins: dict[str, str]) -> str:
    """A section whose hashes are exactly the wheels that `targets` picks."""
    wanted = [line.partition("==")[0] for line in section(name, SOURCE).splitlines() if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory() as directory:
        for words in targets(name):
            pip("download", "--quiet", "--no-deps", "--only-binary=:all:", *words, "--dest", directory,
                *(f"{one}=={pins[one]}" for one in wanted))
        return "".join(f"{one}=={pins[one]}{_hashes(Path(directory), one)}\n" for one in wanted)


def _hashes(directory: Path, name: str) -> str:
    found = sorted(directory.glob(f"{name.replace('-', '_')}-*.whl"))
    return "".join(f" \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in found)


def main() -> None:
    """Resolve the tests' needs first: what ships then has the versions that are tested."""
    test = resolved("test", "--generate-hashes")
    pins = dict(re.findall(r"^([\w-]+)==([^\s;]+)", test + resolved("engine"), flags=re.MULTILINE))
    parts = [f"\n# [{name}]\n{test if name == 'test' else locked(name, pins)}" for name in ("pure", "native", "test", "engine")]
    LOCK.write_text(HEAD + "".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
