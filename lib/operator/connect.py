"""Finding the control plane: from the flags of a command to a client that speaks with an operator's certificate.

Room: operator. Nothing is cached and nothing is guessed; whatever is missing is said before anything is sent.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import UsageError, bad_config
from lib.cli.app import Arg, Given, arg
from lib.model.identity import Role, expect, read_identity
from lib.model.settings import CTL_FILE, CtlSettings, read_ctl_settings
from lib.net.client import Client

DEFAULT_DIR = "/etc/llmgw"
OPTIONS: tuple[Arg, ...] = (
    arg("--dir", metavar="DIR", default=DEFAULT_DIR, help=f"where init put {CTL_FILE} ({DEFAULT_DIR})"),
    arg("--server", metavar="URL", help="the control plane, instead of the one that DIR names"),
    arg("--cert", metavar="FILE", help="an operator's certificate, instead of the one in DIR"),
    arg("--key", metavar="FILE", help="the key of --cert"),
    arg("--ca", metavar="FILE", help="the certificate of the cluster's authority, instead of the one in DIR"))


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to speak to a control plane."""

    server: str
    certificate: Path
    key: Path
    ca: Path


def settings(given: Given) -> CtlSettings:
    """What DIR/ctl.toml says; ConfigError with a way out where there is none."""
    directory = Path(given.dir)
    if not (directory / CTL_FILE).exists():
        raise bad_config(str(directory / CTL_FILE), "is not there",
                         hint="run llmgw-ctl init on the control plane's host, name another --dir, "
                              "or give --server, --cert, --key and --ca")
    return read_ctl_settings(directory)


def access(given: Given) -> Access:
    """The four things from the flags, and from ctl.toml where a flag is not given."""
    if bool(given.cert) != bool(given.key):
        raise UsageError("--cert and --key belong together", hint="give both, or neither")
    if given.server and given.cert and given.ca:
        return Access(given.server, Path(given.cert), Path(given.key), Path(given.ca))
    found = settings(given)
    return Access(given.server or found.server, Path(given.cert or found.operator_certificate),
                  Path(given.key or found.operator_key), Path(given.ca or found.ca))


def once() -> dict[str, str]:
    """Header fields by which the control plane does a change once, however often it is sent."""
    return {"idempotency-key": secrets.token_hex(16)}


def connect(given: Given) -> Client:
    """A client of the control plane. It speaks to nobody but a control plane of the operator's own cluster."""
    return client(access(given))


def client(reach: Access) -> Client:
    """The same, from what is already known."""
    from lib.net.tls import client_context

    me = read_identity(reach.certificate, Role.OPERATOR)
    context = client_context(reach.certificate, reach.key, reach.ca)
    return Client(reach.server, context, check_peer=expect(me.cluster, Role.CONTROL_PLANE))
