"""llmgw-agent: reports what a node has and runs the shards placed on it; carries the shim and the sim engine. A door.

Room: root. An argument table and wiring.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from lib.agent.inventory import Inspector
from lib.agent.loop import Agent
from lib.agent.settings import AgentSettings, read_settings
from lib.base.errors import LlmgwError, StateLocked, bad_config
from lib.base.version import VERSION
from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.cli.render import render_json
from lib.model.codec import encode
from lib.model.identity import Role, expect, read_identity
from lib.net.client import Client
from lib.net.tls import client_context, server_context

PROGRAM = "llmgw-agent"
ABOUT = "Reports what this node has to the control plane, and runs the shards placed on it."
CONFIG = arg("--config", metavar="FILE", default="/etc/llmgw/agent.toml", help="the agent's configuration (%(default)s)")
RUN_DIR = arg("--run-dir", metavar="DIR", required=True, help="the shard's run directory")


def run_agent(given: Given) -> int:
    """Run until told to stop. Shards live on."""
    start_logging(verbose=given.verbose)
    settings, cluster = _checked(Path(given.config))
    lock = _only_one(settings)

    def connect() -> Client:
        context = client_context(settings.certificate, settings.key, settings.ca)      # anew each time: it may have been renewed
        return Client(settings.server, context, check_peer=expect(cluster, Role.CONTROL_PLANE))
    agent = Agent(settings, cluster, connect, self_command())

    def told(_signum: int, _frame: FrameType | None) -> None:
        agent.stop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, told)
    agent.run()
    os.close(lock)
    return 0


def check_config(given: Given) -> int:
    """Everything `run` checks before it starts anything."""
    settings, _ = _checked(Path(given.config))
    Inspector(settings, VERSION)
    app.say(f"{given.config} is good: node {settings.node}, control plane {settings.server}")
    return 0


def show_inventory(given: Given) -> int:
    """What this node would report of itself."""
    settings, _ = _checked(Path(given.config))
    sys.stdout.write(render_json(encode(Inspector(settings, VERSION).inspect(()))))
    return 0


def run_shim(given: Given) -> int:
    """One shard's owner; started by the agent, never by hand."""
    from lib.shim.supervise import main as supervise

    return supervise(Path(given.run_dir))


def run_sim_engine(given: Given) -> int:
    """The simulated engine; its flags are its own."""
    from lib.engines.sim_engine import main as simulate

    return simulate(given.words)


COMMANDS = (
    Command("run", run_agent, "report to the control plane and run what it places here", (CONFIG, VERBOSE)),
    Command("check-config", check_config, "check the configuration and the hardware it names, start nothing", (CONFIG,)),
    Command("inventory", show_inventory, "print what this node would report of itself, as JSON", (CONFIG,)),
    Command("shim", run_shim, "own one shard (started by the agent)", (RUN_DIR,)),
    Command("sim-engine", run_sim_engine, "the simulated engine (started by a shim)", raw=True),
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return app.run(PROGRAM, COMMANDS, argv, about=ABOUT)


def _checked(config: Path) -> tuple[AgentSettings, str]:
    """The settings and the cluster's name, with every file they name found good."""
    settings = read_settings(config)
    server_context(settings.certificate, settings.key, settings.ca)
    me = read_identity(settings.certificate, Role.NODE)
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as err:
        raise bad_config(str(config), f"{settings.state_dir}: {err.strerror}", key="state_dir") from err
    return settings, me.cluster


def _only_one(settings: AgentSettings) -> int:
    """Lock the state directory for as long as this process lives: two agents would fight over its shards."""
    path = settings.state_dir / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StateLocked(f"another agent runs with {settings.state_dir}",
                          hint="stop it first, or give this one a directory of its own") from None
    except OSError as err:
        raise LlmgwError(f"cannot lock {path}: {err.strerror}") from err
    return handle


def self_command() -> tuple[str, ...]:
    """The words that run this program again: the .pyz where it runs from one, else this file."""
    main_file = sys.argv[0] if sys.argv[0].endswith((".pyz", ".py")) else __file__
    return sys.executable, os.path.abspath(main_file)


if __name__ == "__main__":
    sys.exit(main())
