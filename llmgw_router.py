"""The router: one OpenAI-compatible endpoint in front of every ready replica.

Room: root. A door: an argument table and wiring.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.gateway import supervisor
from lib.gateway.settings import read_settings

PROGRAM = "llmgw-router"
ABOUT = "OpenAI-compatible endpoint: forwards requests by model name to ready replicas."
CONFIG = arg("--config", metavar="FILE", default="/etc/llmgw/router.toml", help="the router's configuration (%(default)s)")


def run_router(args: Given) -> int:
    """Serve until told to stop; streams under way may finish."""
    start_logging(verbose=args.verbose)
    return supervisor.run_router(read_settings(Path(args.config)))


def check_config(args: Given) -> int:
    """Everything `run` checks before it starts anything, but for the port."""
    settings = read_settings(Path(args.config))
    cluster = supervisor.check(settings)
    app.say(f"{args.config} is good: router {settings.name} of {cluster}, listening on {settings.listen}")
    return 0


COMMANDS = (
    Command("run", run_router, "serve clients by the table of the control plane", (CONFIG, VERBOSE)),
    Command("check-config", check_config, "check the configuration and the files it names, start nothing", (CONFIG,)),
)


def main(argv: Sequence[str] | None = None) -> int:
    return app.run(PROGRAM, COMMANDS, argv, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
