"""llmgw-provision-node: makes the virtual machine of a node on a Proxmox host, from a cloud image.

Room: root. A door: an argument table and wiring.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.cli import app
from lib.cli.app import Command, Given, arg
from lib.cli.logs import VERBOSE, start_logging
from lib.provision import perform
from lib.provision.wish import parse_wish

PROGRAM = "llmgw-provision-node"
ABOUT = ("make the virtual machine of a node on this Proxmox host, from a cloud image: its name is its hostname and "
         "the node's id. Everything is checked before anything is touched; a run that fails removes what it made itself")

ARGS = (
    arg("--vmid", metavar="ID", required=True, help="the VM's id; one that exists anywhere in the cluster is refused"),
    arg("--name", metavar="NODE", required=True, help="VM name, hostname and node id"),
    arg("--ip", metavar="CIDR", required=True, help="the node's address with prefix length, such as 10.0.0.144/24"),
    arg("--gateway", metavar="ADDRESS", help="the router of its network; none unless given"),
    arg("--dns", metavar="ADDRESS", action="append", help="a name server; may be repeated; this host's unless given"),
    arg("--search-domain", metavar="DOMAIN", help="where it looks for short names; this host's unless given"),
    arg("--bridge", metavar="NAME", default="vmbr0", help="the bridge of its network (%(default)s)"),
    arg("--vlan", metavar="TAG", help="the VLAN of its network, 1 to 4094"),
    arg("--storage", metavar="NAME", default="local-lvm", help="where its disks are made (%(default)s)"),
    arg("--image", metavar="FILE", required=True, help="a cloud image (qcow2 or raw) on this host, or STORAGE:import/NAME"),
    arg("--disk", metavar="SIZE", default="32G", help="the size of its disk; a plain number is GiB (%(default)s)"),
    arg("--cores", metavar="N", default="4", help="CPU cores (%(default)s)"),
    arg("--memory", metavar="SIZE", default="8G", help="memory, such as 128G; a plain number is MiB (%(default)s)"),
    arg("--cpu", metavar="TYPE", default="host", help="the CPU type (%(default)s)"),
    arg("--machine", metavar="TYPE", default="q35", help="the machine type (%(default)s)"),
    arg("--bios", metavar="FIRMWARE", default="ovmf", help="ovmf or seabios (%(default)s)"),
    arg("--pci", metavar="DEVICE", action="append",
        help="a GPU or adapter to pass through: its address, such as 0000:41:00.0, or mapping=NAME; may be repeated"),
    arg("--user", metavar="NAME", default="root", help="who may log in with the keys (%(default)s)"),
    arg("--tags", metavar="TAG", action="append", help="tags of the VM beside llmgw; may be repeated"),
    arg("--onboot", action=argparse.BooleanOptionalAction, default=True, help="whether it starts with this host"),
    arg("--ssh-keys", metavar="FILE", help="the public keys that may log in; ~/.ssh/authorized_keys of this host unless given"),
    arg("--identity", metavar="FILE", default="", help="the private key to ask the new node with; ssh's own choice unless given"),
    arg("--timeout", metavar="SECONDS", type=app.count, default=300, help="how long to wait for the node (%(default)s)"),
    arg("--server", metavar="URL", help="the control plane's URL, for the command that is printed at the end"),
    arg("--dry-run", action="store_true", help="check everything, print the commands, change nothing"),
    VERBOSE,
)


def provision(given: Given) -> int:
    """Check, then print the commands or run them."""
    start_logging(verbose=given.verbose)
    wish = parse_wish(vars(given))
    keys = Path(given.ssh_keys) if given.ssh_keys else Path.home() / ".ssh" / "authorized_keys"
    run = perform.prepare(wish, keys, app.say)
    if given.dry_run:
        sys.stdout.write(perform.dry_run(run))
        app.say("dry run: nothing was touched")
        return 0
    onboarding = perform.perform(run, given.identity, given.timeout, app.say)
    app.say("next, on the host of the certificate authority:")
    sys.stdout.write(f"{onboarding}\n")
    return 0


COMMAND = Command("provision-node", provision, ABOUT, ARGS)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return app.run_single(PROGRAM, COMMAND, argv)


if __name__ == "__main__":
    sys.exit(main())
