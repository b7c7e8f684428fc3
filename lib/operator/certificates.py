"""Certificates by hand: for routers, operators and nodes, from the authority in the installation's directory.

Room: operator. A key is made where it will live: with a request (`--csr`) only the certificate is made here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lib.base.errors import LlmgwError, Refused, UsageError
from lib.base.files import read_text, write_atomic
from lib.cli.app import Given, say
from lib.model.identity import Role
from lib.operator.connect import settings

if TYPE_CHECKING:
    from lib.pki.authority import Authority

DAYS = 398                                 # nothing renews a certificate by itself yet


def issue_here(authority: "Authority", directory: Path, role: Role, id: str, addresses: Sequence[str] = ()) -> None:
    """ROLE.key (0600), ROLE.pem and ca.pem in `directory`, for somebody who lives on this machine."""
    from lib.pki.authority import new_key_and_csr

    key_pem, csr_pem = new_key_and_csr(id)
    issued = authority.issue(csr_pem, role, id, addresses=addresses, days=DAYS)
    write_atomic(directory / f"{role}.key", key_pem)
    _write_certificates(authority, directory, role, issued.pem)


def issue_for(authority: "Authority", directory: Path, role: Role, id: str, csr: Path, addresses: Sequence[str] = ()) -> None:
    """ROLE.pem and ca.pem in `directory`, for the key behind a signing request."""
    issued = authority.issue(read_text(csr), role, id, addresses=addresses, days=DAYS)
    _write_certificates(authority, directory, role, issued.pem)


def _write_certificates(authority: "Authority", directory: Path, role: Role, pem: str) -> None:
    write_atomic(directory / f"{role}.pem", pem, mode=0o644)
    write_atomic(directory / "ca.pem", authority.ca_pem, mode=0o644)


def issue(given: Given) -> int:
    """`ca issue`: a certificate, and a key unless a request brings one."""
    from lib.pki.authority import Authority

    role, out = Role(given.role), Path(given.out)
    if role is Role.NODE and not given.address:
        raise UsageError("a node's certificate needs its address", hint="give it with --address, as in agent.toml")
    authority = Authority.open(settings(given).authority)
    _make_room(out, [f"{role}.pem", *([] if given.csr else [f"{role}.key"])])
    if given.csr:
        issue_for(authority, out, role, given.name, Path(given.csr), given.address)
    else:
        issue_here(authority, out, role, given.name, given.address)
    say(f"{role} {given.name}: {'' if given.csr else f'{role}.key, '}{role}.pem and ca.pem are in {out}")
    return 0


def _make_room(out: Path, names: Sequence[str]) -> None:
    if found := [str(out / name) for name in names if (out / name).exists()]:
        raise Refused(f"{' and '.join(found)} exists already", hint="name another --out, or move it away")
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise LlmgwError(f"cannot make {out}: {err.strerror}") from err
