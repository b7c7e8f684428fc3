"""The certificate authority of a cluster: a directory with its root, and the certificates it issues.

Room: pki. A role is a plain word here. `cryptography` is imported when an authority is made, opened or used, not before.
The directory is 0700 and the key 0600, or they are refused; `ca.pem` is written last, so an authority is whole or not there.
"""

import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lib.base.errors import LlmgwError, Refused, UsageError, bad_config
from lib.base.files import read_text, write_atomic
from lib.base.names import DNS_LABEL

if TYPE_CHECKING:
    from cryptography import x509

    from lib.pki.certificates import Constraints, Leaf, PrivateKey

PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "::1/128", "fc00::/7")
ROLES_THAT_SERVE = {"node": True, "control-plane": True, "router": False, "operator": False}   # role: a TLS server too?
DOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
CLUSTER_LIMIT = 53                         # "llmgw <cluster> root" has to fit into the 64 characters of a common name


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate. `serial` is lower-case hex without leading zeros, as identities have it."""

    pem: str
    serial: str
    not_before: datetime
    not_after: datetime


class Authority:
    """The root of one cluster, its key at hand. Made by `create` or `open`."""

    def __init__(self, cluster: str, ca_pem: str, root: "x509.Certificate", key: "PrivateKey",
                 constraints: "Constraints") -> None:
        self.cluster, self.ca_pem = cluster, ca_pem
        self._root, self._key, self._constraints = root, key, constraints

    @property
    def domain(self) -> str:
        """The domain that names in certificates lie in."""
        return self._constraints.domain

    @classmethod
    def create(cls, directory: Path, cluster: str, networks: Sequence[str] = (), *, domain: str = "",
               passphrase: bytes | None = None) -> "Authority":
        """A new authority in `directory`, which may be missing or empty. Without `networks`: the private ones."""
        from lib.pki import certificates

        domain = domain or f"{cluster}.internal"
        _check_words(cluster, domain)
        constraints = certificates.Constraints(domain, certificates.parse_networks(networks or PRIVATE_NETWORKS))
        _make_directory(directory)
        key = certificates.new_key()
        root = certificates.new_root(key, f"llmgw {cluster} root", constraints, datetime.now(UTC))
        ca_pem = certificates.certificate_pem(root)
        write_atomic(directory / "ca.key", certificates.key_pem(key, passphrase))
        write_atomic(directory / "ca.pem", ca_pem, mode=0o644)
        return cls(cluster, ca_pem, root, key, constraints)

    @classmethod
    def open(cls, directory: Path, passphrase: bytes | None = None) -> "Authority":
        """The authority in `directory`. ConfigError where a file is missing, damaged, of another pair or open to others."""
        _refuse_loose(directory)
        root, constraints, cluster = _read_root(directory / "ca.pem")
        key = _read_key(directory / "ca.key", passphrase)
        if not cluster or key.public_key() != root.public_key():
            raise bad_config(str(directory / "ca.key"), "is not the key of ca.pem beside it", hint="restore both from one backup")
        return cls(cluster, read_text(directory / "ca.pem"), root, key, constraints)

    def issue(self, csr_pem: str, role: str, id: str, *, addresses: Sequence[str], days: float) -> Issued:
        """A certificate that says "this key is `role` `id`"; of the request only the public key is used."""
        from lib.pki import certificates

        leaf = self._leaf(role, id, addresses)
        public = certificates.parse_csr(csr_pem)
        now = datetime.now(UTC).replace(microsecond=0)
        ends = min(now + timedelta(days=days), self._root.not_valid_after_utc)
        if ends <= now:
            raise Refused(f"a certificate of {days:g} days would not be valid now",
                          hint=f"this authority ends on {self._root.not_valid_after_utc:%Y-%m-%d}")
        made = certificates.new_leaf(self._root, self._key, public, leaf, now - certificates.BACKDATED, ends)
        return Issued(certificates.certificate_pem(made), f"{made.serial_number:x}", made.not_valid_before_utc,
                      made.not_valid_after_utc)

    def crl(self, revoked: Sequence[tuple[str, float]], *, days: float) -> str:
        """A revocation list in PEM: serials in hex with the Unix time since when."""
        from lib.pki import certificates

        now = datetime.now(UTC).replace(microsecond=0)
        entries = [(int(serial, 16), datetime.fromtimestamp(at, UTC)) for serial, at in revoked]
        return certificates.new_crl(self._root, self._key, entries, now, now + timedelta(days=days))

    def _leaf(self, role: str, id: str, addresses: Sequence[str]) -> "Leaf":
        """What the certificate will say, or UsageError where it may not say that."""
        from lib.pki import certificates

        if role not in ROLES_THAT_SERVE:
            raise UsageError(f"there is no role {role!r}", hint=f"roles are {', '.join(ROLES_THAT_SERVE)}")
        if not re.fullmatch(DNS_LABEL, id) or id.isdigit():
            raise UsageError(f"{id!r} cannot be an id", hint="use lower-case letters, digits and '-', at most 63")
        names, numbers = [f"{id}.{self.domain}"], []
        for address in addresses:
            try:
                numbers.append(ipaddress.ip_address(address))
            except ValueError:
                names.append(address)
        self._check_addresses(names, [number for number in numbers if not self._constraints.covers(number)])
        return certificates.Leaf(id, f"llmgw://{self.cluster}/{role}/{id}", tuple(dict.fromkeys(names)),
                                 tuple(dict.fromkeys(numbers)), ROLES_THAT_SERVE[role])

    def _check_addresses(self, names: Sequence[str], outside: Sequence[object]) -> None:
        for name in names:
            if not re.fullmatch(DOMAIN, name) or not self._constraints.covers_name(name):
                raise UsageError(f"{name!r} is neither an IP address nor a name inside {self.domain}",
                                 hint="the authority of this cluster may not sign it, so give an IP address")
        if outside:
            networks = ", ".join(str(network) for network in self._constraints.networks)
            raise UsageError(f"{outside[0]} is in none of the networks this authority may sign: {networks}",
                             hint="give another address, or make the cluster with this network")


def new_key_and_csr(cn: str, passphrase: bytes | None = None) -> tuple[str, str]:
    """A private key that stays on this machine and a signing request that may travel, both PEM."""
    from lib.pki import certificates

    key = certificates.new_key()
    return certificates.key_pem(key, passphrase), certificates.new_csr(key, cn)


def read_certificate(pem: str, file: str) -> Issued:
    """A certificate that was issued before; ConfigError naming `file` where it is none."""
    from lib.pki import certificates

    try:
        found = certificates.parse_certificate(pem)
    except ValueError:
        raise bad_config(file, "holds no readable certificate") from None
    return Issued(pem, f"{found.serial_number:x}", found.not_valid_before_utc, found.not_valid_after_utc)


@dataclass(frozen=True, slots=True)
class Root:
    """What can be told of an authority without its passphrase. `key_fault`: why its key cannot be used; empty where it can."""

    cluster: str
    domain: str
    networks: tuple[str, ...]
    not_after: datetime
    sealed: bool
    key_fault: str


def read_root(directory: Path) -> Root:
    """The authority in `directory`; ConfigError where its certificate is missing or damaged."""
    root, constraints, cluster = _read_root(directory / "ca.pem")
    try:
        sealed, fault = _is_sealed(_read_private(directory / "ca.key")), ""
    except LlmgwError as err:
        sealed, fault = False, str(err)
    return Root(cluster, constraints.domain, tuple(map(str, constraints.networks)), root.not_valid_after_utc, sealed, fault)


def _read_root(path: Path) -> "tuple[x509.Certificate, Constraints, str]":
    """A root certificate of ours, what it may sign, and the name of its cluster."""
    from lib.pki import certificates

    try:
        root = certificates.parse_certificate(read_text(path))
        constraints = certificates.constraints_of(root)
    except ValueError:
        raise bad_config(str(path), "is not the root certificate of an llmgw cluster", hint="restore it from a backup") from None
    named = re.fullmatch(rf"llmgw ({DNS_LABEL}) root", certificates.common_name(root))
    return root, constraints, named[1] if named else ""


def _is_sealed(key: str) -> bool:
    return "ENCRYPTED PRIVATE KEY" in key


def read_passphrase(path: Path) -> bytes:
    """What unlocks an authority's key, from a file that is ours alone; its last line break does not count."""
    text = _read_private(path).rstrip("\n")
    if not text:
        raise bad_config(str(path), "holds no passphrase")
    return text.encode()


def _check_words(cluster: str, domain: str) -> None:
    if not re.fullmatch(DNS_LABEL, cluster) or len(cluster) > CLUSTER_LIMIT:
        raise UsageError(f"{cluster!r} cannot be the name of a cluster",
                         hint=f"use lower-case letters, digits and '-', at most {CLUSTER_LIMIT}")
    if not re.fullmatch(DOMAIN, domain) or len(domain) > 180:
        raise UsageError(f"{domain!r} cannot be a domain", hint="write it like llm.example.org, in lower case")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise LlmgwError(f"cannot make {directory}: {err.strerror}") from err
    _refuse_loose(directory)
    if (directory / "ca.pem").exists():
        raise Refused(f"{directory} holds an authority already", hint="choose another directory; a new root makes all "
                                                                      "certificates of the old one worthless")


def _refuse_loose(directory: Path) -> None:
    try:
        status = directory.stat()
    except OSError as err:
        raise bad_config(str(directory), f"cannot be read: {err.strerror}", hint="is this the authority's directory?") from None
    if not stat.S_ISDIR(status.st_mode):
        raise bad_config(str(directory), "is not a directory")
    if status.st_mode & 0o077:
        raise bad_config(str(directory), f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})",
                         hint=f"chmod 700 {directory}")


def _read_key(path: Path, passphrase: bytes | None) -> "PrivateKey":
    from lib.pki import certificates

    text = _read_private(path)
    sealed = _is_sealed(text)
    if sealed and not passphrase:
        raise bad_config(str(path), "is protected by a passphrase", hint="give it by file, credential or terminal")
    try:
        return certificates.parse_key(text, passphrase if sealed else None)
    except (ValueError, TypeError):
        problem = "does not open with this passphrase" if sealed else "holds no whole private key"
        raise bad_config(str(path), problem, hint="" if sealed else "restore it from a backup") from None


def _read_private(path: Path) -> str:
    """The text of a key file that is ours alone: a plain file, no link, closed to others."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise bad_config(str(path), f"is open to others (mode {mode:04o})", hint=f"chmod 600 {path}")
            return file.read()
    except OSError as err:
        raise bad_config(str(path), f"cannot be read: {err.strerror}", hint="it must be a plain file, not a link") from None
    except UnicodeDecodeError:
        raise bad_config(str(path), "holds no whole private key", hint="restore it from a backup") from None
