"""How long a program takes to start: before and after its byte-code cache, as ratios to a bare interpreter in the same run.

    python3 bench/startup.py [ROUNDS]

Builds nothing: run ./build.sh first. Wall clock, best of ROUNDS (9), rounds interleaved so that a busy moment hits all alike.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

DIST = Path(__file__).resolve().parent.parent / "dist"
PROGRAMS = ("llmgw-ctl", "llmgw-agent", "llmgw-router")
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
IMPORTS = "import sys; sys.path.insert(0, sys.argv[1]); import requests"


def timed(*words: str, cache: str) -> float:
    """Seconds of one run."""
    begun = time.perf_counter()
    subprocess.run([PYTHON, "-IS", *words], check=True, stdout=subprocess.DEVNULL,
                   env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": cache})
    return time.perf_counter() - begun


def first_start(program: str) -> float:
    """With an empty cache: unpacks and compiles."""
    with tempfile.TemporaryDirectory() as cache:
        return timed(str(DIST / f"{program}.pyz"), "--help", cache=cache)


def cases(cache: str) -> Mapping[str, Callable[[], float]]:
    """What is measured, by name."""
    table: dict[str, Callable[[], float]] = {"bare interpreter": lambda: timed("-c", "pass", cache=cache)}
    for program in PROGRAMS:
        path = str(DIST / f"{program}.pyz")
        timed(path, "--help", cache=cache)
        table[f"{program} --help, no cache possible"] = lambda path=path: timed(path, "--help", cache="/proc")     # type: ignore[misc]
        table[f"{program} --help, first start"] = lambda program=program: first_start(program)                    # type: ignore[misc]
        table[f"{program} --help, cached"] = lambda path=path: timed(path, "--help", cache=cache)                  # type: ignore[misc]
    archive, home = str(DIST / "llmgw-ctl.pyz"), str(next(Path(cache).glob("llmgw/llmgw_ctl-*")))
    table["import requests from the archive"] = lambda: timed("-c", IMPORTS, archive, cache=cache)
    table["import requests from the cache"] = lambda: timed("-c", IMPORTS, home, cache=cache)
    return table


def main() -> None:
    """Prints a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    with tempfile.TemporaryDirectory() as cache:
        table = cases(cache)
        times = [{name: case() for name, case in table.items()} for _ in range(rounds)]
    best = {name: min(row[name] for row in times) for name in table}
    bare = best["bare interpreter"]
    for name, seconds in best.items():
        print(f"{name:45} {1000 * seconds:7.1f} ms {seconds / bare:6.1f} x")


if __name__ == "__main__":
    main()
