"""The parser alone: every vector whole, byte by byte and split in two everywhere; garbage earns BadMessage and nothing else."""

import random
from collections.abc import Iterable

import pytest

from lib.net import http1
from lib.net.http1 import BadMessage
from lib.net.http1_chunks import ChunkReader
from tests import http_vectors as vectors


class Reader:
    """A server's reading of one connection: bodies in `bodies`, and the status of the first refusal."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 0
        self._data = b""
        self._head: http1.RequestHead | None = None
        self._chunks: ChunkReader | None = None

    def feed(self, data: bytes) -> None:
        self._data += data
        try:
            while not self.status and self._step():
                pass
        except BadMessage as err:
            self.status = err.status

    def _step(self) -> bool:
        if self._head is None:
            return self._read_head()
        return self._read_chunks() if self._chunks is not None else self._read_sized(self._head.length)

    def _read_head(self) -> bool:
        start, end = http1.find_head(self._data)
        if end < 0:
            return False
        self._head = http1.parse_request(self._data[start:end])
        self._data = self._data[end + 4:]
        if self._head.length > 64 << 20:
            raise BadMessage("too large", 413)
        self._chunks = ChunkReader(bytearray()) if self._head.length == http1.CHUNKED else None
        return True

    def _read_sized(self, length: int) -> bool:
        if len(self._data) < length:
            return False
        self._end(self._data[:length], length)
        return True

    def _read_chunks(self) -> bool:
        assert self._chunks is not None
        data, self._data = self._data, b""
        used = self._chunks.feed(data)
        if used >= 0:
            self._data = data
            self._end(bytes(self._chunks.sink or b""), used)
        return used >= 0

    def _end(self, body: bytes, used: int) -> None:
        self._data = self._data[used:]
        self.bodies.append(body)
        self._head = self._chunks = None


def read(pieces: Iterable[bytes]) -> Reader:
    reader = Reader()
    for piece in pieces:
        reader.feed(piece)
    return reader


def cuts(data: bytes) -> list[int]:
    step = max(1, len(data) // 400)        # vectors of 64 KiB need not be cut at every byte
    return [*range(1, len(data), step)]


@pytest.mark.parametrize("name, data, status", vectors.BAD, ids=[name for name, _, _ in vectors.BAD])
class TestBad:
    def test_refused_whole(self, name: str, data: bytes, status: int) -> None:
        reader = read([data])
        assert (reader.status, reader.bodies) == (status, [])

    def test_refused_byte_by_byte(self, name: str, data: bytes, status: int) -> None:
        assert read(data[i:i + 1] for i in range(len(data[:12000]))).status in ((status,) if len(data) < 12000 else (status, 0))

    def test_refused_wherever_it_is_cut(self, name: str, data: bytes, status: int) -> None:
        assert {read((data[:cut], data[cut:])).status for cut in cuts(data)} == {status}

    def test_refused_behind_a_good_one(self, name: str, data: bytes, status: int) -> None:
        reader = read([vectors.GOOD[0][1] + data])
        assert (reader.status, reader.bodies) == (status, [vectors.BODY])


@pytest.mark.parametrize("name, data", vectors.GOOD, ids=[name for name, _ in vectors.GOOD])
class TestGood:
    def test_read_whole_bytewise_split_and_twice(self, name: str, data: bytes) -> None:
        assert read([data]).bodies == [vectors.BODY]
        assert read(data[i:i + 1] for i in range(len(data))).bodies == [vectors.BODY]
        assert all(read((data[:cut], data[cut:])).bodies == [vectors.BODY] for cut in cuts(data))
        assert read([data + data]).bodies == [vectors.BODY] * 2


def test_mutated_requests_raise_bad_message_or_nothing() -> None:
    chance = random.Random(5)
    seeds = [data for _, data, _ in vectors.BAD if len(data) < 600] + [data for _, data in vectors.GOOD]
    alphabet = b"\r\n\t\x00 :;,0123456789abcdefxX_-\xff\x85"
    for _ in range(4000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data)):][:1] = b""
            data[chance.randrange(len(data))] = chance.choice(alphabet)
        cut = chance.randrange(len(data))
        whole, split = read([bytes(data)]), read([bytes(data[:cut]), bytes(data[cut:])])
        assert whole.bodies == split.bodies, bytes(data)


def test_names_are_lower_case_values_trimmed_and_order_kept() -> None:
    head = http1.parse_request(b"GET /a?b=%20c HTTP/1.1\r\nHost: x\r\nX-One: \t a b\t \r\nx-one:\r\nConnection: Foo, Close")
    assert head.target == b"/a?b=%20c"
    assert head.values(b"x-one") == [b"a b", b""]
    assert not head.keep_alive


def test_http_1_0_needs_no_host_and_closes_unless_asked() -> None:
    assert not http1.parse_request(b"GET / HTTP/1.0").keep_alive
    assert http1.parse_request(b"GET / HTTP/1.0\r\nConnection: keep-alive").keep_alive


def test_a_pathological_field_is_read_in_linear_time() -> None:
    with pytest.raises(BadMessage):
        http1.parse_request(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b" \t" * 15000 + b"\x00")


@pytest.mark.parametrize("head, length, alive", [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 12", 12, True),
    (b"HTTP/1.1 200 \r\nTransfer-Encoding: Chunked", http1.CHUNKED, True),
    (b"HTTP/1.1 200", http1.UNTIL_CLOSE, False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1", 1, False),
    (b"HTTP/1.1 204 No Content", 0, True),
    (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close", 0, False),
])
def test_good_response_heads(head: bytes, length: int, alive: bool) -> None:
    response = http1.parse_response(head)
    assert (response.length, response.keep_alive) == (length, alive)


@pytest.mark.parametrize("head", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1",
    b"HTTP/1.1 200 OK\nContent-Length: 1",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 3",
    b"HTTP/1.1 20 OK", b"HTTP/2 200", b"ICY 200 OK", b"", b"HTTP/1.1 200 OK\r\nX : y",
])
def test_bad_response_heads(head: bytes) -> None:
    with pytest.raises(BadMessage):
        http1.parse_response(head)


def test_a_follower_knows_whether_it_stands_between_chunks() -> None:
    chunks = ChunkReader()
    assert chunks.feed(b"3\r\nabc\r\n") == -1
    assert chunks.between_chunks
    chunks.feed(b"3\r\nab")
    assert not chunks.between_chunks
    assert chunks.feed(b"c\r\n0\r\n\r\nnext") == 8
