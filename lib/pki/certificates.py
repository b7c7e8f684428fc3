"""X.509 as this cluster uses it: one constrained root, P-256 leaves, requests of which only the public key is taken.

Room: pki. Nothing here touches a file or a clock. Import it inside functions only: `cryptography` is large, and where it
comes from has to be arranged first.
"""
# ruff: noqa: E402

from lib.pki.native import provide

provide()

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lib.base.errors import UsageError

ROOT_LIFE = timedelta(days=3652)
BACKDATED = timedelta(minutes=5)           # so that a clock a little behind accepts a new certificate
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a root may sign: names of one domain, and addresses in these networks."""

    domain: str
    networks: tuple[Network, ...]

    def covers(self, address: Address) -> bool:
        """Whether an address may stand in a certificate."""
        return any(address in network for network in self.networks)

    def covers_name(self, name: str) -> bool:
        """Whether a host name may stand in a certificate."""
        return name == self.domain or name.endswith(f".{self.domain}")


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a certificate is to say."""

    id: str
    uri: str
    names: tuple[str, ...]
    addresses: tuple[Address, ...]
    serves: bool                           # its holder is a TLS server too, not a client alone


def new_key() -> PrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey, passphrase: bytes | None = None) -> str:
    """PKCS #8, sealed where there is a passphrase."""
    seal = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, seal).decode()


def parse_key(pem: str, passphrase: bytes | None) -> PrivateKey:
    """ValueError where it is no P-256 key or the passphrase is wrong; TypeError where one is missing or too many."""
    try:
        key = load_pem_private_key(pem.encode(), passphrase)
    except UnsupportedAlgorithm as err:
        raise ValueError("a key of an unknown kind") from err
    if not isinstance(key, PrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key


def new_csr(key: PrivateKey, cn: str) -> str:
    """A certificate signing request in PEM."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(cn)).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def parse_csr(pem: str) -> PublicKey:
    """The public key of a request whose sender has shown to hold the private one. UsageError for anything else."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        signed = request.is_signature_valid
        key = request.public_key()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        raise UsageError("this is not a certificate signing request in PEM",
                         hint="openssl req -new -key KEY -subj /CN=ID makes one") from None
    if not signed:
        raise UsageError("the signing request is not signed by its own key", hint="make key and request anew")
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("the signing request has another key than ECDSA P-256",
                         hint="openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 makes one")
    return key


def new_root(key: PrivateKey, cn: str, constraints: Constraints, now: datetime) -> x509.Certificate:
    """The root of a cluster: it signs leaves only, and only within its constraints, whoever trusts it."""
    permitted: list[x509.GeneralName] = [x509.DNSName(constraints.domain)]
    permitted += [x509.IPAddress(network) for network in constraints.networks]
    public = key.public_key()
    builder = (_builder(_name(cn), _name(cn), public, now - BACKDATED, now + ROOT_LIFE)
               .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
               .add_extension(_usage(signs_certificates=True), critical=True)
               .add_extension(x509.NameConstraints(permitted, None), critical=True)
               .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False))
    return builder.sign(key, SHA256())


def new_leaf(root: x509.Certificate, root_key: PrivateKey, public: PublicKey, leaf: Leaf,
             not_before: datetime, not_after: datetime) -> x509.Certificate:
    """A certificate for `public`, as `leaf` says and signed by the root. What the leaf says is checked before."""
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * leaf.serves + [ExtendedKeyUsageOID.CLIENT_AUTH]
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(leaf.uri)]
    names += [x509.DNSName(name) for name in leaf.names]
    names += [x509.IPAddress(address) for address in leaf.addresses]
    signer = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (_builder(root.subject, _name(leaf.id), public, not_before, not_after)
               .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
               .add_extension(_usage(signs_certificates=False), critical=True)
               .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
               .add_extension(x509.SubjectAlternativeName(names), critical=False)
               .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
               .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False))
    return builder.sign(root_key, SHA256())


def new_crl(root: x509.Certificate, root_key: PrivateKey, revoked: Sequence[tuple[int, datetime]], now: datetime,
            next_update: datetime) -> str:
    """A revocation list in PEM; its number is the time, so that a later one is the higher."""
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    builder = (x509.CertificateRevocationListBuilder().issuer_name(root.subject).last_update(now).next_update(next_update)
               .add_extension(signer, critical=False).add_extension(x509.CRLNumber(int(now.timestamp())), critical=False))
    for serial, at in sorted(revoked):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(root_key, SHA256()).public_bytes(Encoding.PEM).decode()


def constraints_of(root: x509.Certificate) -> Constraints:
    """What a root of ours may sign. ValueError where it is none of ours."""
    try:
        permitted = root.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    except x509.ExtensionNotFound:
        raise ValueError("no name constraints") from None
    domains = [name.value for name in permitted if isinstance(name, x509.DNSName)]
    if len(domains) != 1:
        raise ValueError("not constrained to one domain")
    return Constraints(domains[0], tuple(name.value for name in permitted if isinstance(name, x509.IPAddress)
                                         if isinstance(name.value, Network)))


def parse_certificate(pem: str) -> x509.Certificate:
    """ValueError where it is none."""
    return x509.load_pem_x509_certificate(pem.encode())


def common_name(certificate: x509.Certificate) -> str:
    """The CN of a certificate's holder, empty where there is not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def certificate_pem(certificate: x509.Certificate) -> str:
    """A certificate in PEM."""
    return certificate.public_bytes(Encoding.PEM).decode()


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks as given by a person; UsageError naming the one that is none."""
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as err:
            raise UsageError(f"{text!r} is not an IP network: {err}", hint="write it like 10.0.0.0/8 or fd00::/8") from None
    return tuple(networks)


def _name(cn: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])


def _builder(issuer: x509.Name, subject: x509.Name, public: PublicKey, not_before: datetime,
             not_after: datetime) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), not_before, not_after)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=not signs_certificates, key_cert_sign=signs_certificates,
                         crl_sign=signs_certificates, content_commitment=False, key_encipherment=False,
                         data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False)
