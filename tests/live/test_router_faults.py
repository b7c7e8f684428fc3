"""What a router does when replicas, clients or the control plane misbehave: one test per fault, against real TLS guards."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from lib.model.wire import KeyLimits
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.routers import KEY, Router, make_table, read_all, read_until, route, running, start, stop
from tests.stub_engine import DONE, LAST_CHUNK, OK, STREAM_HEAD, Connection, Script, StubGuard, answer_ok, chunk, event

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


def request(body: Any, *, version: bytes = b"1.1", more: bytes = b"") -> bytes:
    data = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/%s\r\nHost: x\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s"
            % (version, KEY.encode(), more, len(data), data))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


@contextmanager
def in_front_of(directory: Path, certificates: Certificates, *guards: StubGuard, limits: KeyLimits | None = None, more: str = "",
                workers: int = 1, max_inflight: int = 0, limit_files: int = 0) -> Iterator[Router]:
    models = {"m": route(*(guard.endpoint for guard in guards), max_inflight=max_inflight)}
    with running(directory, certificates, make_table(models, limits=limits), more=more, workers=workers,
                 limit_files=limit_files) as router:
        yield router
    for guard in guards:
        guard.close()


def idle(router: Router) -> bool:
    return router.metric("llmgw_router_replica_inflight") == 0


def until_closed(connection: Connection) -> None:
    connection.wait_closed()


def streaming(*events: bytes, then: Script = lambda connection: None) -> Script:
    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD + b"".join(events))
        then(connection)
    return script


# -- replicas that fail --

def test_a_replica_that_refuses_connections_is_passed_over(tmp_path: Path, certificates: Certificates) -> None:
    dead, live = StubGuard(certificates.node(), id="dead"), StubGuard(certificates.node(), id="live")
    dead.close()
    with in_front_of(tmp_path, certificates, dead, live) as router:
        answers = [router.ask(body=CHAT) for _ in range(12)]
        assert {status for status, _, _ in answers} == {200}
        assert {fields["x-llmgw-attempts"] for _, _, fields in answers} == {"1", "2"}
        assert [fields["x-llmgw-attempts"] for _, _, fields in answers[-4:]] == ["1"] * 4     # by then it is left alone
        assert len(live.requests) == 12
        assert idle(router)


def test_another_epoch_on_the_port_fails_the_handshake_and_gets_nothing(tmp_path: Path, certificates: Certificates) -> None:
    stale, live = StubGuard(certificates.node(), id="stale", listens_for="e6-bb"), StubGuard(certificates.node(), id="live")
    with in_front_of(tmp_path, certificates, stale, live) as router:
        assert {router.ask(body=CHAT)[0] for _ in range(4)} == {200}
        assert stale.requests == []


@pytest.mark.parametrize("who", ["other node", "operator", "other cluster", "other authority", "revoked"])
def test_a_guard_that_is_not_the_node_of_the_table_gets_nothing(tmp_path: Path, certificates: Certificates, who: str) -> None:
    (tmp_path / "pki2").mkdir()
    pair = {"other node": certificates.node("llmgw-node02"), "operator": certificates.operator("llmgw-node01"),
            "other cluster": certificates.of_cluster("other", certificates.node()),
            "other authority": Certificates(tmp_path / "pki2").node(), "revoked": certificates.node()}[who]
    guard = StubGuard(pair)
    revoked = (serial_of(certificates),) if who == "revoked" else ()
    with running(tmp_path / "r", certificates, make_table({"m": route(guard.endpoint)}, revoked=revoked)) as router:
        status, answer, fields = router.ask(body=CHAT)
        assert (status, answer["error"]["code"]) == (503, "upstream_handshake")
        assert int(fields["retry-after"]) > 0
        assert guard.requests == []
    guard.close()


def serial_of(certificates: Certificates) -> str:
    from cryptography import x509
    return f"{x509.load_pem_x509_certificate(certificates.node().cert.read_bytes()).serial_number:x}"


def test_an_expired_node_certificate_does_not_stop_serving(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.expired(certificates.node()))
    with in_front_of(tmp_path, certificates, guard) as router:
        assert router.ask(body=CHAT)[0] == 200


def test_a_reused_connection_that_died_is_replaced_once_without_an_error(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node())
    with in_front_of(tmp_path, certificates, guard) as router:
        assert router.ask(body=CHAT)[0] == 200
        died = len(guard.requests)

        def once_more(connection: Connection) -> None:
            guard.script = answer_ok
            connection.reset()
        guard.script = once_more
        status, _, fields = router.ask(body=CHAT)
        assert (status, fields["x-llmgw-attempts"]) == (200, "2")
        assert len(guard.requests) == died + 2


def test_a_fresh_connection_that_dies_before_a_byte_is_not_asked_again(tmp_path: Path, certificates: Certificates) -> None:
    guards = [StubGuard(certificates.node(), id=id, script=lambda connection: connection.reset()) for id in ("a", "b")]
    with in_front_of(tmp_path, certificates, *guards) as router:
        status, answer, fields = router.ask(body=CHAT)
        assert (status, answer["error"]["code"], fields["x-llmgw-attempts"]) == (502, "upstream_before_response", "1")
        assert sum(len(guard.requests) for guard in guards) == 1
        assert idle(router)


@pytest.mark.parametrize("ending", ["close", "reset", "bad chunk"])
def test_a_broken_stream_ends_with_an_error_event_and_never_looks_whole(
        tmp_path: Path, certificates: Certificates, ending: str) -> None:
    endings: dict[str, Script] = {"close": Connection.close, "reset": lambda connection: connection.reset(),
                                  "bad chunk": lambda connection: connection.send(b"zz\r\n")}
    guard = StubGuard(certificates.node(), script=streaming(*[event("x")] * 5, then=lambda connection: broken(connection)))

    seen = threading.Event()

    def broken(connection: Connection) -> None:
        assert seen.wait(20)               # or a reset would overtake what was sent
        endings[ending](connection)

    with in_front_of(tmp_path, certificates, guard) as router:
        with router.connect() as sock:
            sock.sendall(request(STREAM))
            answer = read_until(sock, b'"content":"x"')
            while answer.count(b'"content":"x"') < 5:
                answer += sock.recv(65536)
            seen.set()
            answer += read_all(sock)
        assert answer.count(b'"content":"x"') == 5
        assert b"[DONE]" not in answer
        assert not answer.endswith(LAST_CHUNK)
        assert b'data: {"error": {' in answer
        client = openai.OpenAI(base_url=router.url + "/v1", api_key=KEY, max_retries=0)
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True))
        assert idle(router)
        client.close()


def test_a_stream_that_breaks_inside_a_chunk_is_cut(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=streaming(event("x"), b"40\r\ndata: {", then=Connection.close))
    with in_front_of(tmp_path, certificates, guard) as router:
        answer = router.send(request(STREAM))
        assert answer.endswith(b"40\r\ndata: {")


def test_a_body_shorter_than_declared_breaks_the_clients_connection(tmp_path: Path, certificates: Certificates) -> None:
    def script(connection: Connection) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this")
        connection.close()
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node(), script=script)) as router:
        answer = router.send(request(CHAT))
        assert answer.endswith(b"content-length: 100\r\nx-llmgw-attempts: 1\r\n\r\nonly this")
        assert idle(router)


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\x15\x03\x01\r\n\r\n",
], ids=["two lengths", "LF", "huge", "204", "101", "rubbish"])
def test_a_replica_that_does_not_speak_http_is_502(tmp_path: Path, certificates: Certificates, data: bytes) -> None:
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node(), script=lambda c: c.send(data))) as router:
        status, answer, _ = router.ask(body=CHAT)
        assert (status, answer["error"]["code"]) == (502, "upstream_protocol")
        assert idle(router)


def test_bytes_after_an_answer_never_reach_the_next_request(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=lambda c: c.send(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"))
    with in_front_of(tmp_path, certificates, guard) as router:
        assert b"evil" not in router.send(request(CHAT) + request(CHAT, more=b"Connection: close\r\n"))


@pytest.mark.parametrize("status", [429, 503])
def test_an_engine_that_refuses_is_passed_over_and_left_alone_as_long_as_it_asked(
        tmp_path: Path, certificates: Certificates, status: int) -> None:
    busy = b"HTTP/1.1 %d Busy\r\nretry-after: 30\r\ncontent-length: 4\r\n\r\nbusy" % status
    full = StubGuard(certificates.node(), id="full", script=lambda c: c.send(busy))
    free = StubGuard(certificates.node(), id="free")
    with in_front_of(tmp_path, certificates, full, free) as router:
        assert {router.ask(body=CHAT)[0] for _ in range(8)} == {200}
        assert len(full.requests) == 1
        free.script = full.script
        code, answer, fields = router.ask(body=CHAT)
        assert (code, answer, fields["retry-after"]) == (status, "busy", "30")      # the engine's own words, once
        assert idle(router)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_an_engines_error_passes_through_and_is_not_retried(tmp_path: Path, certificates: Certificates, status: int) -> None:
    error = b'{"error":{"message":"no","type":"t","code":null,"param":null}}'
    reply = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(error), error)
    guards = [StubGuard(certificates.node(), id=id, script=lambda c: c.send(reply)) for id in ("a", "b")]
    with in_front_of(tmp_path, certificates, *guards) as router:
        for _ in range(20):
            assert router.ask(body=CHAT)[:2] == (status, json.loads(error))
        assert sum(len(guard.requests) for guard in guards) == 20
        for guard in guards:
            guard.script = answer_ok
        assert router.ask(body=CHAT)[0] == 200


def test_a_single_replica_that_fails_is_still_tried(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=lambda connection: connection.reset())
    with in_front_of(tmp_path, certificates, guard) as router:
        assert {router.ask(body=CHAT)[0] for _ in range(8)} == {502}
        guard.script = answer_ok
        assert router.ask(body=CHAT)[0] == 200


def test_an_answer_that_does_not_begin_in_time_is_504_and_cancelled(tmp_path: Path, certificates: Certificates) -> None:
    gone = threading.Event()

    def script(connection: Connection) -> None:
        if connection.wait_closed():
            gone.set()
    guard = StubGuard(certificates.node(), script=script)
    with in_front_of(tmp_path, certificates, guard, more="[timeouts]\nfirst_byte = 0.5") as router:
        status, answer, _ = router.ask(body=CHAT)
        assert (status, answer["error"]["code"]) == (504, "upstream_timeout")
        assert gone.wait(5)
        assert len(guard.requests) == 1
        assert idle(router)


def test_a_stream_that_falls_silent_is_ended_with_an_error(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=streaming(event("x"), then=until_closed))
    with in_front_of(tmp_path, certificates, guard, more="[timeouts]\ninter_token = 0.5") as router:
        answer = router.send(request(STREAM))
        assert b'"content":"x"' in answer
        assert b"stream_broken" in answer
        assert not answer.endswith(LAST_CHUNK)


def test_a_stream_left_open_after_done_is_ended_whole(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=streaming(event("x"), DONE, then=until_closed))
    with in_front_of(tmp_path, certificates, guard) as router:
        assert router.send(request(STREAM, more=b"Connection: close\r\n")).endswith(DONE + LAST_CHUNK)
        eventually(lambda: not guard.live)


# -- clients that misbehave --

def test_a_client_that_goes_away_cancels_upstream_at_once(tmp_path: Path, certificates: Certificates) -> None:
    gone_at: list[float] = []

    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD + event("x"))
        connection.wait_closed()
        gone_at.append(time.monotonic())
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node(), script=script)) as router:
        sock = router.connect()
        sock.sendall(request(STREAM))
        read_until(sock, b'"content":"x"')
        left_at = time.monotonic()
        sock.close()
        eventually(lambda: gone_at)
        assert gone_at[0] - left_at < 1.0    # the promise itself
        assert idle(router)
        assert router.metric('llmgw_router_requests_total{route="/v1/chat/completions",status="499"}') == 1


def test_a_client_that_does_not_read_holds_no_memory_and_is_cut(tmp_path: Path, certificates: Certificates) -> None:
    block = chunk(b"data: " + b"x" * 60000 + b"\n\n")

    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD)
        for _ in range(1000):
            connection.send(block)
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node(), script=script),
                     more="[timeouts]\nwrite_stall = 1.5") as router:
        before = memory_kib(router)
        sock = router.connect()
        sock.sendall(request(STREAM))
        read_until(sock, b"data: ")
        eventually(lambda: idle(router), timeout_s=15)
        assert memory_kib(router) - before < 4096
        sock.close()


def memory_kib(router: Router) -> int:
    text = Path(f"/proc/{router.workers()[0]}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))


def test_a_slow_reader_gets_everything(tmp_path: Path, certificates: Certificates) -> None:
    events = [chunk(b"data: %d " % number + b"x" * 20000 + b"\n\n") for number in range(400)]
    guard = StubGuard(certificates.node(), script=streaming(*events, DONE + LAST_CHUNK))
    with in_front_of(tmp_path, certificates, guard) as router:
        sock = router.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.sendall(request(STREAM, more=b"Connection: close\r\n"))
        answer = b""
        while more := sock.recv(30000):
            answer += more
            time.sleep(0.001)
        sock.close()
        assert answer.partition(b"\r\n\r\n")[2] == b"".join(events) + DONE + LAST_CHUNK


def test_a_head_that_trickles_is_408(tmp_path: Path, certificates: Certificates) -> None:
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node()), more="[timeouts]\nhead = 1") as router, \
            router.connect() as sock:
        began, data = time.monotonic(), request(CHAT)
        sock.settimeout(0.1)
        answer = b""
        for at in range(len(data)):
            sock.sendall(data[at:at + 1])
            try:
                answer = sock.recv(4096)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 10    # all of it would take twice as long


def test_silent_connections_harm_nobody(tmp_path: Path, certificates: Certificates) -> None:
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node())) as router:
        silent = [router.connect() for _ in range(400)]
        assert router.ask(body=CHAT)[0] == 200
        assert router.metric("llmgw_router_connections") >= 400
        for sock in silent:
            sock.close()
        eventually(lambda: router.metric("llmgw_router_connections") < 5)


def test_a_router_out_of_descriptors_recovers(tmp_path: Path, certificates: Certificates) -> None:
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node()), limit_files=64) as router:
        many = [router.connect() for _ in range(100)]
        for sock in many:
            sock.close()
        eventually(lambda: router.ask(body=CHAT)[0] == 200)


def test_bodies_up_to_the_limit_pass_and_above_it_the_limit_is_named(tmp_path: Path, certificates: Certificates) -> None:
    guard, limit = StubGuard(certificates.node()), 1 << 20
    with in_front_of(tmp_path, certificates, guard, more="[limits]\nbody_mib = 1") as router:
        frame = len(json.dumps({**CHAT, "x": ""}))
        for size, status in ((limit - 1, 200), (limit, 200), (limit + 1, 413)):
            body = json.dumps({**CHAT, "x": "y" * (size - frame)}).encode()
            assert len(body) == size
            code, answer, _ = router.ask(body=body)
            assert code == status
            if status == 413:
                assert str(limit) in answer["error"]["message"]
            chunked = b"".join(chunk(body[at:at + 50000]) for at in range(0, size, 50000)) + LAST_CHUNK
            head = request(CHAT, more=b"Connection: close\r\n").partition(b"Content-Length")[0]
            got = router.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
            assert got.startswith(b"HTTP/1.1 %d " % status)
            if status == 200:
                assert guard.requests[-1][1] == body


def test_expect_100_continue_is_answered_at_once_or_finally(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node())
    with in_front_of(tmp_path, certificates, guard) as router:
        head, _, body = request(CHAT, more=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        with router.connect() as sock:
            sock.sendall(head + b"\r\n\r\n")
            assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            assert read_until(sock, b"choices").startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"expect" not in guard.requests[-1][0].lower()
        assert router.send(head.replace(KEY.encode(), b"bad") + b"\r\n\r\n").startswith(b"HTTP/1.1 401 ")


def test_a_client_of_http_1_0_gets_its_stream_without_chunks(tmp_path: Path, certificates: Certificates) -> None:
    with in_front_of(tmp_path, certificates,
                     StubGuard(certificates.node(), script=streaming(event("x"), DONE + LAST_CHUNK))) as router:
        answer = router.send(request(STREAM, version=b"1.0"))
        assert b"chunked" not in answer
        assert answer.endswith(b'"x"}}]}\n\ndata: [DONE]\n\n')


# -- limits --

def test_a_keys_limits_are_counted_over_all_workers(tmp_path: Path, certificates: Certificates) -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        release.wait(20)
        connection.send(OK)
    guard = StubGuard(certificates.node(), script=script)
    with in_front_of(tmp_path, certificates, guard, limits=KeyLimits(concurrency=2), workers=2) as router:
        waiting = [router.connect() for _ in range(2)]
        for sock in waiting:
            sock.sendall(request(CHAT, more=b"Connection: close\r\n"))
        eventually(lambda: len(guard.requests) == 2)
        for _ in range(8):
            status, answer, fields = router.ask(body=CHAT)
            assert (status, answer["error"]["code"]) == (429, "concurrency_limit")
            assert int(fields["retry-after"]) >= 1
        release.set()
        assert all(b"200 OK" in read_all(sock) for sock in waiting)
        assert router.ask(body=CHAT)[0] == 200
        for sock in waiting:
            sock.close()


def test_requests_per_minute_and_models_of_a_key(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node())
    limits = KeyLimits(models=("m",), requests_per_minute=5)
    table = make_table({"m": route(guard.endpoint, aliases=("small",)), "n": route(guard.endpoint)}, limits=limits)
    with running(tmp_path, certificates, table) as router:
        assert router.ask(body={**CHAT, "model": "n"})[1]["error"]["code"] == "model_not_found"
        assert [model["id"] for model in router.ask("/v1/models")[1]["data"]] == ["m", "small"]
        statuses = [router.ask(body={**CHAT, "model": "small"})[0] for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2
    guard.close()


def test_a_full_replica_gets_no_more_than_it_may_have(tmp_path: Path, certificates: Certificates) -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        release.wait(20)
        connection.send(OK)
    guards = [StubGuard(certificates.node(), id=id, script=script) for id in ("a", "b")]
    with in_front_of(tmp_path, certificates, *guards, max_inflight=1) as router:
        waiting = [router.connect() for _ in range(2)]
        for sock in waiting:
            sock.sendall(request(CHAT, more=b"Connection: close\r\n"))
        eventually(lambda: [len(guard.requests) for guard in guards] == [1, 1])
        status, answer, fields = router.ask(body=CHAT)
        assert (status, answer["error"]["code"], fields["retry-after"]) == (503, "overloaded", "1")
        release.set()
        for sock in waiting:
            read_all(sock)
            sock.close()
        assert idle(router)


# -- the router itself --

def test_sigterm_lets_streams_finish_and_flips_readiness_first(tmp_path: Path, certificates: Certificates) -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD + event("x"))
        release.wait(20)
        connection.send(DONE + LAST_CHUNK)
    with in_front_of(tmp_path, certificates, StubGuard(certificates.node(), script=script),
                     more="[timeouts]\nsettle = 1.5") as router:
        sock = router.connect()
        sock.sendall(request(STREAM))
        read_until(sock, b'"content":"x"')
        router.process.send_signal(signal.SIGTERM)
        eventually(lambda: router.ask("/ready", key="")[0] == 503)
        assert router.ask("/v1/models")[0] == 200          # still served while load balancers take note
        eventually(lambda: refused(router))
        release.set()
        assert read_until(sock, LAST_CHUNK).endswith(DONE + LAST_CHUNK)
        assert router.process.wait(10) == 0
        sock.close()


def refused(router: Router) -> bool:
    try:
        router.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_streams_that_outlast_the_grace_end_with_an_error(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=streaming(event("x"), then=until_closed))
    with in_front_of(tmp_path, certificates, guard, more="[timeouts]\nsettle = 0\nstop = 0.5") as router:
        sock = router.connect()
        sock.sendall(request(STREAM))
        read_until(sock, b'"content":"x"')
        router.process.send_signal(signal.SIGTERM)
        answer = read_all(sock)
        assert b"stream_broken" in answer
        assert not answer.endswith(LAST_CHUNK)
        assert router.process.wait(10) == 0
        sock.close()


def test_a_worker_that_dies_is_replaced_and_its_gauges_with_it(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node(), script=streaming(event("x"), then=until_closed))
    with in_front_of(tmp_path, certificates, guard) as router:
        sock = router.connect()
        sock.sendall(request(STREAM))
        read_until(sock, b'"content":"x"')
        victim = router.workers()[0]
        os.kill(victim, signal.SIGKILL)
        read_all(sock)
        sock.close()
        guard.script = answer_ok
        eventually(lambda: router.ask(body=CHAT)[0] == 200)
        assert victim not in router.workers()
        assert idle(router)


def test_a_killed_parent_leaves_the_port_to_its_successor(tmp_path: Path, certificates: Certificates) -> None:
    guard = StubGuard(certificates.node())
    with in_front_of(tmp_path, certificates, guard, workers=2) as router:
        children = router.workers()
        router.process.kill()
        router.process.wait()
        eventually(lambda: refused(router), timeout_s=2)
        again = start(tmp_path / "router.toml")
        try:
            eventually(lambda: router.ask(body=CHAT)[0] == 200)
            eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        finally:
            stop(again)


def test_a_router_without_a_table_says_so(tmp_path: Path, certificates: Certificates) -> None:
    with running(tmp_path, certificates, None) as router:
        assert router.ask("/health", key="")[0] == 200
        assert router.ask("/ready", key="")[1]["error"]["code"] == "no_table"
        assert router.ask(body=CHAT)[0] == 503


@pytest.mark.parametrize("damage", ["{", '{"rev": 1}', "[]", ""])
def test_a_damaged_table_on_disk_is_not_used_and_named(tmp_path: Path, certificates: Certificates, damage: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "table.json").write_text(damage)
    with running(tmp_path, certificates, None) as router:
        assert router.ask("/ready", key="")[0] == 503
        assert "table on disk" in router.log or "kept on disk" in router.log


def test_degraded_replicas_come_last(tmp_path: Path, certificates: Certificates) -> None:
    slow, good = StubGuard(certificates.node(), id="slow"), StubGuard(certificates.node(), id="good")
    table = make_table({"m": route(replace(slow.endpoint, state="degraded"), good.endpoint)})
    with running(tmp_path, certificates, table) as router:
        for _ in range(6):
            router.ask(body=CHAT)
        assert (len(slow.requests), len(good.requests)) == (0, 6)
    slow.close()
    good.close()
