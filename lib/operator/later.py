"""A door whose work this build cannot do yet: it says so, and says nothing else.

Room: operator. It exists so that all five programs are built, shipped and run alike from the first release on.
"""

import sys
from collections.abc import Sequence

from lib.base.errors import Refused
from lib.base.version import VERSION


def not_yet(program: str, purpose: str, argv: Sequence[str] | None) -> int:
    """`--help` and `version`; everything else is refused. The exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["version"], ["--version"], ["-V"]):
        sys.stdout.write(f"{program} {VERSION}\n")
    elif not words or words in (["help"], ["--help"], ["-h"]):
        sys.stdout.write(f"usage: {program} [--help] [--version]\n\n{purpose}\nThis build ({VERSION}) cannot do it yet.\n")
    else:
        sys.stderr.write(f"{program}: version {VERSION} cannot do this yet, nothing was done\n"
                         f"  hint: see docs/{program.split('-')[1]}.md for what to do by hand until then\n")
        return Refused.exit_code
    return 0
