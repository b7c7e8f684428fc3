"""`init`: from nothing to a control plane that can be started, in one step or not at all.

Room: operator. Everything is made in a directory beside its place and moved there last, `ctl.toml` at the very end: where that
file is, the installation is whole. What is there already is never touched.
"""

import json
import os
import secrets
import shlex
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from lib.base.address import host_port, parse_host_port
from lib.base.errors import LlmgwError, Refused, UsageError
from lib.base.files import sync_directory, write_atomic
from lib.model.identity import Role
from lib.model.settings import CTL_FILE
from lib.operator.certificates import issue_here
from lib.operator.connect import DEFAULT_DIR
from lib.operator.programs import typed

DEFAULT_STATE = "/var/lib/llmgw/ctl.db"
CONTROL_PLANE_ID = "llmgw-ctl"
CreateState = Callable[[Path, str], None]  # makes an empty state file for a cluster of this name

_CTL_TOML = """\
# The control plane's configuration, and the operator's commands read it too. Relative paths count from this directory.
cluster = {cluster}
listen = {listen}
server = {server}    # where agents, routers and operators find it
state = {state}
catalog = "catalog.toml"
secret = "secret"    # engine keys are derived from it: losing it restarts every engine

[pki]
certificate = "pki/control-plane.pem"
key = "pki/control-plane.key"
ca = "pki/ca.pem"

[operator]
certificate = "pki/operator.pem"
key = "pki/operator.key"

[ca]
directory = "ca"    # whoever has its key can be anybody: back it up, show it to nobody
certificate_days = 90    # how long the certificates live that nodes and routers get when they renew theirs
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be set up where."""

    directory: Path
    cluster: str
    listen: str
    addresses: Sequence[str]               # of the control plane, as others reach it; the first one goes into the URL
    state: Path
    networks: Sequence[str] = ()           # that the authority may sign addresses in; none: the private ones
    domain: str = ""
    operator: str = "operator"
    catalog: str = ""                      # text; empty: a commented one without models
    passphrase: bytes | None = field(default=None, repr=False)          # seals the authority's key

    @property
    def server(self) -> str:
        return f"https://{host_port(self.addresses[0], int(self.listen.rpartition(':')[2]))}"


def plan(directory: Path, cluster: str, listen: str, addresses: Sequence[str], state: str = "", *, networks: Sequence[str] = (),
         domain: str = "", passphrase: bytes | None = None) -> Plan:
    """A plan with the gaps filled; UsageError where they cannot be."""
    parsed = parse_host_port(listen)
    if parsed is None or not parsed[1]:
        raise UsageError(f"--listen {listen!r} is not an address and port", hint='such as "0.0.0.0:7443" or "[::]:7443"')
    own = parsed[0] if parsed[0] not in ("0.0.0.0", "::") else ""
    found = list(addresses) or [own or _outward_address()]
    if not found[0]:
        raise UsageError("it cannot be told under which address others reach this machine", hint="give it with --address")
    resolved = directory.resolve()
    where = state or (DEFAULT_STATE if str(resolved) == DEFAULT_DIR else str(resolved / "state" / "ctl.db"))
    return Plan(resolved, cluster, listen, found, Path(where).absolute(), networks, domain, passphrase=passphrase)


def _outward_address() -> str:
    """The address that packets to the rest of the world would leave from; nothing is sent. Empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def install(what: Plan, create_state: CreateState) -> None:
    """Make everything. Refused where anything of it is there already; nothing is left behind by a failure."""
    _refuse_existing(what)
    work = _workplace(what.directory)
    try:
        _build(work, what)
        with _state_made(work, what, create_state):
            _place(work, what.directory)
    except OSError as err:
        raise LlmgwError(f"cannot set up {what.directory}: {err.strerror} ({err.filename})") from err
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _workplace(directory: Path) -> Path:
    """An empty directory on the same file system as the one that shall be."""
    try:
        home = directory if directory.is_dir() else directory.parent
        home.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=home))
    except OSError as err:
        raise LlmgwError(f"cannot write below {directory}: {err.strerror}",
                         hint="run it as root, or name another --dir") from err


@contextmanager
def _state_made(work: Path, what: Plan, create_state: CreateState) -> Iterator[None]:
    """The state file: below `work` where it belongs into the installation, else in its place, and gone again after a failure."""
    inside = what.state.is_relative_to(what.directory)
    state = work / what.state.relative_to(what.directory) if inside else what.state
    state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_state(state, what.cluster)
    try:
        yield
    except OSError:
        state.unlink(missing_ok=True)
        raise


def _refuse_existing(what: Plan) -> None:
    if what.directory.exists() and not what.directory.is_dir():
        raise Refused(f"{what.directory} is not a directory", hint="name another --dir")
    ours = (CTL_FILE, "catalog.toml", "secret", "ca", "pki/control-plane.pem", "pki/control-plane.key", "pki/operator.pem",
            "pki/operator.key", "pki/ca.pem")
    found = [str(what.directory / name) for name in ours if (what.directory / name).exists()]
    found += [str(what.state)] if what.state.exists() else []
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise Refused(f"there is an installation already: {found[0]}{more}",
                      hint="nothing was changed; name another --dir, or move the old one away")


def _build(work: Path, what: Plan) -> None:
    """Everything but the state file, below `work`."""
    from lib.pki.authority import Authority

    authority = Authority.create(work / "ca", what.cluster, what.networks, domain=what.domain,
                                 passphrase=what.passphrase)
    pki = work / "pki"
    pki.mkdir(mode=0o755)
    issue_here(authority, pki, Role.CONTROL_PLANE, CONTROL_PLANE_ID, what.addresses)
    issue_here(authority, pki, Role.OPERATOR, what.operator)
    write_atomic(work / "secret", secrets.token_hex(32) + "\n")
    write_atomic(work / "catalog.toml", what.catalog or starter_catalog(), mode=0o644)
    write_atomic(work / CTL_FILE, _ctl_toml(what), mode=0o644)


def _ctl_toml(what: Plan) -> str:
    inside = what.state.is_relative_to(what.directory)
    state = what.state.relative_to(what.directory) if inside else what.state
    values = {"cluster": what.cluster, "listen": what.listen, "server": what.server, "state": str(state)}
    return _CTL_TOML.format(**{key: json.dumps(value, ensure_ascii=False) for key, value in values.items()})


def starter_catalog() -> str:
    """The commented catalog without models that a new installation begins with."""
    return files("lib.operator").joinpath("starter_catalog.toml").read_text(encoding="utf-8")


def _place(work: Path, directory: Path) -> None:
    """Move what was made to its place: as one where there is none yet, else file by file, `ctl.toml` last."""
    os.chmod(work, 0o755)
    if not directory.exists():
        os.rename(work, directory)
        sync_directory(directory.parent)
        return
    placed: list[Path] = []
    try:
        for source in _files(work):
            target = directory / source.relative_to(work)
            _make_directories(work, source.parent, target.parent)
            os.link(source, target)         # unlike a rename, it replaces nothing that has appeared meanwhile
            placed.append(target)
    except OSError:
        for target in placed:
            target.unlink()
        raise
    sync_directory(directory)


def _files(work: Path) -> Iterator[Path]:
    yield from sorted(path for path in work.rglob("*") if path.is_file() and path.name != CTL_FILE)
    yield work / CTL_FILE


def _make_directories(work: Path, like: Path, target: Path) -> None:
    if like != work and not target.exists():
        _make_directories(work, like.parent, target.parent)
        target.mkdir(mode=like.stat().st_mode & 0o777)


def next_steps(what: Plan) -> str:
    """What to do now, as commands that can be pasted."""
    ctl = typed() if str(what.directory) == DEFAULT_DIR else f"{typed()} --dir {shlex.quote(str(what.directory))}"
    return f"""\
Cluster {what.cluster} is set up in {what.directory}. Now:

  {ctl} serve
      runs the control plane: it listens on {what.listen}, and others find it at {what.server}
  {ctl} status
      shows whether it is up; nodes, replicas and models show more
  {ctl} ca issue --role node --name NODE --address ADDRESS --out OUT
      makes a node's certificate by hand; --role router a router's
  {what.directory / 'catalog.toml'}
      says what the cluster runs; serve follows the file

{what.directory / 'ca'} holds the key of the authority and {what.directory / 'secret'} that of the engines: back up both,
and show them to nobody.
"""
