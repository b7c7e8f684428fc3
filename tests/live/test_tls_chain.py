"""Whether others believe the chain: the openssl command and Python's ssl, under the root's name constraints."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from lib.base.errors import LlmgwError, UsageError
from lib.host.openssl import make_key_and_csr
from lib.net.tls import server_context
from lib.pki import certificates as made
from tests.certificates import Certificates, Pair

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command on this machine")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


def openssl_verify(ca: Path, cert: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", str(ca), *more, str(cert)],
                          capture_output=True, text=True, timeout=30, check=False)


@needs_openssl
@pytest.mark.parametrize("role", ["control_plane", "node", "router", "operator"])
def test_openssl_verifies_each_role_strictly(cluster: Certificates, role: str) -> None:
    pair: Pair = getattr(cluster, role)()
    done = openssl_verify(cluster.ca, pair.cert, "-purpose", "sslclient")
    assert done.returncode == 0, done.stderr


@needs_openssl
def test_openssl_verifies_a_node_as_a_server_by_name_and_by_address(cluster: Certificates) -> None:
    for host in (["-verify_ip", "127.0.0.11"], ["-verify_hostname", "llmgw-node01.demo.internal"]):
        done = openssl_verify(cluster.ca, cluster.node().cert, "-purpose", "sslserver", *host)
        assert done.returncode == 0, done.stderr


@needs_openssl
@pytest.mark.parametrize("leaf", [
    made.Leaf("evil", "llmgw://demo/node/evil", ("bank.example.org",), (), True),
    made.Leaf("evil", "llmgw://demo/node/evil", ("evil.demo.internal",), (ip_address("8.8.8.8"),), True),
    made.Leaf("evil", "llmgw://demo/node/evil", ("evil.demo.internal",), (ip_address("2001:db8::1"),), True),
], ids=["name", "IPv4", "IPv6"])
def test_a_stolen_root_key_cannot_speak_for_the_rest_of_the_world(cluster: Certificates, tmp_path: Path, leaf: made.Leaf) -> None:
    """The nodes trust this root system-wide."""
    root = x509.load_pem_x509_certificate(cluster.ca.read_bytes())
    key = made.parse_key((cluster.directory / "ca" / "ca.key").read_text(), None)
    forged = made.new_leaf(root, key, made.new_key().public_key(), leaf, root.not_valid_before_utc, root.not_valid_after_utc)
    (tmp_path / "forged.pem").write_text(made.certificate_pem(forged))
    done = openssl_verify(cluster.ca, tmp_path / "forged.pem")
    assert done.returncode != 0
    assert "permitted subtree violation" in done.stderr


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize("host", ["127.0.0.1", "llmgw-node01.demo.internal"])
def test_python_accepts_a_node_as_server_in_tls_1_3(cluster: Certificates, listener: socket.socket, host: str) -> None:
    server = cluster.node().server_context()
    seen: list[str | None] = []

    def answer() -> None:
        with server.wrap_socket(listener.accept()[0], server_side=True) as conn:
            seen.append(conn.version())
            conn.recv(1)

    thread = threading.Thread(target=answer)
    thread.start()
    with socket.create_connection(listener.getsockname(), timeout=10) as raw, \
            cluster.router().client_context().wrap_socket(raw, server_hostname=host) as conn:
        peer = conn.getpeercert()
        assert peer
        assert ("IP Address", "127.0.0.1") in peer["subjectAltName"]
    thread.join(10)
    assert seen == ["TLSv1.3"]


@needs_openssl
def test_a_key_made_by_openssl_gets_a_certificate_that_fits_it(cluster: Certificates, tmp_path: Path) -> None:
    key, csr, cert = tmp_path / "node.key", tmp_path / "node.csr", tmp_path / "node.pem"
    make_key_and_csr(key, csr, "llmgw-node07")
    cert.write_text(cluster.authority.issue(csr.read_text(), "node", "llmgw-node07", addresses=(), days=9).pem)
    assert key.stat().st_mode & 0o777 == 0o600
    server_context(cert, key, cluster.ca)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.csr", "node.key", "node.pem"]


@needs_openssl
def test_a_key_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "csr").mkdir()
    with pytest.raises(LlmgwError, match=f"cannot write {tmp_path}/nowhere/key"):
        make_key_and_csr(tmp_path / "nowhere" / "key", tmp_path / "csr", "a")
    assert [path.name for path in tmp_path.iterdir()] == ["csr"]


def test_a_common_name_that_openssl_would_take_apart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be the common name"):
        make_key_and_csr(tmp_path / "key", tmp_path / "csr", "a/O=evil")


def test_an_openssl_that_is_not_there_is_one_sentence_and_nothing_half_done(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match="/no/openssl not found"):
        make_key_and_csr(tmp_path / "key", tmp_path / "csr", "a", openssl="/no/openssl")
    assert list(tmp_path.iterdir()) == []
