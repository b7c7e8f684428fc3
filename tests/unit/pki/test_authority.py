"""The authority: what it issues, what it refuses, and that its files are whole and closed or not taken."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from lib.base.errors import ConfigError, Refused, UsageError
from lib.pki.authority import CLUSTER_LIMIT, Authority, new_key_and_csr


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki") / "ca", "demo")


def issued(authority: Authority, role: str = "node", id: str = "llmgw-node01", *, days: int = 90,
           addresses: tuple[str, ...] = ("10.0.0.144",)) -> x509.Certificate:
    made = authority.issue(new_key_and_csr(id)[1], role, id, addresses=addresses, days=days)
    return x509.load_pem_x509_certificate(made.pem.encode())


def names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_certificate_says_who_and_what_its_holder_is(authority: Authority) -> None:
    san = names(issued(authority, addresses=("10.0.0.144", "fd00::7", "gpu.demo.internal")))
    assert san.get_values_for_type(x509.UniformResourceIdentifier) == ["llmgw://demo/node/llmgw-node01"]
    assert san.get_values_for_type(x509.DNSName) == ["llmgw-node01.demo.internal", "gpu.demo.internal"]
    assert [str(ip) for ip in san.get_values_for_type(x509.IPAddress)] == ["10.0.0.144", "fd00::7"]


@pytest.mark.parametrize("role, serves", [("node", True), ("control-plane", True), ("router", False), ("operator", False)])
def test_only_nodes_and_control_planes_may_be_tls_servers(authority: Authority, role: str, serves: bool) -> None:
    usage = issued(authority, role).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) is serves
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usage


def test_a_leaf_cannot_sign_and_says_so_critically(authority: Authority) -> None:
    extensions = issued(authority).extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca) == (True, False)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, False, True)


def test_the_root_is_critically_constrained_to_the_domain_and_the_private_networks(authority: Authority) -> None:
    root = x509.load_pem_x509_certificate(authority.ca_pem.encode())
    extension = root.extensions.get_extension_for_class(x509.NameConstraints)
    permitted = [str(name.value) for name in extension.value.permitted_subtrees or ()]
    assert extension.critical
    assert permitted == ["demo.internal", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "::1/128", "fc00::/7"]
    assert root.subject.rfc4514_string() == "CN=llmgw demo root"
    assert root.not_valid_after_utc - root.not_valid_before_utc > timedelta(days=3651)


def test_serials_are_random_positive_and_of_20_bytes_at_most(authority: Authority) -> None:
    serials = {issued(authority).serial_number for _ in range(8)}
    assert len(serials) == 8
    assert all(0 < serial < 1 << 159 for serial in serials)
    assert max(serials) > 1 << 120         # chance says otherwise once in 10^94 runs


def test_a_serial_is_written_as_identities_have_it(authority: Authority) -> None:
    made = authority.issue(new_key_and_csr("a")[1], "node", "a", addresses=(), days=1)
    assert made.serial == f"{x509.load_pem_x509_certificate(made.pem.encode()).serial_number:x}"


def test_a_certificate_is_valid_since_five_minutes_ago_for_its_days(authority: Authority) -> None:
    now, certificate = datetime.now(UTC), issued(authority, days=90)
    assert abs(now - certificate.not_valid_before_utc - timedelta(minutes=5)) < timedelta(seconds=20)
    assert abs(certificate.not_valid_after_utc - now - timedelta(days=90)) < timedelta(seconds=20)


def test_no_certificate_outlives_its_root(authority: Authority) -> None:
    root = x509.load_pem_x509_certificate(authority.ca_pem.encode())
    assert issued(authority, days=100_000).not_valid_after_utc == root.not_valid_after_utc


def test_a_certificate_of_no_days_is_refused(authority: Authority) -> None:
    with pytest.raises(Refused, match="0 days"):
        issued(authority, days=0)


@pytest.mark.parametrize("address, says", [
    ("8.8.8.8", "8.8.8.8 is in none of the networks"), ("2001:db8::1", "none of the networks"),
    ("gpu.example.org", "neither an IP address nor a name inside demo.internal"),
    ("notdemo.internal", "neither"), ("*.demo.internal", "neither"), ("10.0.0.300", "neither"), ("", "neither")])
def test_what_the_root_may_not_sign_is_refused_before_it_is_signed(authority: Authority, address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        issued(authority, addresses=(address,))


@pytest.mark.parametrize("id", ["", "Node", "-a", "a-", "a.b", "a" * 64, "123", "a/b", "a\n"])
def test_an_id_that_is_no_label_is_refused(authority: Authority, id: str) -> None:
    with pytest.raises(UsageError, match="cannot be an id"):
        authority.issue(new_key_and_csr("a")[1], "node", id, addresses=(), days=1)


def test_an_unknown_role_is_refused(authority: Authority) -> None:
    with pytest.raises(UsageError, match="no role 'root'"):
        authority.issue(new_key_and_csr("a")[1], "root", "a", addresses=(), days=1)


def test_of_a_request_only_the_public_key_is_taken(authority: Authority) -> None:
    """A request may ask for anything: to be the control plane, to be an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    asked = (x509.CertificateSigningRequestBuilder()
             .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "llmgw-ctl")]))
             .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
             .sign(key, SHA256()).public_bytes(Encoding.PEM).decode())
    made = authority.issue(asked, "node", "llmgw-node01", addresses=(), days=1)
    certificate = x509.load_pem_x509_certificate(made.pem.encode())
    assert certificate.public_key() == key.public_key()
    assert certificate.subject.rfc4514_string() == "CN=llmgw-node01"
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_request_that_its_own_key_did_not_sign_is_refused(authority: Authority) -> None:
    der = bytearray(x509.load_pem_x509_csr(new_key_and_csr("a")[1].encode()).public_bytes(Encoding.DER))
    der[der.index(b"\x0c\x01a") + 2] = ord("b")            # another name under the old signature
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode()
    with pytest.raises(UsageError, match="not signed by its own key"):
        authority.issue(forged, "node", "b", addresses=(), days=1)


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"])
def test_what_is_no_signing_request_is_refused(authority: Authority, text: str) -> None:
    with pytest.raises(UsageError, match="not a certificate signing request"):
        authority.issue(text, "node", "a", addresses=(), days=1)


@pytest.mark.parametrize("make", [lambda: ec.generate_private_key(ec.SECP384R1()),
                                  lambda: rsa.generate_private_key(65537, 2048)], ids=["P-384", "RSA"])
def test_a_key_of_another_kind_is_refused(authority: Authority,
                                          make: Callable[[], ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]) -> None:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(make(), SHA256())
    with pytest.raises(UsageError, match="another key than ECDSA P-256"):
        authority.issue(request.public_bytes(Encoding.PEM).decode(), "node", "a", addresses=(), days=1)


def test_a_reopened_authority_is_the_same_one(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "ca", "berlin", ["10.7.0.0/16"], domain="gpu.example.org")
    opened = Authority.open(tmp_path / "ca")
    assert (opened.cluster, opened.domain, opened.ca_pem) == ("berlin", "gpu.example.org", made.ca_pem)
    issued(opened, addresses=("10.7.3.4", "a.gpu.example.org"))
    with pytest.raises(UsageError, match=r"10\.7\.0\.0/16"):
        issued(opened, addresses=("10.8.0.1",))


def test_the_files_are_closed_to_others(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Authority.create(tmp_path / "ca", "demo")
    finally:
        os.umask(old)
    modes = {name: (tmp_path / "ca" / name).stat().st_mode & 0o777 for name in (".", "ca.key", "ca.pem")}
    assert modes == {".": 0o700, "ca.key": 0o600, "ca.pem": 0o644}


def test_a_second_authority_in_the_same_place_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    first = Authority.create(tmp_path / "ca", "demo")
    with pytest.raises(Refused, match="holds an authority already"):
        Authority.create(tmp_path / "ca", "demo")
    assert Authority.open(tmp_path / "ca").ca_pem == first.ca_pem


def test_an_authority_whose_making_was_cut_off_can_be_made_again(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "demo")
    (tmp_path / "ca" / "ca.pem").unlink()  # written last: a machine that dies before leaves the key alone
    Authority.create(tmp_path / "ca", "demo")
    Authority.open(tmp_path / "ca")


@pytest.mark.parametrize("name, mode, remedy", [(".", 0o750, "chmod 700"), ("ca.key", 0o640, "chmod 600"),
                                                ("ca.key", 0o604, "chmod 600")])
def test_loose_modes_are_refused_with_the_remedy(tmp_path: Path, name: str, mode: int, remedy: str) -> None:
    Authority.create(tmp_path / "ca", "demo")
    (tmp_path / "ca" / name).chmod(mode)
    with pytest.raises(ConfigError, match=remedy):
        Authority.open(tmp_path / "ca")


def test_a_key_that_is_a_link_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "demo")
    (tmp_path / "ca" / "ca.key").rename(tmp_path / "elsewhere")
    (tmp_path / "ca" / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"ca\.key: cannot be read.*not a link"):
        Authority.open(tmp_path / "ca")


@pytest.mark.parametrize("name, says", [("ca.pem", "is not the root certificate"), ("ca.key", "holds no whole private key")])
def test_a_half_written_file_is_refused_by_name(tmp_path: Path, name: str, says: str) -> None:
    Authority.create(tmp_path / "ca", "demo")
    file = tmp_path / "ca" / name
    file.write_text(file.read_text()[:120])
    with pytest.raises(ConfigError, match=rf"{name}: {says}"):
        Authority.open(tmp_path / "ca")


def test_the_key_of_another_root_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "demo")
    Authority.create(tmp_path / "other", "demo")
    (tmp_path / "other" / "ca.key").rename(tmp_path / "ca" / "ca.key")
    with pytest.raises(ConfigError, match=r"is not the key of ca\.pem"):
        Authority.open(tmp_path / "ca")


def test_a_certificate_that_is_no_root_of_ours_is_refused(tmp_path: Path, authority: Authority) -> None:
    Authority.create(tmp_path / "ca", "demo")
    (tmp_path / "ca" / "ca.pem").write_bytes(issued(authority).public_bytes(Encoding.PEM))
    with pytest.raises(ConfigError, match="is not the root certificate"):
        Authority.open(tmp_path / "ca")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read: No such file"):
        Authority.open(tmp_path / "nowhere")


def test_a_passphrase_seals_the_key(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "demo", passphrase=b"correct horse")
    assert "ENCRYPTED" in (tmp_path / "ca" / "ca.key").read_text()
    issued(Authority.open(tmp_path / "ca", b"correct horse"))
    with pytest.raises(ConfigError, match="is protected by a passphrase"):
        Authority.open(tmp_path / "ca")
    with pytest.raises(ConfigError, match="does not open with this passphrase"):
        Authority.open(tmp_path / "ca", b"battery staple")


def test_a_passphrase_for_a_key_that_has_none_does_no_harm(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "demo")
    Authority.open(tmp_path / "ca", b"not needed")


@pytest.mark.parametrize("cluster", ["", "Demo", "a b", "a" * (CLUSTER_LIMIT + 1)])
def test_a_bad_cluster_name_is_refused_and_leaves_nothing(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a cluster"):
        Authority.create(tmp_path / "ca", cluster)
    assert not (tmp_path / "ca").exists()


def test_the_longest_cluster_name_fits(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "a" * CLUSTER_LIMIT)
    assert Authority.open(tmp_path / "ca").cluster == "a" * CLUSTER_LIMIT


@pytest.mark.parametrize("network", ["10.0.0.1/8", "ten", "10.0.0.0/33"])
def test_a_bad_network_is_refused_and_leaves_nothing(tmp_path: Path, network: str) -> None:
    with pytest.raises(UsageError, match="is not an IP network"):
        Authority.create(tmp_path / "ca", "demo", [network])
    assert not (tmp_path / "ca").exists()
