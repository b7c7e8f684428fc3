"""llmgw-router: one OpenAI-compatible endpoint in front of every ready replica. A door.

Room: root. An argument table and wiring.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lib.base.version import VERSION
from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.gateway import supervisor
from lib.gateway.settings import read_settings
from lib.host import systemd

PROGRAM = "llmgw-router"
ABOUT = "OpenAI-compatible endpoint: forwards requests by model name to ready replicas."
CONFIG = arg("--config", metavar="FILE", default="/etc/llmgw/router.toml", help="the router's configuration (%(default)s)")


def run_router(given: Given) -> int:
    """Serve until told to stop; streams under way may finish."""
    start_logging(verbose=given.verbose)
    return supervisor.run_router(read_settings(Path(given.config)))


def check_config(given: Given) -> int:
    """Everything `run` checks before it starts anything, but for the port."""
    settings = read_settings(Path(given.config))
    cluster = supervisor.check(settings)
    app.say(f"{given.config} is good: router {settings.name} of {cluster}, listening on {settings.listen}")
    return 0


def install_unit(given: Given) -> int:
    """The router as a service of this machine."""
    found, config = read_settings(Path(given.config)), Path(given.config).absolute()
    state = found.state_dir.absolute()

    def unit(python: str, program: str) -> systemd.Unit:
        return systemd.router_unit(python, program, config, state, found.certificate.absolute().parent, found.port)
    if given.dry_run:
        sys.stdout.write(unit(sys.executable, str(systemd.LINKS / PROGRAM)).text)
        return 0
    supervisor.check(found)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    for line in systemd.install_service(PROGRAM, VERSION, unit) or ["nothing changed: it is installed and runs"]:
        app.say(line)
    return 0


COMMANDS = (
    Command("run", run_router, "serve clients by the table of the control plane", (CONFIG, VERBOSE)),
    Command("check-config", check_config, "check the configuration and the files it names, start nothing", (CONFIG,)),
    Command("install", install_unit, "have systemd run the router, from now on and after every boot",
            (CONFIG, arg("--dry-run", action="store_true", help="print the unit, change nothing"))),
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return app.run(PROGRAM, COMMANDS, argv, about=ABOUT)


if __name__ == "__main__":
    sys.exit(main())
