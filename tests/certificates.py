"""A whole cluster's certificates in a directory, and every kind of wrong one, for tests that speak real TLS.

    certificates = Certificates(tmp_path)
    plane, agent = certificates.control_plane(), certificates.node("llmgw-node01")
    server_context(plane.cert, plane.key, certificates.ca)          # or plane.server_context()
    certificates.expired(agent)                                     # the same identity, but expired
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lib.net.tls import TlsContext, client_context, server_context
from lib.pki.authority import Authority, new_key_and_csr

LOOPBACK = ("127.0.0.1", "::1", *(f"127.0.0.{last}" for last in range(11, 17)))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, its key, and the authority its holder trusts."""

    cert: Path
    key: Path
    ca: Path

    def server_context(self, **more: bool) -> TlsContext:
        return server_context(self.cert, self.key, self.ca, **more)

    def client_context(self, **more: bool) -> TlsContext:
        return client_context(self.cert, self.key, self.ca, **more)


class Certificates:
    """The authority of one cluster and what it issued, made when first asked for."""

    def __init__(self, directory: Path, cluster: str = "demo") -> None:
        self.directory, self.cluster = directory, cluster
        there = (directory / "ca" / "ca.pem").exists()     # that of an installation
        self.authority = Authority.open(directory / "ca") if there else Authority.create(directory / "ca", cluster)
        self.ca = directory / "ca" / "ca.pem"
        self._pairs: dict[tuple[str, str], Pair] = {}

    def control_plane(self, id: str = "llmgw-ctl") -> Pair:
        return self._issued("control-plane", id)

    def operator(self, id: str = "admin") -> Pair:
        return self._issued("operator", id)

    def node(self, id: str = "llmgw-node01") -> Pair:
        return self._issued("node", id)

    def router(self, id: str = "llmgw-router01") -> Pair:
        return self._issued("router", id)

    def expired(self, pair: Pair) -> Pair:
        """The same identity, out of date since yesterday."""
        now = datetime.now(UTC)
        return self._altered("expired", pair, dates=(now - timedelta(days=91), now - timedelta(days=1)))

    def not_yet_valid(self, pair: Pair) -> Pair:
        """The same identity, valid from tomorrow on."""
        now = datetime.now(UTC)
        return self._altered("early", pair, dates=(now + timedelta(days=1), now + timedelta(days=91)))

    def server_only(self, pair: Pair) -> Pair:
        """The same identity, allowed to be a TLS server and not a client."""
        return self._altered("server-only", pair, purposes=[ExtendedKeyUsageOID.SERVER_AUTH])

    def two_common_names(self, pair: Pair) -> Pair:
        """The same identity with a second common name beside it."""
        return self._altered("two-names", pair, more_names=["somebody-else"])

    def of_cluster(self, cluster: str, pair: Pair) -> Pair:
        """Signed by this authority, but naming another cluster in the URI."""
        return self._altered(f"of-{cluster}", pair, cluster=cluster)

    def other_authority(self) -> "Certificates":
        """A cluster of the same name whose root is another one."""
        directory = self.directory / "other-authority"
        directory.mkdir()
        return Certificates(directory, self.cluster)

    def _issued(self, role: str, id: str) -> Pair:
        if (role, id) not in self._pairs:
            key_pem, csr_pem = new_key_and_csr(id)
            made = self.authority.issue(csr_pem, role, id, addresses=LOOPBACK, days=90)
            self._pairs[role, id] = self._written(f"{role}-{id}", made.pem, key_pem)
        return self._pairs[role, id]

    def _written(self, name: str, cert_pem: str, key_pem: str) -> Pair:
        pair = Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key", self.ca)
        pair.cert.write_text(cert_pem)
        pair.key.touch(0o600)
        pair.key.write_text(key_pem)
        return pair

    def _altered(self, kind: str, pair: Pair, *, dates: tuple[datetime, datetime] | None = None,
                 purposes: list[x509.ObjectIdentifier] | None = None, more_names: list[str] | None = None,
                 cluster: str = "") -> Pair:
        """What the authority would never issue: the certificate of `pair` with some of it replaced, signed by the real root."""
        old = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        root = x509.load_pem_x509_certificate(self.ca.read_bytes())
        names = [*old.subject, *(x509.NameAttribute(NameOID.COMMON_NAME, name) for name in more_names or ())]
        begins, ends = dates or (old.not_valid_before_utc, old.not_valid_after_utc)
        builder = x509.CertificateBuilder(root.subject, x509.Name(names), old.public_key(), x509.random_serial_number(),
                                          begins, ends)
        for extension in old.extensions:
            value: Any = extension.value
            if purposes and isinstance(value, x509.ExtendedKeyUsage):
                value = x509.ExtendedKeyUsage(purposes)
            if cluster and isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName([_renamed(name, self.cluster, cluster) for name in value])
            builder = builder.add_extension(value, critical=extension.critical)
        root_key: Any = load_pem_private_key((self.directory / "ca" / "ca.key").read_bytes(), None)
        made = builder.sign(root_key, SHA256())
        pem = made.public_bytes(Encoding.PEM).decode()
        return self._written(f"{pair.cert.stem}-{kind}", pem, pair.key.read_text())


def _renamed(name: x509.GeneralName, old: str, new: str) -> x509.GeneralName:
    if isinstance(name, x509.UniformResourceIdentifier):
        return x509.UniformResourceIdentifier(name.value.replace(f"llmgw://{old}/", f"llmgw://{new}/"))
    return name
