"""llmgw-onboard-node: gives a machine an identity and an agent, over ssh, from the host that holds the authority. A door.

Room: root. An argument table and wiring; the steps are in `lib.onboard`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lib.base.errors import UsageError
from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.onboard.wanted import Wanted, check
from lib.operator import certificates, connect
from lib.remote import hostkeys

if TYPE_CHECKING:
    from lib.remote.ssh import Target

PROGRAM = "llmgw-onboard-node"
KNOWN_HOSTS = "known_hosts"                # in --dir: host keys that were pinned, or believed by --tofu
DAYS = 398.0                               # where nobody renews by himself

FLAGS = (
    arg("--node", metavar="ID", required=True, help="the node's id: a lower-case DNS label, its hostname too"),
    arg("--addr", metavar="ADDRESS", required=True, help="its IP address, for ssh, routers and other nodes"),
    arg("--server", metavar="URL", default="", help="the control plane as the node reaches it (as in DIR/ctl.toml)"),
    arg("--fabric", metavar="NAME[:ADAPTERS]", action="append", default=[],
        help="an InfiniBand fabric it is on, such as ib-a or ib-a:mlx5_0,mlx5_1; may be given again"),
    arg("--engine", metavar="NAME=PATH", action="append", default=[],
        help="an engine's program on the node; may be given again. None: it runs the sim engine and nothing else"),
    arg("--nvidia-smi", metavar="PATH", default="", help="the program that tells its GPUs (nvidia-smi on its PATH)"),
    arg("--ib-root", metavar="PATH", default="/sys/class/infiniband", help="the tree that tells its adapters (%(default)s)"),
    arg("--ports", metavar="LOW-HIGH", default="20000-20999", help="the ports its shards may use (%(default)s)"),
    arg("--label", metavar="KEY=VALUE", action="append", default=[],
        help="a word for node_labels of profiles; may be given again"),
    arg("--dir", metavar="DIR", default=connect.DEFAULT_DIR,
        help=f"the installation whose authority and operator's certificate are used ({connect.DEFAULT_DIR})"),
    arg("--passphrase-file", metavar="FILE", default="", help="what unlocks the authority's key, where it is locked"),
    arg("--days", metavar="DAYS", type=certificates.days, default=0.0,
        help="how long its certificate lives (90 on the control plane's host, which renews it; else 398)"),
    arg("--ssh-user", metavar="USER", default="root", help="who to come in as (%(default)s)"),
    arg("--ssh-port", metavar="PORT", type=app.count, default=22, help="where its sshd listens (%(default)s)"),
    arg("--ssh-key", metavar="FILE", default="", help="the private key to come in with (ssh's own choice)"),
    arg("--become", action="store_true", help="use sudo there, which must not ask for a password"),
    arg("--host-key", metavar="KEY", default="",
        help="the host key it must show: SHA256:… or the public key itself; recorded in DIR/known_hosts"),
    arg("--tofu", action="store_true", help="believe the host key it shows now, and record it in DIR/known_hosts"),
    arg("--agent-file", metavar="FILE", default="", help="another llmgw-agent.pyz than the one this program carries"),
    arg("--renew", action="store_true", help="a new key and certificate, and nothing else"),
    arg("--upgrade", action="store_true", help="the agent's file, and nothing else"),
    arg("--reonboard", action="store_true", help="shut out a live machine of the same id, and put this one in its place"),
    arg("--wait", metavar="SECONDS", type=app.count, default=120, help="how long to wait for the node to be ready (%(default)s)"),
    arg("--dry-run", action="store_true", help="check everything, say what would be done, change nothing"),
    VERBOSE)


def onboard(given: Given) -> int:
    """All of it, from words to a node that is ready."""
    if given.verbose:
        start_logging(verbose=True)
    server = given.server or "https://as-in-ctl-toml:7443"         # DIR/ctl.toml is read once all words are known to be good
    wanted = Wanted(given.node, given.addr, server, tuple(given.fabric), tuple(given.engine), given.nvidia_smi, given.ib_root,
                    given.ports, tuple(given.label), given.ssh_user, given.ssh_port)
    check(wanted)
    _check_modes(given)
    if given.host_key:
        hostkeys.parse_pin(given.host_key)
    return _onboard(given, wanted)


def _check_modes(given: Given) -> None:
    if given.renew and given.upgrade:
        raise UsageError("--renew and --upgrade are two runs", hint="give one of them; without either all is made as wanted")
    if given.host_key and given.tofu:
        raise UsageError("--host-key and --tofu exclude each other", hint="with the right key at hand nothing has to be believed")


def _onboard(given: Given, wanted: Wanted) -> int:
    from dataclasses import replace

    from lib.onboard.cluster import Cluster
    from lib.onboard.files import read_agent
    from lib.onboard.node import Node
    from lib.onboard.plan import Mode
    from lib.onboard.steps import Onboarding, Request
    from lib.pki.authority import Authority, read_passphrase
    from lib.remote.ssh import Ssh

    settings = connect.settings(given)
    wanted = wanted if given.server else replace(wanted, server=settings.server)
    passphrase = read_passphrase(Path(given.passphrase_file)) if given.passphrase_file else None
    authority = Authority.open(settings.authority, passphrase)
    renews_here = settings.state.exists() and not passphrase
    days = given.days or (settings.certificate_days if renews_here else DAYS)
    mode = Mode.RENEW if given.renew else Mode.UPGRADE if given.upgrade else Mode.ALL
    request = Request(wanted, mode, days, dry_run=given.dry_run, reonboard=given.reonboard, wait_s=given.wait)
    agent = read_agent(given.agent_file)
    reach = connect.Access(settings.server, settings.operator_certificate, settings.operator_key, settings.ca)
    with connect.client(reach) as client, Ssh(_target(given, wanted)) as ssh:
        row = Onboarding(request, Cluster(client, wanted.node), authority, agent, Node(ssh), _say).run()
    if row is not None:
        sys.stdout.write(f"{wanted.node} is ready\n")
    return 0


def _target(given: Given, wanted: Wanted) -> "Target":
    """Where ssh goes, and which host key it may find there."""
    from lib.remote.ssh import Target

    recorded = Path(given.dir).absolute() / KNOWN_HOSTS
    known: tuple[Path, ...] = (recorded, Path("~/.ssh/known_hosts").expanduser())
    if given.host_key:
        key = hostkeys.find(hostkeys.parse_pin(given.host_key), wanted.address, wanted.ssh_port)
        hostkeys.record(recorded, wanted.address, wanted.ssh_port, key)
        _say("host key", f"{key.fingerprint}, as given")
        known = (recorded,)
    return Target(wanted.address, wanted.ssh_user, wanted.ssh_port, given.ssh_key, given.become, known, given.tofu,
                  pinned=bool(given.host_key))


def _say(step: str, sentence: str) -> None:
    app.say(f"{step:<14} {sentence}")


COMMAND = Command("onboard", onboard, "give a machine an identity and an agent, over ssh", FLAGS)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return app.run_single(PROGRAM, COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
