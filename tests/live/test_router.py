"""A real router in front of real TLS guards: what is forwarded, what is refused, and in which words."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lib.model.wire import ModelRoute
from tests.certificates import Certificates
from tests.routers import KEY, Router, make_table, read_until, route, running, start, write_config
from tests.stub_engine import DONE, JSON, LAST_CHUNK, STREAM_HEAD, Connection, StubGuard, event

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def guard(certificates: Certificates) -> Iterator[StubGuard]:
    made = StubGuard(certificates.node())
    yield made
    made.close()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, guard: StubGuard) -> Iterator[Router]:
    models = {"m": route(guard.endpoint, aliases=("small",)), "down": ModelRoute(state="backoff: worker lost"),
              "org/name": route(replace(guard.endpoint, id="r2"))}
    with running(tmp_path_factory.mktemp("router"), certificates, make_table(models)) as made:
        yield made


def test_an_answer_is_forwarded_with_its_body_unchanged(router: Router, guard: StubGuard) -> None:
    body = b'{"model": "m",  "x_unknown": {"b": 1, "a": 12345678901234567890}, "temperature": 1e400}'
    status, answer, fields = router.ask(body=body)
    assert (status, answer) == (200, json.loads(JSON))
    assert guard.requests[-1][1] == body
    assert fields["x-llmgw-attempts"] == "1"
    assert fields["access-control-allow-origin"] == "*"


def test_the_upstream_head_is_written_anew_from_an_allow_list(router: Router, guard: StubGuard) -> None:
    body = json.dumps(CHAT).encode()
    router.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Forwarded-For: 1.2.3.4\r\n"
                b"OpenAI-Organization: o\r\nanthropic-version: v\r\nCookie: c\r\nX-Conversation-Id: 7\r\ntraceparent: t\r\n"
                b"OpenAI-Beta: b\r\nConnection: close, openai-beta\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (KEY.encode(), len(body), body))
    head = guard.requests[-1][0].lower()
    names = {line.partition(b":")[0] for line in head.split(b"\r\n")[1:]}
    assert names == {b"host", b"authorization", b"content-type", b"content-length", b"openai-organization", b"anthropic-version",
                     b"traceparent"}
    assert b"bearer engine-key-of-r1" in head
    assert KEY.encode() not in head


def test_an_alias_reaches_the_model_under_the_name_that_was_asked_for(router: Router, guard: StubGuard) -> None:
    assert router.ask(body={**CHAT, "model": "small"})[0] == 200
    assert json.loads(guard.requests[-1][1])["model"] == "small"


def test_a_connection_to_a_guard_is_used_again(router: Router, guard: StubGuard) -> None:
    router.ask(body=CHAT)
    before = guard.handshakes
    for _ in range(3):
        router.ask(body=CHAT)
    assert guard.handshakes == before


def test_a_stream_is_relayed_byte_by_byte_as_it_comes(router: Router, guard: StubGuard) -> None:
    text = event("gr\u00fc\u00df \U0001f600")

    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD)
        for byte in text:
            connection.send(bytes([byte]))
        connection.send(DONE + LAST_CHUNK)

    guard.script = script
    with router.connect() as sock:
        body = json.dumps({**CHAT, "stream": True}).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
                     % (KEY.encode(), len(body), body))
        answer = read_until(sock, LAST_CHUNK)
    assert answer.partition(b"\r\n\r\n")[2] == text + DONE + LAST_CHUNK


def test_the_fields_of_an_answer_are_an_allow_list_too(router: Router, guard: StubGuard) -> None:
    guard.script = lambda connection: connection.send(
        b"HTTP/1.1 422 Whatever\r\nContent-Type: text/x\r\nConnection: x-request-id\r\nX-Request-Id: 1\r\nServer: s\r\n"
        b"Set-Cookie: a=b\r\nLocation: /x\r\nX-RateLimit-Limit: 5\r\nContent-Length: 2\r\n\r\nno")
    status, answer, fields = router.ask(body=CHAT)
    assert (status, answer) == (422, "no")
    assert fields["content-type"] == "text/x"
    assert fields["x-ratelimit-limit"] == "5"
    assert not {"set-cookie", "location", "server", "x-request-id"} & set(fields)


def test_multipart_requests_are_routed_by_their_model_field(router: Router, guard: StubGuard) -> None:
    guard.script = lambda connection: connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    body = (b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff--b\r\n'
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n')
    assert router.ask("/v1/audio/transcriptions", body, headers={"content-type": "multipart/form-data; boundary=b"})[0] == 200
    assert guard.requests[-1][1] == body
    twice = body.replace(b'name="file"; filename="a.wav"', b'name="model"')
    assert router.ask("/v1/audio/transcriptions", twice, headers={"content-type": "multipart/form-data; boundary=b"})[0] == 400


@pytest.mark.parametrize("body", [
    b"", b"[]", b"null", b"17", b'"m"', b"{", b'{"messages":[]}', b'{"model":null}', b'{"model":7}', b'{"model":""}',
    b'{"model":"m","model":"m"}', b'{"mod\\u0065l":"other","model":"m"}', b'{"model":"m","x":NaN}', b'\xef\xbb\xbf{"model":"m"}',
    '{"model":"m"}'.encode("utf-16"), b'{"model":"m","x":"\xff"}', b'{"model":"m","x":' + b"[" * 65 + b"]" * 65 + b"}",
    b"[" * 10000, b'{"model":"m"}{}',
])
def test_a_body_that_cannot_be_understood_is_refused_and_never_forwarded(router: Router, guard: StubGuard, body: bytes) -> None:
    before = len(guard.requests)
    status, answer, _ = router.ask(body=body)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert len(guard.requests) == before


@pytest.mark.parametrize("body", [
    b'{"model":"m","prompt":["a"]}', b'{"model":"m","prompt":[1,2]}', b'{"model":"m","x":"\\ud800"}', b' \n{"model":"m"}',
    b'{"model":"m","x":' + b"[" * 63 + b"]" * 63 + b"}"])
def test_unusual_but_legal_bodies_pass(router: Router, guard: StubGuard, body: bytes) -> None:
    guard.script = lambda connection: connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert router.ask("/v1/completions", body)[0] == 200


def test_one_answer_to_every_bad_key_and_it_carries_cors(router: Router) -> None:
    answers = [router.ask(body=CHAT, key=key) for key in ("", "wrong", KEY + "x", KEY.upper())]
    assert {status for status, _, _ in answers} == {401}
    assert len({json.dumps(answer) for _, answer, _ in answers}) == 1
    assert answers[0][1]["error"]["code"] == "invalid_api_key"
    assert answers[0][2]["access-control-allow-origin"] == "*"
    assert KEY not in router.log


def test_a_key_may_come_as_x_api_key_but_not_twice(router: Router, guard: StubGuard) -> None:
    guard.script = lambda connection: connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert router.ask("/v1/messages", CHAT, key="", headers={"x-api-key": KEY})[0] == 200
    assert router.ask("/v1/messages", CHAT, headers={"x-api-key": KEY})[0] == 401


def test_an_unknown_model_is_404_and_one_without_a_replica_503(router: Router) -> None:
    status, answer, _ = router.ask(body={**CHAT, "model": "typo"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, answer, fields = router.ask(body={**CHAT, "model": "down"})
    assert (status, answer["error"]["code"]) == (503, "model_not_ready")
    assert "worker lost" in answer["error"]["message"]
    assert int(fields["retry-after"]) > 0


def test_models_are_listed_and_found_with_encoded_names(router: Router) -> None:
    _, answer, _ = router.ask("/v1/models")
    assert [model["id"] for model in answer["data"]] == ["down", "m", "org/name", "small"]
    assert {model["object"] for model in answer["data"]} == {"model"}
    assert router.ask("/v1/models/org%2Fname")[1]["id"] == "org/name"
    assert router.ask("/v1/models/org/name/")[1]["id"] == "org/name"
    assert router.ask("/v1/models/typo")[0] == 404
    assert router.ask("/v1/models", key="")[0] == 401


@pytest.mark.parametrize("path", [
    "/", "/v1", "/v1/../ctl", "//v1/chat/completions", "/v1/%2e%2e/x", "/v1/chat%2fcompletions", "/slots",
    "/v1/load_lora_adapter", "/v1/chat/completions//", "/metrics/x", "/invocations"])
def test_whatever_is_not_in_the_list_is_404(router: Router, guard: StubGuard, path: str) -> None:
    before = len(guard.requests)
    assert router.ask(path, CHAT)[0] == 404
    assert len(guard.requests) == before


def test_trailing_slash_and_query_are_tolerated(router: Router, guard: StubGuard) -> None:
    guard.script = lambda connection: connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert router.ask("/v1/embeddings/?a=%20b", CHAT)[0] == 200
    assert guard.requests[-1][0].startswith(b"POST /v1/embeddings?a=%20b HTTP/1.1\r\n")


def test_a_wrong_method_is_405_and_names_the_right_one(router: Router) -> None:
    status, _, fields = router.ask("/v1/chat/completions")
    assert (status, fields["allow"]) == (405, "POST, OPTIONS")


def test_preflight_needs_no_key(router: Router) -> None:
    status, _, fields = router.ask("/v1/chat/completions", key="", method="OPTIONS", headers={
        "Origin": "https://x", "Access-Control-Request-Headers": "authorization,x-stainless-os"})
    assert status == 204
    assert fields["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "POST" in fields["access-control-allow-methods"]


def test_health_ready_and_metrics_need_no_key_and_head_has_no_body(router: Router) -> None:
    assert router.ask("/health", key="")[1] == {"status": "ok"}
    assert router.ask("/ready", key="")[1] == {"status": "ready", "rev": 5}
    assert router.ask("/health", key="", method="HEAD")[:2] == (200, "")
    _, text, _ = router.ask("/metrics", key="")
    assert 'llmgw_router_replica_inflight{model="m",replica="r1",epoch="7"} 0' in text


def test_unknown_models_and_paths_make_no_new_series(router: Router) -> None:
    def series() -> int:
        return len([line for line in str(router.ask("/metrics", key="")[1]).splitlines() if not line.startswith("#")])
    router.ask("/nothing", CHAT)
    router.ask(body={**CHAT, "model": "typo"})
    before = series()
    for number in range(50):
        router.ask(f"/nothing/{number}", CHAT)
        router.ask(body={**CHAT, "model": f"typo{number}"})
    assert series() == before


def test_a_second_router_on_the_port_is_refused_in_one_line(router: Router, certificates: Certificates, tmp_path: Path) -> None:
    process = start(write_config(tmp_path, certificates, port=router.port))
    assert process.wait(20) == 1
    lines = (tmp_path / "router.log").read_text().splitlines()
    assert lines[0] == f"llmgw-router: cannot listen on 127.0.0.1:{router.port}: Address already in use"
