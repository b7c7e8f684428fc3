"""What a certificate of this cluster says, read by whoever holds the authority's certificate.

Room: pki. Only reading: nothing is issued here, and no key is needed.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate's words. `genuine`: it is signed by the root it was read beside."""

    serial: str                            # lower-case hex without leading zeros
    uri: str
    addresses: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    genuine: bool


def read_leaf(pem: str, ca_pem: str) -> Leaf | None:
    """The certificate in `pem`, or None where there is none that can be read."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509 import ExtensionNotFound, IPAddress, SubjectAlternativeName, UniformResourceIdentifier

    from lib.pki import certificates

    try:
        leaf, root = certificates.parse_certificate(pem), certificates.parse_certificate(ca_pem)
        names = leaf.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ValueError, ExtensionNotFound):
        return None
    try:
        leaf.verify_directly_issued_by(root)
        genuine = True
    except (ValueError, TypeError, InvalidSignature):
        genuine = False
    uris = names.get_values_for_type(UniformResourceIdentifier)
    return Leaf(f"{leaf.serial_number:x}", uris[0] if uris else "", tuple(map(str, names.get_values_for_type(IPAddress))),
                leaf.not_valid_before_utc, leaf.not_valid_after_utc, genuine)
