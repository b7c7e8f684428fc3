"""The guard lets routers of this cluster and this epoch through, and nobody else; each side hears of the other's end at once."""

import json
import os
import random
import shutil
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lib.base.files import write_json
from lib.model.fleet import Epoch, FaultClass, ShardState
from tests.certificates import Certificates, Pair
from tests.eventually import eventually
from tests.live.shims import GUARD, KEY, NONCE, Shim, free_pair, make_order, make_probe, pki_of, running, server_argv

NAME = Epoch(7, NONCE).server_name


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


@contextmanager
def guarded(tmp_path: Path, certificates: Certificates, *, wait: bool = True, grace_s: float = 5.0, drain_s: float = 120.0,
            pki: dict[str, str] | None = None, **flags: str) -> Iterator[Shim]:
    """A shim of rank 0 whose engine is ready."""
    port = free_pair()
    with running(tmp_path / "s", server_argv(port, gone=str(tmp_path / "gone"), **flags), order=make_order(port, grace_s=grace_s),
                 probe=make_probe(), revoked=str(tmp_path / "revoked.json"), drain_s=drain_s,
                 **(pki or pki_of(certificates))) as shim:
        if wait:
            shim.wait_for(ShardState.READY)
        yield shim


def dial(shim: Shim, router: Pair, name: str = NAME) -> ssl.SSLSocket:
    """What a router does, without trusting any address."""
    context = router.client_context()
    context.check_hostname = False
    plain = socket.create_connection((GUARD, shim.port), timeout=10)
    try:
        return context.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def ask(link: ssl.SSLSocket, path: str, body: bytes | None = None, *, until: bytes = b"") -> bytes:
    """Send a request; read until the whole answer, or until `until` has come."""
    send_request(link, path, body)
    return read_answer(link, until)


def send_request(link: ssl.SSLSocket, path: str, body: bytes | None = None) -> None:
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: engine\r\nAuthorization: Bearer {KEY}\r\n"
    link.sendall(head.encode() + f"Content-Length: {len(body or b'')}\r\n\r\n".encode() + (body or b""))


def read_answer(link: ssl.SSLSocket, until: bytes = b"") -> bytes:
    data = bytearray()
    _read_on(link, data, lambda: (until or b"\r\n\r\n") in data)
    if not until:
        head = bytes(data).partition(b"\r\n\r\n")[0]
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        _read_on(link, data, lambda: len(data) >= len(head) + 4 + length)
    return bytes(data)


def _read_on(link: ssl.SSLSocket, data: bytearray, enough: Callable[[], bool]) -> None:
    while not enough():
        more = link.recv(65536)
        if not more:
            raise ConnectionError(f"ended after {len(data)} bytes")
        data += more


def test_a_router_reaches_the_engine_and_the_connection_can_be_used_again(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        assert link.version() == "TLSv1.3"
        assert b'"id": "m"' in ask(link, "/v1/models")
        assert ask(link, "/echo", b"hello").endswith(b"hello")
        assert shim.wait_until(lambda state: state.guard.connections == 1).guard.accepted == 1


def test_a_wrong_epoch_fails_the_handshake_by_an_alert(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim:
        for name in (Epoch(6, NONCE).server_name, Epoch(7, "00000000000000ab").server_name, "llmgw-node01.demo.internal", ""):
            with pytest.raises(ssl.SSLError) as err:
                dial(shim, certificates.router(), name) if name else _without_name(shim, certificates.router())
            assert "UNRECOGNIZED_NAME" in str(err.value)
        shim.wait_until(lambda state: state.guard.refused.get("wrong epoch") == 4)
        assert f"asked for '{Epoch(6, NONCE).server_name}', this is {NAME}" in shim.own_log


def _without_name(shim: Shim, router: Pair) -> ssl.SSLSocket:
    context = router.client_context()
    context.check_hostname = False
    with socket.create_connection((GUARD, shim.port), timeout=10) as plain:
        return context.wrap_socket(plain)


def test_until_the_engine_serves_the_handshake_fails(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates, wait=False, after=str(tmp_path / "go")) as shim:
        shim.wait_for(ShardState.STARTING)
        with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
            dial(shim, certificates.router())
        (tmp_path / "go").touch()
        shim.wait_for(ShardState.READY)
        with dial(shim, certificates.router()) as link:
            assert ask(link, "/health")


@pytest.mark.parametrize("who, reason", [
    (lambda c: c.node(), "not a router"),
    (lambda c: c.operator(), "not a router"),
    (lambda c: c.control_plane(), "not a router"),
    (lambda c: c.of_cluster("prod", c.router()), "other cluster"),
    (lambda c: c.two_common_names(c.router()), "no identity"),
])
def test_whoever_is_no_router_of_this_cluster_is_cut_off_before_a_byte_has_passed(
        tmp_path: Path, certificates: Certificates, who: Any, reason: str) -> None:
    with guarded(tmp_path, certificates) as shim:
        with pytest.raises(OSError), dial(shim, who(certificates)) as link:
            ask(link, "/health")
        state = shim.wait_until(lambda state: bool(state.guard.refused))
        assert state.guard.refused == {reason: 1}
        assert state.guard.accepted == 0
        assert shim.own_log.count(f": {reason}\n") == 1


@pytest.mark.parametrize("who", [
    lambda c: c.other_authority().router(), lambda c: c.server_only(c.router()),
], ids=["other authority of the same name", "server certificate"])
def test_a_certificate_that_is_not_for_this_is_refused_by_tls(tmp_path: Path, certificates: Certificates, who: Any) -> None:
    pair = who(certificates)
    with guarded(tmp_path, certificates) as shim:
        with pytest.raises(OSError), dial(shim, Pair(pair.cert, pair.key, certificates.ca)) as link:
            ask(link, "/health")
        eventually(lambda: "127.0.0.1: has a certificate that" in shim.own_log)
        shutil.rmtree(certificates.directory / "other-authority", ignore_errors=True)


def test_without_a_certificate_and_without_tls_nobody_gets_in(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim:
        context = ssl.create_default_context(cafile=certificates.ca)
        context.check_hostname = False
        with socket.create_connection((GUARD, shim.port), timeout=10) as plain, \
                pytest.raises(OSError), context.wrap_socket(plain, server_hostname=NAME) as link:
            ask(link, "/health")
        with socket.create_connection((GUARD, shim.port), timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" not in plain.recv(1000)
        eventually(lambda: "sent no certificate" in shim.own_log)
        eventually(lambda: "spoke plain HTTP" in shim.own_log)


def test_an_expired_router_is_let_in_and_reported(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.expired(certificates.router())) as link:
        assert ask(link, "/health")
        shim.wait_until(lambda state: state.guard.expired == 1)
        assert "certificate expired on" in shim.own_log


def test_a_revocation_cuts_the_live_connection_and_refuses_the_next_within_a_second(
        tmp_path: Path, certificates: Certificates) -> None:
    first, second = certificates.router("llmgw-router01"), certificates.router("llmgw-router02")
    with guarded(tmp_path, certificates) as shim, dial(shim, first) as link, dial(shim, second) as other:
        ask(link, "/stream", until=b"tick")
        ask(other, "/health")
        write_json(tmp_path / "revoked.json", {"serials": [], "ids": ["llmgw-router01"]})
        with pytest.raises(OSError):
            read_answer(link, until=b"never")
        eventually((tmp_path / "gone").exists, 1.0)
        with pytest.raises(OSError), dial(shim, first) as again:
            ask(again, "/health")
        assert ask(other, "/health")
        serial = ssl._ssl._test_decode_cert(str(second.cert))["serialNumber"]  # type: ignore[attr-defined]
        write_json(tmp_path / "revoked.json", {"serials": [serial.lower()], "ids": []})
        with pytest.raises(OSError):
            _read_on(other, bytearray(), lambda: False)
        with dial(shim, first) as again:
            assert ask(again, "/health")


def test_a_half_written_deny_list_leaves_the_last_good_one_in_force(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim:
        write_json(tmp_path / "revoked.json", {"serials": [], "ids": ["llmgw-router01"]})
        eventually(lambda: _refused(shim, certificates), 3.0)
        (tmp_path / "revoked.json").write_text('{"serials": [')
        eventually(lambda: "old revocations stay" in shim.own_log)
        assert _refused(shim, certificates)


def _refused(shim: Shim, certificates: Certificates) -> bool:
    try:
        with dial(shim, certificates.router()) as link:
            ask(link, "/health")
    except OSError:
        return True
    return False


def test_a_client_that_goes_away_ends_the_stream_at_the_engine_at_once(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim:
        with dial(shim, certificates.router()) as link:
            ask(link, "/stream", until=b"tick")
        eventually((tmp_path / "gone").exists, 1.0)
        shim.wait_until(lambda state: state.guard.connections == 0)


def test_an_engine_that_dies_mid_stream_ends_the_connection_and_is_reported_at_once(
        tmp_path: Path, certificates: Certificates) -> None:
    """It printed that it was ready, served, and then exited with status 0."""
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link, \
            dial(shim, certificates.router()) as other:
        ask(link, "/stream", until=b"tick")
        send_request(other, "/die")
        with pytest.raises(OSError):
            read_answer(link, until=b"never")
        ended = shim.wait_exit()
        assert (ended.requested, ended.exit_code) == (False, 0)
        assert "asked to die" in ended.detail
        with pytest.raises(OSError):
            dial(shim, certificates.router())


def test_large_bodies_pass_unchanged_both_ways_to_a_reader_that_is_slow(tmp_path: Path, certificates: Certificates) -> None:
    body = os.urandom(8_000_000)
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        assert ask(link, "/echo", body).endswith(body)
        send_request(link, "/big/20000000")
        before = _memory(shim.process.pid)
        turns_of_the_loop(shim, certificates)      # a reader that does not read: the guard must not read on for it
        assert _memory(shim.process.pid) - before < 4_000_000
        assert len(read_answer(link)) > 20_000_000


def turns_of_the_loop(shim: Shim, certificates: Certificates) -> None:
    """The guard has gone round its loop so often that it had the chance to move all that it would move, on every connection."""
    with dial(shim, certificates.router()) as other:
        for _ in range(400):
            assert ask(other, "/health")


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_an_answer_given_before_the_body_was_read_arrives_whole(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        assert ask(link, "/early", b"x" * 1000).startswith(b"HTTP/1.1 200")
        assert link.recv(1) == b""         # the engine's own end is passed on properly


def test_the_last_bytes_of_an_engine_that_closes_reach_a_slow_reader(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        link.sendall(f"GET /big/5000000 HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\r\n".encode())
        turns_of_the_loop(shim, certificates)      # by now the engine has written what the buffers take, or is gone
        assert read_answer(link).count(b"x") >= 5_000_000
        assert link.recv(1) == b""


def test_connections_that_break_off_at_any_moment_leave_nothing_open(tmp_path: Path, certificates: Certificates) -> None:
    chance, router = random.Random(1), certificates.router()
    with guarded(tmp_path, certificates) as shim:
        before = shim.wait_until(lambda state: state.guard.connections == 0) and _descriptors(shim)
        for number in range(60):
            with socket.create_connection((GUARD, shim.port), timeout=10) as plain:
                if number % 4 == 0:
                    plain.sendall(os.urandom(chance.randrange(1, 400)))
                    continue
                context = router.client_context()
                context.check_hostname = False
                with context.wrap_socket(plain, server_hostname=NAME) as link:
                    path = chance.choice(["/stream", "/big/3000000", "/health"])
                    send_request(link, path)
                    if chance.random() < 0.7:
                        link.recv(chance.randrange(1, 50_000))
                    if chance.random() < 0.5:      # a reset instead of an end
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        shim.wait_until(lambda state: state.guard.connections == 0 and state.guard.accepted == 45)
        eventually(lambda: _descriptors(shim) == before, 10)
        with dial(shim, router) as link:
            assert ask(link, "/health")
        assert "Traceback" not in shim.own_log


def _descriptors(shim: Shim) -> int:
    return len(os.listdir(f"/proc/{shim.process.pid}/fd"))


def test_a_stop_lets_a_running_request_finish_and_refuses_new_ones(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        ask(link, "/stream", until=b"tick")
        shim.signal()
        shim.wait_for(ShardState.STOPPING)
        with pytest.raises(OSError):
            dial(shim, certificates.router())
        read_answer(link, until=b"tick\r\n4\r\ntick")     # it goes on
        link.close()
        ended = shim.wait_exit()
        assert ended.requested
        assert ended.exit_code == -15


def test_a_stop_does_not_wait_for_streams_past_its_drain_time(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates, drain_s=0.5) as shim, dial(shim, certificates.router()) as link:
        ask(link, "/stream", until=b"tick")
        shim.signal()
        assert shim.wait_exit().requested


def test_sigint_ends_a_shard_without_waiting_for_its_streams(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim, dial(shim, certificates.router()) as link:
        ask(link, "/stream", until=b"tick")
        shim.signal()
        shim.wait_for(ShardState.STOPPING)
        shim.signal(2)
        assert shim.wait_exit().requested


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, certificates: Certificates) -> None:
    files = {name: tmp_path / name for name in ("node.pem", "node.key")}
    shutil.copy(certificates.node().cert, files["node.pem"])
    shutil.copy(certificates.node().key, files["node.key"])
    pki = {"certificate": str(files["node.pem"]), "key": str(files["node.key"]), "ca": str(certificates.ca)}
    with guarded(tmp_path, certificates, pki=pki) as shim:
        with dial(shim, certificates.router()) as link:
            before = link.getpeercert(binary_form=True)
        files["node.pem"].write_text("half-written")
        eventually(lambda: "old certificate stays in use" in shim.own_log)
        with dial(shim, certificates.router()) as link:
            assert link.getpeercert(binary_form=True) == before
        other = certificates.node("llmgw-node02")
        os.replace(shutil.copy(other.key, tmp_path / "new.key"), files["node.key"])
        os.replace(shutil.copy(other.cert, tmp_path / "new.pem"), files["node.pem"])

        def renewed() -> bool:
            with dial(shim, certificates.router()) as link:
                return link.getpeercert(binary_form=True) != before
        eventually(renewed)


def test_a_taken_port_starts_nothing_and_names_the_holder(tmp_path: Path, certificates: Certificates) -> None:
    with socket.create_server((GUARD, 0)) as holder:
        port = holder.getsockname()[1]
        with running(tmp_path / "s", server_argv(port), order=make_order(port), probe=make_probe(),
                     **pki_of(certificates)) as shim:
            ended = shim.wait_exit()
            assert ended.exit_code is None
            assert ended.fault is FaultClass.RESOURCE
            assert f"process {os.getpid()} (" in ended.detail
            assert shim.log == ""


def test_an_unreadable_certificate_starts_nothing_and_says_which(tmp_path: Path, certificates: Certificates) -> None:
    port, pki = free_pair(), pki_of(certificates)
    pki["certificate"] = str(tmp_path / "nowhere.pem")
    with running(tmp_path / "s", server_argv(port), order=make_order(port), probe=make_probe(), **pki) as shim:
        ended = shim.wait_exit()
        assert ended.fault is FaultClass.CONFIGURATION
        assert "nowhere.pem" in ended.detail


def test_state_files_and_logs_hold_no_key_that_others_can_read(tmp_path: Path, certificates: Certificates) -> None:
    with guarded(tmp_path, certificates) as shim:
        assert {entry.name: oct(entry.stat().st_mode & 0o777) for entry in shim.run_dir.iterdir()
                if entry.stat().st_mode & 0o077} == {}
        assert KEY not in shim.own_log
        assert KEY not in json.dumps((shim.run_dir / "state.json").read_text())
