"""llmgw-ctl: `serve` is the control plane, every other command is the operator's tool, a client of it. A door.

Room: root. An argument table and wiring; what a command does is in `lib.operator`, imported when it is called.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lib.base.errors import UsageError
from lib.base.version import VERSION
from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.cli.render import LISTING, OUTPUT
from lib.operator import actions, certificates, connect, detail, events, identities, listing

PROGRAM = "llmgw-ctl"
ABOUT = "The control plane of an llmgw cluster, and what its operator says to it."

FILE = arg("file", metavar="FILE", help="a catalog, as TOML")
DRY_RUN = arg("--dry-run", action="store_true", help="print the unit, change nothing")
YES = arg("--yes", action="store_true", help="do not ask")
PASSPHRASE = arg("--passphrase-file", metavar="FILE", default="", help="a file (0600) with what unlocks the authority's key")
ADDRESS = arg("--address", metavar="ADDRESS", action="append", default=[],
              help="an IP address, or a name in the cluster's domain, that it is reached by; may be given again")

INIT = (
    arg("--cluster", metavar="NAME", required=True, help="the cluster's name: a lower-case DNS label"),
    arg("--listen", metavar="ADDRESS:PORT", default="0.0.0.0:7443", help="where the control plane shall listen (%(default)s)"),
    arg("--address", metavar="ADDRESS", action="append", default=[],
        help="under which the control plane is reached, the first one by agents and routers; may be given again"),
    arg("--network", metavar="CIDR", action="append", default=[],
        help="a network whose addresses the authority may sign; may be given again (the private ones)"),
    arg("--domain", metavar="DOMAIN", default="", help="the domain of names in certificates (CLUSTER.internal)"),
    arg("--passphrase-file", metavar="FILE", default="", help="a file (0600) with a passphrase to seal the authority's key with"),
    arg("--state", metavar="FILE", default="",
        help="the state file (/var/lib/llmgw/ctl.db, with another --dir: DIR/state/ctl.db)"))
ISSUE = (
    arg("--role", choices=("router", "operator", "node", "control-plane"), required=True, help="what the certificate is for"),
    arg("--name", metavar="NAME", required=True, help="the id of its holder: a lower-case DNS label"),
    ADDRESS,
    arg("--csr", metavar="FILE", default="", help="a signing request made beside the key, which then stays where it is"),
    arg("--out", metavar="OUT", required=True, help="the directory for ROLE.pem, ROLE.key and ca.pem"),
    arg("--days", metavar="DAYS", type=certificates.days,
        help="how long it is valid (90 where its holder can renew it, else 398)"),
    PASSPHRASE)
CRL = (
    arg("--out", metavar="FILE", required=True, help="the file to write, PEM"),
    arg("--days", metavar="DAYS", type=certificates.days, default=30.0, help="until the next one is due (%(default)g)"),
    PASSPHRASE)
LIMITS = (
    arg("name", metavar="NAME", nargs="?", default="", help="whose key it is, for the listing"),
    arg("--model", metavar="MODEL", action="append", default=[], help="only this model; may be given again"),
    arg("--concurrency", metavar="N", type=app.count, default=0, help="requests at once"),
    arg("--requests-per-minute", metavar="N", type=app.count, default=0, help="requests a minute"))
DEMO = (
    arg("--once", action="store_true", help="wait until all is up, send one streamed request, and end"),
    arg("--llama-server", metavar="PATH", default="", help="a llama-server for the island's replica (else one from PATH)"),
    arg("--gguf", metavar="FILE", default="", help="the weights it serves (else LLMGW_GGUF); without: a simulated engine"))


def serve(given: Given) -> int:
    """The control plane, until it is told to stop."""
    from lib.control.serve import serve as run

    start_logging(verbose=given.verbose)
    return run(connect.settings(given))


def init(given: Given) -> int:
    """A new cluster's control plane on this host."""
    from lib.operator import install
    from lib.pki.authority import read_passphrase
    from lib.store.db import Store

    plan = install.plan(Path(given.dir), given.cluster, given.listen, given.address, given.state,
                        networks=given.network, domain=given.domain,
                        passphrase=read_passphrase(Path(given.passphrase_file)) if given.passphrase_file else None)
    install.install(plan, Store.create)
    sys.stdout.write(install.next_steps(plan))
    return 0


def install_unit(given: Given) -> int:
    """The control plane as a service of this machine."""
    from lib.host import systemd

    found, given_dir = connect.settings(given), Path(given.dir).absolute()

    def unit(python: str, program: str) -> systemd.Unit:
        passphrase = str(Path(given.passphrase_file).absolute()) if given.passphrase_file else ""
        return systemd.control_plane_unit(python, program, given_dir, found.state.absolute(), found.listen[1],
                                          passphrase=passphrase)
    if given.dry_run:
        sys.stdout.write(unit(sys.executable, str(systemd.LINKS / PROGRAM)).text)
        return 0
    for line in systemd.install_service(PROGRAM, VERSION, unit) or ["nothing changed: it is installed and runs"]:
        app.say(line)
    return 0


def demo(given: Given) -> int:
    """A whole cluster on this machine, until Ctrl-C."""
    from lib.operator.demo import run as show
    from lib.store.db import Store

    if given.server or given.cert or given.key or given.ca:
        raise UsageError("the demo makes a cluster of its own", hint="leave out --server, --cert, --key and --ca")
    return show(given, Store.create)


COMMANDS = (
    Command("init", init, "set up a new cluster's control plane on this host", INIT),
    Command("serve", serve, "run the control plane", (VERBOSE,)),
    Command("install", install_unit, "have systemd run the control plane, from now on and after every boot",
            (DRY_RUN, PASSPHRASE)),
    Command("status", detail.show_status, "show the cluster in a few lines, and what needs a hand", LISTING),
    Command("nodes", listing.list_nodes, "list nodes, their GPUs, fabrics, engines and conditions", LISTING),
    Command("node", detail.show_node, "show everything a node has",
            (arg("node", metavar="NODE", help="the node's id"), *LISTING)),
    Command("replicas", listing.list_replicas, "list replicas and how they are",
            (arg("--all", action="store_true", help="stopped ones too"), *LISTING)),
    Command("replica", detail.show_replica, "show a replica and its shards",
            (arg("replica", metavar="REPLICA", help="the replica's id"), *LISTING)),
    Command("models", listing.list_models, "list the models clients can ask for", LISTING),
    Command("events", events.list_events, "list what happened",
            (OUTPUT, arg("--follow", action="store_true", help="go on with what happens, until Ctrl-C"),
             arg("--limit", metavar="N", type=app.count, default=200, help="the newest N (%(default)s)"))),
    Command("catalog check", actions.check_catalog, "judge a catalog, without a control plane", (FILE, OUTPUT)),
    Command("catalog diff", actions.diff_catalog, "show what applying a catalog would change", (FILE, OUTPUT)),
    Command("catalog apply", actions.apply_catalog, "make a catalog the cluster's", (FILE, YES, OUTPUT)),
    Command("keys create", actions.create_key, "make an API key and print it, this once", (*LIMITS, OUTPUT)),
    Command("keys list", listing.list_keys, "list API keys", LISTING),
    Command("keys revoke", actions.revoke_key, "make an API key worthless",
            (arg("id", metavar="ID", help="the key's id, as listed"), YES)),
    Command("remove", identities.remove_node, "take a node out of the cluster: its identity is worthless from then on",
            (arg("node", metavar="NODE", help="the node's id"), YES,
             arg("--force", action="store_true", help="even while it runs replicas: they are placed anew"))),
    Command("ca status", identities.show_authority, "show the certificate authority of this installation", (OUTPUT,)),
    Command("ca list", identities.list_certificates, "list certificates: whose, until when, revoked or not",
            (arg("--id", metavar="ID", default="", help="only those of this node, router, operator or control plane"), *LISTING)),
    Command("ca issue", certificates.issue, "issue a certificate by hand, on the host that holds the authority", ISSUE),
    Command("ca revoke", identities.revoke_certificate, "make a certificate worthless",
            (arg("serial", metavar="SERIAL", help="as ca list shows it"), YES,
             arg("--reason", metavar="TEXT", default="", help="why, for the record"),
             arg("--unknown", action="store_true", help="even if the control plane has never seen it"))),
    Command("ca crl", identities.export_crl, "write the revocations as a CRL signed by the authority", CRL),
    Command("demo", demo, "run a whole cluster on this machine, to look at", DEMO),
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return app.run(PROGRAM, COMMANDS, argv, about=ABOUT, options=connect.OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
