"""Who gets in and who does not, with the reason on both sides: real TLS on port 0."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lib.base.errors import LlmgwError, Refused, Unavailable
from lib.model.identity import Role, identity_of
from lib.net.client import Client
from lib.net.server import Request, Response, Server
from lib.net.tls import client_context, date_fault
from tests.certificates import Certificates, Pair
from tests.eventually import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


def whoami(request: Request) -> Response:
    """Admits the cluster's own identities, as a control plane does, dates judged here."""
    who = identity_of(request.peer)
    if who.cluster != "demo":
        raise Refused(f"certificate of cluster {who.cluster!r}, this is demo")
    if fault := date_fault(request.peer or {}, time.time()):
        raise Refused(f"{who}: {fault}", hint="renew it")
    return Response(200, {"role": who.role, "id": who.id, "serial": who.serial})


@pytest.fixture(scope="module")
def server(cluster: Certificates) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), whoami) as running:
        yield running


@pytest.fixture(scope="module")
def lenient(cluster: Certificates) -> Iterator[Server]:
    """Leaves dates to the application."""
    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(ignore_dates=True), whoami) as running:
        yield running


def url(server: Server) -> str:
    return f"https://{server.address[0]}:{server.address[1]}"


def ask(server: Server, pair: Pair, **more: Any) -> Any:
    with Client(url(server), pair.client_context(), **more) as client:
        return client.get("/whoami")


def refusal(server: Server, pair: Pair, **more: Any) -> str:
    with pytest.raises(LlmgwError) as caught:
        ask(server, pair, **more)
    return str(caught.value)


@pytest.mark.parametrize("make, role, id", [
    (Certificates.node, "node", "llmgw-node01"), (Certificates.router, "router", "llmgw-router01"),
    (Certificates.operator, "operator", "admin"), (Certificates.control_plane, "control-plane", "llmgw-ctl")])
def test_the_server_sees_role_id_and_serial(cluster: Certificates, server: Server, make: Callable[[Certificates], Pair],
                                            role: str, id: str) -> None:
    answer = ask(server, make(cluster))
    assert (answer["role"], answer["id"]) == (role, id)
    assert int(answer["serial"], 16) > 0


@pytest.mark.parametrize("kind, client_says, server_says", [
    ("expired", "certificate expired", "has a certificate that has expired"),
    ("not_yet_valid", "bad certificate", "has a certificate that is not valid yet (compare the clocks of both machines)"),
    ("server_only", "unsupported certificate", "has a certificate that was not issued for this use")])
def test_a_wrong_certificate_is_refused_with_a_reason_on_both_sides(
        cluster: Certificates, server: Server, caplog: pytest.LogCaptureFixture,
        kind: str, client_says: str, server_says: str) -> None:
    wrong: Pair = getattr(cluster, kind)(cluster.node())
    assert refusal(server, wrong) == f"{url(server)} refused our certificate ({wrong.cert}): {client_says}"
    line = eventually(lambda: caplog.messages)[0]
    assert line.startswith("127.0.0.1:")
    assert line.endswith(f": refused: the client {server_says}")


def test_a_certificate_of_another_authority_is_refused(cluster: Certificates, server: Server, tmp_path: Path,
                                                       caplog: pytest.LogCaptureFixture) -> None:
    theirs = Certificates(tmp_path).node()
    stranger = Pair(theirs.cert, theirs.key, cluster.ca)
    assert refusal(server, stranger) == f"{url(server)} refused our certificate ({theirs.cert}): unknown ca"
    assert eventually(lambda: caplog.messages)[0].endswith(f"the client has a certificate that is not signed by {cluster.ca}")


def test_a_client_that_trusts_another_authority_says_so(server: Server, tmp_path: Path,
                                                        caplog: pytest.LogCaptureFixture) -> None:
    theirs = Certificates(tmp_path)
    assert refusal(server, theirs.node()) == f"{url(server)}: its certificate is not signed by {theirs.ca}"
    assert eventually(lambda: caplog.messages)[0].endswith("the client refused our certificate: unknown ca")


def test_a_client_without_a_certificate_is_told_to_name_one(cluster: Certificates, server: Server,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    with Client(url(server), client_context(None, None, cluster.ca)) as client, pytest.raises(Unavailable) as caught:
        client.get("/whoami")
    assert str(caught.value) == f"{url(server)} wants a certificate of ours: certificate required"
    assert eventually(lambda: caplog.messages)[0].endswith("the client sent no certificate")


def test_the_servers_alert_always_reaches_the_client(cluster: Certificates, server: Server) -> None:
    """In TLS 1.3 it comes after the client's handshake has ended: a server that closes at once resets it away."""
    expired = cluster.expired(cluster.node())
    for _ in range(60):
        assert refusal(server, expired).endswith(": certificate expired")


def test_a_large_request_does_not_outrun_the_alert(cluster: Certificates, server: Server) -> None:
    expired = cluster.expired(cluster.node())
    with Client(url(server), expired.client_context()) as client, pytest.raises(Unavailable, match=r"certificate expired$"):
        client.post("/whoami", {"x": "y" * 4_000_000})


@pytest.mark.parametrize("make, says", [
    (lambda c: c.expired(c.node()), "node llmgw-node01: certificate expired on "),
    (lambda c: c.not_yet_valid(c.node()), "node llmgw-node01: certificate is not valid before "),
    (lambda c: c.two_common_names(c.node()), "certificate has 2 common names and 1 URIs"),
    (lambda c: c.of_cluster("berlin", c.node()), "certificate of cluster 'berlin', this is demo")],
    ids=["expired", "not-yet-valid", "two-names", "other-cluster"])
def test_what_the_application_refuses_comes_as_its_own_words(cluster: Certificates, lenient: Server,
                                                            make: Callable[[Certificates], Pair], says: str) -> None:
    with Client(url(lenient), make(cluster).client_context()) as client, pytest.raises(Refused) as caught:
        client.get("/whoami")
    assert str(caught.value).startswith(says)


def only_a_control_plane(peer: Mapping[str, Any]) -> None:
    who = identity_of(peer)
    if (who.cluster, who.role) != ("demo", Role.CONTROL_PLANE):
        raise Refused(f"{who} of {who.cluster} is not the control plane of demo")


def test_a_client_asks_who_the_server_is_before_it_says_anything(cluster: Certificates) -> None:
    heard: list[Request] = []

    def hear(request: Request) -> Response:
        heard.append(request)
        return Response()

    with Server(("127.0.0.1", 0), cluster.node().server_context(), hear) as impostor, \
            Client(url(impostor), cluster.node().client_context(), check_peer=only_a_control_plane) as client:
        for _ in range(2):
            with pytest.raises(Refused, match=r"^node llmgw-node01 of demo is not the control plane of demo$"):
                client.post("/agent/v1/hello", {})
    assert heard == []


def test_the_right_server_passes_the_check(cluster: Certificates, server: Server) -> None:
    assert ask(server, cluster.node(), check_peer=only_a_control_plane)["id"] == "llmgw-node01"


@pytest.mark.parametrize("kind, says", [
    ("expired", "has expired"), ("not_yet_valid", "is not valid yet (compare the clocks of both machines)")])
def test_a_server_out_of_date_is_refused(cluster: Certificates, kind: str, says: str) -> None:
    wrong: Pair = getattr(cluster, kind)(cluster.control_plane())
    with Server(("127.0.0.1", 0), wrong.server_context(), whoami) as stale:
        assert refusal(stale, cluster.node()) == f"{url(stale)}: its certificate {says}"


def test_a_certificate_that_may_not_serve_is_refused_as_a_server(cluster: Certificates) -> None:
    with Server(("127.0.0.1", 0), cluster.router().server_context(), whoami) as impostor:
        assert refusal(impostor, cluster.node()) == f"{url(impostor)}: its certificate was not issued for this use"


def test_a_server_on_an_address_that_is_not_in_its_certificate_is_refused(cluster: Certificates) -> None:
    with Server(("127.0.0.99", 0), cluster.control_plane().server_context(), whoami) as elsewhere:
        assert refusal(elsewhere, cluster.node()) == f"{url(elsewhere)}: its certificate is for another address"


def test_a_certificate_can_be_replaced_under_a_running_server(cluster: Certificates) -> None:
    with Server(("127.0.0.1", 0), cluster.expired(cluster.control_plane()).server_context(), whoami) as running:
        assert "has expired" in refusal(running, cluster.node())
        running.context = cluster.control_plane().server_context()
        assert ask(running, cluster.node())["id"] == "llmgw-node01"


def test_no_session_is_resumed(cluster: Certificates, server: Server) -> None:
    """A resumed one would skip the check of the peer."""
    context = cluster.node().client_context()
    with socket.create_connection(server.address, timeout=10) as raw, \
            context.wrap_socket(raw, server_hostname="127.0.0.1") as conn:
        conn.sendall(b"GET /whoami HTTP/1.1\r\nhost: x\r\n\r\n")
        conn.recv(65536)
        assert conn.session is None or not conn.session.has_ticket


def test_closing_the_connections_of_one_peer_leaves_the_others(cluster: Certificates) -> None:
    entered, release = threading.Semaphore(0), threading.Event()

    def block(request: Request) -> Response:
        entered.release()
        release.wait(10)
        return Response(200, request.path)

    outcomes: dict[str, Any] = {}

    def poll(name: str, pair: Pair) -> None:
        with Client(url(running), pair.client_context()) as client:
            try:
                outcomes[name] = client.get(f"/{name}")
            except LlmgwError as err:
                outcomes[name] = err

    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), block) as running:
        polls = [threading.Thread(target=poll, args=("node", cluster.node())),
                 threading.Thread(target=poll, args=("router", cluster.router()))]
        for thread in polls:
            thread.start()
        assert entered.acquire(timeout=10)
        assert entered.acquire(timeout=10)
        assert running.close_connections(lambda peer: identity_of(peer).role is Role.NODE) == 1
        polls[0].join(10)
        assert isinstance(outcomes["node"], Unavailable)
        release.set()
        polls[1].join(10)
    assert outcomes["router"] == "/router"


@pytest.fixture(autouse=True)
def _log_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
