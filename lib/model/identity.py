"""Who a certificate says its holder is.

Room: model. A certificate of a cluster carries one CN and one URI `llmgw://<cluster>/<role>/<id>`, and the two ids agree
(design: identity). Anything else is nobody.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lib.base.errors import Refused, bad_config
from lib.base.files import read_text
from lib.base.names import DNS_LABEL


class Role(StrEnum):
    """What a certificate is for."""

    NODE, ROUTER, OPERATOR, CONTROL_PLANE = "node", "router", "operator", "control-plane"


_ISSUE = "have one issued by the cluster's authority: llmgw-ctl ca issue"
_URI = re.compile(rf"llmgw://(?P<cluster>{DNS_LABEL})/(?P<role>[a-z-]+)/(?P<id>{DNS_LABEL})")


@dataclass(frozen=True, slots=True)
class Identity:
    """A proved identity; `serial` is lower-case hex without leading zeros."""

    cluster: str
    role: Role
    id: str
    serial: str = ""

    @property
    def uri(self) -> str:
        return f"llmgw://{self.cluster}/{self.role}/{self.id}"

    def __str__(self) -> str:
        return f"{self.role} {self.id}"


def identity_of(peer: Mapping[str, Any] | None) -> Identity:
    """The identity in what `ssl.SSLSocket.getpeercert()` gives; Refused where it is not exactly one."""
    if not peer:
        raise Refused("no client certificate", hint="name one with --cert and --key")
    names = [value for part in peer.get("subject", ()) for key, value in part if key == "commonName"]
    uris = [value for key, value in peer.get("subjectAltName", ()) if key == "URI"]
    if len(names) != 1 or len(uris) != 1:
        raise Refused(f"certificate has {len(names)} common names and {len(uris)} URIs, one of each is wanted",
                      hint=_ISSUE)
    match = _URI.fullmatch(uris[0])
    if not match or match["role"] not in list(Role) or match["id"] != names[0]:
        raise Refused(f"certificate of {names[0]!r} with URI {uris[0]!r} is not an identity of an llmgw cluster",
                      hint=_ISSUE)
    return Identity(match["cluster"], Role(match["role"]), match["id"], str(peer.get("serialNumber", "")).lower().lstrip("0"))


def read_identity(certificate: Path, role: Role) -> Identity:
    """Who we are, from our own certificate file, without its serial. ConfigError where it is not one of this role.

    Finds the subjectAltName's URI (context tag 6, RFC 5280 section 4.2.1.6) in the DER text, without an ASN.1 parser: the file is
    ours, and whoever we show it to parses it in earnest.
    """
    pem, file = read_text(certificate), str(certificate)
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----"):pem.index("-----END CERTIFICATE-----") + 26])
        at = der.index(b"llmgw://")
        match = _URI.fullmatch(der[at:at + der[at - 1]].decode("ascii", "replace"))
    except ValueError:
        match = None
    if match is None or match["role"] not in list(Role):
        raise bad_config(file, "is not a certificate of an llmgw cluster", hint=_ISSUE)
    if match["role"] != role:
        wanted = f"{'an' if role is Role.OPERATOR else 'a'} {role}'s"
        raise bad_config(file, f"is a certificate of role {match['role']}, {wanted} is wanted", hint=_ISSUE)
    return Identity(match["cluster"], Role(match["role"]), match["id"])


def expect(cluster: str, role: Role) -> Callable[[Mapping[str, Any]], None]:
    """A check of a peer's certificate: Refused unless its holder has this role in this cluster."""
    def check(peer: Mapping[str, Any]) -> None:
        found = identity_of(peer)
        if (found.cluster, found.role) != (cluster, role):
            raise Refused(f"the other side is {found.role} {found.id} of cluster {found.cluster}, not a {role} of {cluster}",
                          hint="check the address")
    return check
