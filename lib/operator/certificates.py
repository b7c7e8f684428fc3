"""Certificates by hand: for routers, operators, nodes and control planes, from the authority in the installation's directory.

Room: operator. A key is made where it will live: with a request (`--csr`) only the certificate is made here. The control plane
is told of what was issued, where it answers: it can revoke by name only what it knows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lib.base.errors import LlmgwError, Refused, Unavailable, UsageError
from lib.base.files import read_text, write_atomic
from lib.cli.app import Given, say
from lib.model.certificate import render_time
from lib.model.identity import Role
from lib.model.settings import CtlSettings
from lib.operator.connect import connect, settings

if TYPE_CHECKING:
    from lib.pki.authority import Authority, Issued

DAYS = 398.0                               # where nothing renews it
RENEWING = (Role.NODE, Role.ROUTER)        # renew themselves, where the control plane's host holds the authority


def issue_here(authority: "Authority", directory: Path, role: Role, id: str, addresses: Sequence[str] = (), *,
               days: float = DAYS) -> "Issued":
    """ROLE.key (0600), ROLE.pem and ca.pem in `directory`, for somebody who lives on this machine."""
    from lib.pki.authority import new_key_and_csr

    key_pem, csr_pem = new_key_and_csr(id)
    issued = authority.issue(csr_pem, role, id, addresses=addresses, days=days)
    write_atomic(directory / f"{role}.key", key_pem)
    _write_certificates(authority, directory, role, issued.pem)
    return issued


def issue_for(authority: "Authority", directory: Path, role: Role, id: str, csr: Path, addresses: Sequence[str] = (), *,
              days: float = DAYS) -> "Issued":
    """ROLE.pem and ca.pem in `directory`, for the key behind a signing request."""
    issued = authority.issue(read_text(csr), role, id, addresses=addresses, days=days)
    _write_certificates(authority, directory, role, issued.pem)
    return issued


def _write_certificates(authority: "Authority", directory: Path, role: Role, pem: str) -> None:
    write_atomic(directory / f"{role}.pem", pem, mode=0o644)
    write_atomic(directory / "ca.pem", authority.ca_pem, mode=0o644)


def issue(given: Given) -> int:
    """`ca issue`: a certificate, and a key unless a request brings one."""
    role, out = Role(given.role), Path(given.out)
    if role in (Role.NODE, Role.CONTROL_PLANE) and not given.address:
        raise UsageError(f"a {role}'s certificate needs its address", hint="give it with --address, as others reach it")
    here = settings(given)
    authority, days = open_authority(here, given.passphrase_file), lifetime(here, role, given.days)
    _make_room(out, [f"{role}.pem", *([] if given.csr else [f"{role}.key"])])
    if given.csr:
        issued = issue_for(authority, out, role, given.name, Path(given.csr), given.address, days=days)
    else:
        issued = issue_here(authority, out, role, given.name, given.address, days=days)
    say(f"{role} {given.name}: {'' if given.csr else f'{role}.key, '}{role}.pem and ca.pem are in {out}, "
        f"serial {issued.serial}, valid until {issued.not_after:%Y-%m-%d}")
    _record(given, role, given.name, issued)
    return 0


def open_authority(here: CtlSettings, passphrase_file: str) -> "Authority":
    """The authority of this installation, unlocked by the passphrase in a file where it has one."""
    from lib.pki.authority import Authority, read_passphrase

    return Authority.open(here.authority, read_passphrase(Path(passphrase_file)) if passphrase_file else None)


def lifetime(here: CtlSettings, role: Role, days: float | None) -> float:
    """How many days a certificate is to live: as said, else by whether its holder can renew it."""
    if days is not None:
        return days
    return min(DAYS, here.certificate_days) if role in RENEWING and here.state.exists() else DAYS


def _record(given: Given, role: Role, id: str, issued: "Issued") -> None:
    """Tell the control plane; it is no failure that it does not answer, for it keeps whatever certificate it lets in."""
    body = {"serial": issued.serial, "role": role, "id": id, "not_before": render_time(issued.not_before.timestamp()),
            "not_after": render_time(issued.not_after.timestamp())}
    try:
        with connect(given) as client:
            client.post("/ctl/v1/certificates", body, idempotent=True)
    except Unavailable as err:
        again = f"; node {id} stays shut out if it was removed, until this is done again" if role is Role.NODE else ""
        say(f"the control plane does not know of it yet: {err}{again}")


def _make_room(out: Path, names: Sequence[str]) -> None:
    if found := [str(out / name) for name in names if (out / name).exists()]:
        raise Refused(f"{' and '.join(found)} exists already", hint="name another --out, or move it away")
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise LlmgwError(f"cannot make {out}: {err.strerror}") from err


def days(text: str) -> float:
    """The `type` of --days."""
    import argparse

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3652:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return value
