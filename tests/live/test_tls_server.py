"""The server and the client under load, silence, bad requests and death: real TLS on port 0."""

import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lib.base.errors import Blocked, LlmgwError, NotFound, Refused, Unavailable, UnknownOutcome, UsageError
from lib.net import server as net_server
from lib.net.client import Client
from lib.net.server import Request, Response, Server
from tests.certificates import Certificates
from tests.eventually import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


def answer(request: Request) -> Response:
    match request.path:
        case "/echo":
            return Response(201, {"method": request.method, "query": dict(request.query), "body": request.json()})
        case "/headers":
            return Response(200, dict(request.headers))
        case "/text":
            return Response(200, b"plain", {"content-type": "text/plain"})
        case "/nothing":
            return Response()
        case "/refuse":
            raise Refused("certificate a may not speak for node b", hint="run it again")
        case "/bug":
            raise ZeroDivisionError("a bug")
        case "/unspeakable":
            return Response(200, {1, 2})
    raise NotFound(f"no {request.path!r} here")


@pytest.fixture
def server(cluster: Certificates) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), answer) as running:
        yield running


@pytest.fixture
def client(cluster: Certificates, server: Server) -> Iterator[Client]:
    with Client(url(server.address), cluster.node().client_context()) as made:
        yield made


def url(address: tuple[str, int]) -> str:
    return f"https://{address[0]}:{address[1]}"


@contextlib.contextmanager
def dialled(cluster: Certificates, address: tuple[str, int]) -> Iterator[ssl.SSLSocket]:
    """A bare TLS connection, for what no proper client sends."""
    context = cluster.node().client_context()
    with socket.create_connection(address, timeout=10) as raw, context.wrap_socket(raw, server_hostname=address[0]) as conn:
        yield conn


def everything(conn: ssl.SSLSocket) -> bytes:
    """What comes until the other side has ended."""
    data = b""
    with contextlib.suppress(ssl.SSLError):
        while more := conn.recv(65536):
            data += more
    return data


def exchange(conn: ssl.SSLSocket, request: bytes) -> tuple[int, Any]:
    """Status and body of the one answer that a request gets that ends the connection."""
    conn.sendall(request)
    head, _, body = everything(conn).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)


def test_method_query_body_status_and_headers_arrive(client: Client) -> None:
    assert client.post("/echo", {"a": [1, "é"]}) == {"method": "POST", "query": {}, "body": {"a": [1, "é"]}}
    assert client.get("/headers", {"after": 7}, headers={"Idempotency-Key": "k"})["idempotency-key"] == "k"
    assert client.get("/nothing") is None


def test_an_error_arrives_as_the_class_it_was(client: Client) -> None:
    with pytest.raises(Refused, match="certificate a may not speak for node b") as caught:
        client.post("/refuse")
    assert caught.value.hint == "run it again"
    with pytest.raises(NotFound, match="no '/x y' here"):
        client.get("/x%20y")


def test_a_body_that_is_not_json_is_the_callers_fault(cluster: Certificates, server: Server) -> None:
    with dialled(cluster, server.address) as conn:
        status, body = exchange(conn, b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\n{a}")
    assert status == 400
    assert body["error"]["message"].startswith("the body of POST /echo is not JSON")


@pytest.mark.parametrize("path", ["/bug", "/unspeakable"])
def test_a_bug_is_a_500_without_secrets_and_a_traceback_in_the_log(client: Client, caplog: pytest.LogCaptureFixture,
                                                                    path: str) -> None:
    with pytest.raises(LlmgwError, match=f"^GET {path} failed in the server$"):
        client.get(path)
    assert caplog.records[-1].exc_info
    assert client.get("/nothing") is None  # and the connection lives on


def test_an_answer_that_is_not_json_is_said_to_be_none(client: Client) -> None:
    with pytest.raises(Unavailable, match=r"GET https://.*/text answered 200 and no JSON"):
        client.get("/text")


@pytest.mark.parametrize("head, status", [
    (b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked", 411),
    (b"POST /echo HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2", 411),
    (b"POST /echo HTTP/1.1\r\ncontent-length: -1", 411), (b"POST /echo HTTP/1.1\r\ncontent-length: 67108865", 413),
    (b"BREW /pot HTTP/1.1", 501), (b"GET / HTTP/9.9", 505), (b"hello", 400), (b"GET  /a b c HTTP/1.1", 400),
    (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", 414), (b"GET / HTTP/1.1\r\n" + b"\r\n".join(b"a: b" for _ in range(200)), 431)])
def test_a_bad_request_is_answered_in_json_and_ends_the_connection(cluster: Certificates, server: Server,
                                                                   head: bytes, status: int) -> None:
    with dialled(cluster, server.address) as conn:
        code, body = exchange(conn, head + b"\r\n\r\n")
    assert code == status
    assert body["error"]["message"]


def test_a_body_that_is_too_large_is_refused_while_it_is_still_coming(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_server, "MAX_BODY", 1000)
    with pytest.raises(UsageError, match=r"^the body has 8000002 bytes, 1000 are the limit$"):
        client.post("/echo", "x" * 8_000_000)


def test_a_body_that_never_ends_is_dropped(cluster: Certificates, server: Server) -> None:
    with dialled(cluster, server.address) as conn:
        conn.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{}")
        socket.socket.shutdown(conn, socket.SHUT_WR)
        assert everything(conn) == b""
    eventually(lambda: server.connections == 0)


def test_many_requests_go_over_one_connection(client: Client, server: Server) -> None:
    for number in range(50):
        assert client.post("/echo", number)["body"] == number
    assert server.connections == 1


def test_silent_and_plain_clients_hold_up_nobody(client: Client, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(30):
            silent.enter_context(socket.create_connection(server.address))
        plain = silent.enter_context(socket.create_connection(server.address))
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        started = time.monotonic()
        assert client.get("/nothing") is None
        assert time.monotonic() - started < 5
        assert eventually(lambda: "spoke plain HTTP to a TLS port" in caplog.text)


def test_a_silent_client_is_let_go_after_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch,
                                                      caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(net_server, "HANDSHAKE_S", 0.1)
    with socket.create_connection(server.address, timeout=10) as silent:
        eventually(lambda: "did not finish the handshake in time" in caplog.text)
        assert silent.recv(1) == b""


def test_200_long_polls_wait_at_once_and_all_are_answered(cluster: Certificates) -> None:
    arrived, release = threading.Semaphore(0), threading.Event()

    def hold(request: Request) -> Response:
        arrived.release()
        release.wait(30)
        return Response(200, "news")

    request = b"GET /poll HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), hold) as server, contextlib.ExitStack() as stack:
        conns = [stack.enter_context(dialled(cluster, server.address)) for _ in range(200)]
        for conn in conns:
            conn.sendall(request)
        for _ in conns:
            assert arrived.acquire(timeout=30)
        release.set()
        assert all(everything(conn).endswith(b'"news"') for conn in conns)
        eventually(lambda: server.connections == 0)


def test_close_ends_long_polls_quickly_and_frees_the_port(cluster: Certificates) -> None:
    arrived, release = threading.Event(), threading.Event()

    def hold(request: Request) -> Response:
        arrived.set()
        release.wait(30)
        return Response()

    server = Server(("127.0.0.1", 0), cluster.control_plane().server_context(), hold)
    server.start()
    address = server.address
    with dialled(cluster, address) as conn:
        conn.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert arrived.wait(10)
        started = time.monotonic()
        server.close(wait_s=0.5)
        assert time.monotonic() - started < 10
        assert everything(conn) == b""
    release.set()
    Server(address, None, hold).close()    # the port is free again


def test_a_taken_port_is_one_sentence(server: Server) -> None:
    host, port = server.address
    with pytest.raises(LlmgwError, match=f"^cannot listen on {host}:{port}: Address already in use$"):
        Server(server.address, None, answer)


def test_nobody_listening_is_one_sentence(cluster: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with Client(url(address), cluster.node().client_context()) as client, pytest.raises(Unavailable) as caught:
        client.post("/echo", {})
    assert str(caught.value) == f"{url(address)}: connection refused"


def test_a_name_that_does_not_exist_is_one_sentence(cluster: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:     # asking a real name server can take ten seconds
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with Client("https://nowhere.invalid:1", cluster.node().client_context()) as client, \
            pytest.raises(Unavailable, match=r"^https://nowhere\.invalid:1: the name nowhere\.invalid is not known$"):
        client.get("/")


def test_a_server_that_speaks_no_tls_is_one_sentence(cluster: Certificates) -> None:
    with Server(("127.0.0.1", 0), None, answer) as plain, \
            Client(url(plain.address), cluster.node().client_context()) as client, \
            pytest.raises(Unavailable, match=r": the server does not speak TLS$"):
        client.get("/nothing")


def test_a_server_that_is_silent_in_the_handshake_is_given_up(cluster: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, \
            Client(url(silent.getsockname()), cluster.node().client_context(), connect_s=0.2) as client, \
            pytest.raises(Unavailable, match=r"no connection within 0\.2 s$"):
        client.post("/echo", {})


def whole_request(conn: ssl.SSLSocket) -> bytes:
    """A GET, or a POST whose body is an empty object: head and body may come apart."""
    data = conn.recv(65536)
    while data.startswith(b"POST") and not data.endswith(b"{}"):
        data += conn.recv(65536)
    return data


class Dying:
    """A TLS server that answers the first `answers` requests of each connection and hangs up on reading the next."""

    def __init__(self, cluster: Certificates, answers: int) -> None:
        self.requests = self.connections = 0
        self._answers, self._context = answers, cluster.control_plane().server_context()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Dying":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive(), "the client has left a connection open"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                self.connections += 1
                with self._context.wrap_socket(raw, server_side=True) as conn:
                    for turn in range(self._answers + 1):
                        self.requests += bool(whole_request(conn))
                        if turn < self._answers:
                            conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue")


def test_a_change_whose_connection_died_has_an_unknown_outcome_and_is_not_repeated(cluster: Certificates) -> None:
    with Dying(cluster, answers=1) as dying, Client(url(dying.address), cluster.node().client_context()) as client:
        assert client.get("/") is True
        with pytest.raises(UnknownOutcome, match="POST /ctl/v1/keys may or may not have been done"):
            client.post("/ctl/v1/keys", {})
        assert dying.requests == 2


def test_a_dead_kept_alive_connection_is_replaced_for_a_read_and_for_an_idempotent_call(cluster: Certificates) -> None:
    with Dying(cluster, answers=1) as dying, Client(url(dying.address), cluster.node().client_context()) as client:
        assert [client.get("/"), client.get("/"), client.post("/sync", {}, idempotent=True)] == [True, True, True]
        assert (dying.connections, dying.requests) == (3, 5)


def test_a_fresh_connection_that_dies_is_not_tried_again(cluster: Certificates) -> None:
    with Dying(cluster, answers=0) as dying, Client(url(dying.address), cluster.node().client_context()) as client:
        with pytest.raises(Unavailable, match="closed the connection before answering"):
            client.get("/")
        assert dying.requests == 1


def test_an_answer_that_does_not_come_in_time_is_unknown_for_changes_only(cluster: Certificates) -> None:
    release = threading.Event()

    def hold(request: Request) -> Response:
        release.wait(10)
        return Response()

    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), hold) as server, \
            Client(url(server.address), cluster.node().client_context()) as client:
        with pytest.raises(Unavailable, match=r"did not answer within 0\.2 s"):
            client.get("/", timeout_s=0.2)
        with pytest.raises(UnknownOutcome, match=r"did not answer within 0\.2 s"):
            client.delete("/ctl/v1/keys/k1", timeout_s=0.2)
        release.set()


def test_neither_proxies_nor_other_authorities_of_the_environment_count(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    assert client.get("/nothing") is None


def test_certifis_authorities_are_never_added(cluster: Certificates, client: Client) -> None:
    client.get("/nothing")
    context = cluster.node().client_context()
    with Client(client.url, context) as another:
        another.get("/nothing")
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("bad", ["10.0.0.1:7443", "http://10.0.0.1:7443", "https://", "https://a:x", "https://a:1/path",
                                 "https://u@a:1", ""])
def test_a_bad_url_is_refused_before_anything_is_dialled(cluster: Certificates, bad: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a server"):
        Client(bad, cluster.node().client_context())


def test_a_status_without_our_shape_is_named(cluster: Certificates) -> None:
    answer = Response(409, {"error": {"message": "busy"}})
    with Server(("127.0.0.1", 0), cluster.control_plane().server_context(), lambda _: answer) as busy, \
            Client(url(busy.address), cluster.node().client_context()) as client, pytest.raises(Blocked, match=r"^busy$"):
        client.post("/x")


@pytest.fixture(autouse=True)
def _log_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
