"""Heads remembered by their bytes mean what they meant when they were parsed, and nothing else passes for them."""

import hashlib
import random

import pytest

from lib.gateway.answers import Refusal
from lib.gateway.cells import Cells
from lib.gateway.heads import MEMORY, ReplyHeads, RequestHeads
from lib.gateway.limits import Key
from lib.gateway.routes import MODEL, OTHER, ROUTES, find_route
from lib.model.wire import KeyEntry
from lib.net.http1 import CHUNKED, BadMessage

KEY = "secret"
HASH = hashlib.sha256(KEY.encode()).hexdigest()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret"


def heads() -> RequestHeads:
    return RequestHeads({HASH: Key(KeyEntry("k", HASH), 0, 1, Cells(1))})


def test_requests_that_differ_in_length_only_share_one_memory() -> None:
    memory = heads()
    first, length = memory.find(HEAD + b"\r\nContent-Length: 7")
    again, other = memory.find(HEAD + b"\r\nContent-Length: 123456")
    assert (length, other) == (7, 123456)
    assert again is first
    assert memory.find(HEAD.replace(b"Host", b"Content-Length: 5\r\nHost"))[1] == 5


@pytest.mark.parametrize("good, bad", [
    (HEAD + b"\r\nContent-Length: 7", HEAD + b"\r\nContent-Length: 7\r\nContent-Length: 7"),
    (HEAD + b"\r\nContent-Length: 7", HEAD + b"\r\nContent-Length: 7\n"),
    (HEAD + b"\r\nContent-Length: 7", HEAD + b"\r\nContent-Length: 7, 7"),
    (HEAD + b"\r\nContent-Length: 7", HEAD + b"\r\nContent-Length: 77777777777777777777"),
    (HEAD + b"\r\nContent-Length: 7", HEAD),
    (HEAD + b"\r\nTransfer-Encoding: chunked", HEAD + b"\r\nContent-Length: 7\r\nTransfer-Encoding: chunked"),
    (HEAD.replace(b"POST /v1/chat/completions", b"GET /v1/models"), HEAD.replace(b"POST /v1/chat/completions", b"GET /v1/models")
     + b"\r\nContent-Length: 7"),
    (HEAD.replace(b"POST /v1/chat/completions", b"GET /v1/models") + b"\r\nContent-Length: 0",
     HEAD.replace(b"POST /v1/chat/completions", b"GET /v1/models") + b"\r\nContent-Length: 7"),
])
def test_a_bad_head_is_refused_though_its_good_neighbour_is_remembered(good: bytes, bad: bytes) -> None:
    memory = heads()
    memory.find(good)
    memory.find(good)
    with pytest.raises(BadMessage):
        memory.find(bad)
    with pytest.raises(BadMessage):
        memory.find(bad)


def test_memory_and_parse_agree_on_random_mutations() -> None:
    chance, memory = random.Random(3), heads()
    lines = [b"Content-Length: 7", b"Content-Length: 0", b"content-length:9", b"Transfer-Encoding: chunked", b"X: y",
             b"Content-Length:\t7", b"Accept: */*", b"Content-Length : 7", b"Connection: close"]
    for _ in range(5000):
        head = b"\r\n".join([chance.choice([HEAD, HEAD.replace(b"POST /v1/chat/completions", b"GET /v1/models")]),
                             *chance.choices(lines, k=chance.randint(0, 3))])
        assert outcome(memory, head) == outcome(heads(), head), head


def outcome(memory: RequestHeads, head: bytes) -> object:
    try:
        known, length = memory.find(head)
    except (BadMessage, Refusal) as err:
        return err.status
    return known.route, known.method, known.keep_alive, known.upstream, length


def test_the_memory_is_bounded() -> None:
    memory = heads()
    for number in range(MEMORY + 10):
        memory.find(HEAD + b"\r\nX: %d\r\nContent-Length: 1" % number)
    assert len(memory._sized) <= MEMORY


def test_a_refused_key_is_never_remembered() -> None:
    memory = heads()
    for _ in range(3):
        with pytest.raises(Refusal):
            memory.find(HEAD.replace(b"secret", b"wrong") + b"\r\nContent-Length: 7")
    assert not memory._sized


def test_a_compressed_body_is_415() -> None:
    with pytest.raises(Refusal) as refused:
        heads().find(HEAD + b"\r\nContent-Encoding: gzip\r\nContent-Length: 7")
    assert refused.value.status == 415


def test_response_heads_keep_their_framing_apart() -> None:
    memory = ReplyHeads()
    first, length = memory.find(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Type: text/event-stream")
    again, other = memory.find(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Type: text/event-stream")
    assert (length, other, again is first, first.event_stream) == (7, 9, True, True)
    assert memory.find(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked")[1] == CHUNKED
    assert memory.find(b"HTTP/1.1 204 No\r\nContent-Length: 0")[1] == 0
    for bad in (b"HTTP/1.1 204 No\r\nContent-Length: 3", b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked",
                b"HTTP/1.1 101 Switching", b"HTTP/1.1 999 What"):
        with pytest.raises(BadMessage):
            memory.find(bad)


def test_every_route_has_its_own_number_and_is_found_by_its_path() -> None:
    assert [route.index for route in ROUTES] == list(range(len(ROUTES)))
    for route in ROUTES:
        if route not in (OTHER, MODEL):
            assert find_route(route.path.encode())[0] is route
            assert find_route(route.path.encode() + b"/?q=1")[0] is route
    assert find_route(b"/v1/models/a%2Fb")[::2] == (MODEL, b"a%2Fb")
