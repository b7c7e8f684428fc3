"""The programs of this build: how to run one, and how a person would write it.

Room: operator. They lie beside each other, as .pyz files or as doors of a source tree.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

from lib.base.errors import NotFound

DOORS = {"llmgw-ctl": "llmgw_ctl.py", "llmgw-agent": "llmgw_agent.py", "llmgw-router": "llmgw_router.py"}


def our_file() -> Path:
    """The file this program runs from. (The code itself may lie in a cache: it says nothing.)"""
    return Path(sys.argv[0]).resolve()


def command(program: str) -> tuple[str, ...]:
    """The words that run `program` of this build. NotFound where it is not beside us."""
    ours = our_file()
    names = (DOORS[program],) if ours.suffix == ".py" else (f"{program}.pyz", program)
    for name in names:
        if (path := ours.with_name(name)).is_file():
            return sys.executable, str(path)
    raise NotFound(f"{names[0]} is not in {ours.parent}", hint="put all .pyz files of one build into one directory")


def typed(program: str = "llmgw-ctl") -> str:
    """What a person types to run `program`: its name where the shell finds it, else its path."""
    *_, path = command(program)
    if (found := shutil.which(program)) and os.path.realpath(found) == path:
        return program
    runnable = os.access(path, os.X_OK)
    return shlex.quote(path) if runnable else f"python3 {shlex.quote(path)}"
