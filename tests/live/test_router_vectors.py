"""Every vector through a running router: the status it must earn, the close that must follow, and a recording guard behind it
that must have seen exactly the good requests."""

import re
from collections.abc import Iterator

import pytest

from tests import http_vectors as vectors
from tests.certificates import Certificates
from tests.routers import KEY, Router, make_table, route, running
from tests.stub_engine import StubGuard

assert KEY.encode() in vectors.AUTH
CLOSE = b"GET /health HTTP/1.1\r\nHost: llmgw\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StubGuard, Router]]:
    certificates = Certificates(tmp_path_factory.mktemp("pki"))
    guard = StubGuard(certificates.node())
    with running(tmp_path_factory.mktemp("router"), certificates, make_table({"m": route(guard.endpoint)})) as router:
        yield guard, router
    guard.close()


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 ([0-9]{3}) ", answer)]


@pytest.mark.parametrize("name, data, status", vectors.BAD, ids=[name for name, _, _ in vectors.BAD])
def test_a_bad_request_is_refused_closed_and_not_forwarded(
        guard: tuple[StubGuard, Router], name: str, data: bytes, status: int) -> None:
    engine, router = guard
    good = vectors.GOOD[0][1]
    before = len(engine.requests)
    assert statuses(router.send(data)) == [status]
    assert statuses(router.send(data[:len(data) // 2], data[len(data) // 2:])) == [status]
    assert len(engine.requests) == before
    assert statuses(router.send(good + data + good)) == [200, status]
    assert [body for _, body in engine.requests[before:]] == [vectors.BODY]
    assert engine.surplus == b""


@pytest.mark.parametrize("name, data", vectors.GOOD, ids=[name for name, _ in vectors.GOOD])
def test_a_good_request_arrives_once_however_it_is_cut(guard: tuple[StubGuard, Router], name: str, data: bytes) -> None:
    engine, router = guard
    before = len(engine.requests)
    assert statuses(router.send(data + CLOSE)) == [200, 200]
    assert statuses(router.send(*(data[at:at + 1] for at in range(len(data))), CLOSE)) == [200, 200]
    assert statuses(router.send(data + data + CLOSE)) == [200, 200, 200]
    assert [body for _, body in engine.requests[before:]] == [vectors.BODY] * 4
    assert engine.surplus == b""


def test_a_remembered_head_does_not_let_a_bad_one_pass(guard: tuple[StubGuard, Router]) -> None:
    """Heads are remembered less their Content-Length: none of these may be taken for the one remembered."""
    engine, router = guard
    get = b"GET /v1/models HTTP/1.1\r\nHost: llmgw\r\n" + vectors.AUTH
    chunked = vectors.HEAD + vectors.CHUNKED
    assert statuses(router.send(vectors.GOOD[0][1] + get + b"\r\n" + chunked + b"\r\n" + vectors.CHUNKS + CLOSE)) == [200] * 4
    before = len(engine.requests)
    for head, length, status in ((get, b"13", 400), (chunked, b"13", 400), (vectors.HEAD + vectors.SIZED, b"13", 400),
                                 (vectors.HEAD + vectors.SIZED, b"0", 400), (get, b"x", 400)):
        assert statuses(router.send(head + b"Content-Length: " + length + b"\r\n\r\n" + vectors.BODY)) == [status]
    assert statuses(router.send(vectors.HEAD + b"\r\n")) == [411]
    assert len(engine.requests) == before
