"""New certificates for nodes and routers that come to renew theirs, where this host holds the authority.

Room: control. Of a request only the public key is taken; who it is for is what the certificate says that it came with. The key of
the authority is read for each renewal and kept by nobody.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError, Refused, UsageError
from lib.control.api import by_hand
from lib.control.plane import Plane
from lib.model.certificate import Certificate, render_time
from lib.model.identity import Identity
from lib.net.server import Request
from lib.net.tls import PeerCert

PASSPHRASE = "ca-passphrase"               # the name of the credential that unlocks the authority


@dataclass(frozen=True, slots=True)
class Issuer:
    """Handles renewals. `directory` is the authority's, `days` how long a renewed certificate lives."""

    plane: Plane
    directory: Path
    days: float

    def renew(self, caller: Identity, request: Request, _rest: str) -> object:
        """A certificate for the caller's new key. Committed before it is answered."""
        from lib.pki.authority import Authority

        csr = _csr(request)
        try:
            authority = Authority.open(self.directory, read_credential())
        except LlmgwError as err:
            raise Refused(f"this control plane cannot renew certificates: {err}", hint=by_hand(caller)) from err
        made = authority.issue(csr, caller.role, caller.id, addresses=addresses_of(request.peer or {}), days=self.days)
        issued = Certificate(made.serial, caller.role, caller.id, made.not_before.timestamp(), made.not_after.timestamp())
        with self.plane.store.change("", "renew", caller.id) as step:
            if caller.serial in step.after.revoked:
                raise Refused(f"{caller}: its certificate has been revoked")
            step.record(issued)
            step.event(caller.id, f"certificate of {caller} renewed until {render_time(issued.not_after)}")
        return {"certificate": made.pem}


def cannot_renew(caller: Identity, _request: Request, _rest: str) -> object:
    """The handler of a control plane without an authority."""
    raise Refused("this control plane holds no authority and cannot renew certificates", hint=by_hand(caller))


def addresses_of(peer: PeerCert) -> list[str]:
    """Every name and address that a certificate is for, to be in the next one too."""
    return [value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]


def read_credential() -> bytes | None:
    """The authority's passphrase as the service manager hands it over; None where it does not."""
    from lib.pki.authority import read_passphrase

    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(directory) / PASSPHRASE
    return read_passphrase(path) if directory and path.exists() else None


def _csr(request: Request) -> str:
    body: Any = request.json()
    csr = body.get("csr") if isinstance(body, dict) else None
    if not isinstance(csr, str):
        raise UsageError("renew: the body must be an object with a signing request as csr")
    return csr
