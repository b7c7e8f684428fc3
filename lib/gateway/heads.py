"""Request and response heads, understood once and remembered by their bytes.

Room: gateway. No I/O. A client library sends the same head again and again, but for its Content-Length: that is cut out, and
the rest looked up. Only heads that were parsed strictly and whose key was accepted are remembered, apart by whether they had a
Content-Length, so that a hit means what the parse meant. The memory lives as long as the router table it was made with.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from lib.gateway.answers import CORS, REASONS, Refusal, no_key, no_table
from lib.gateway.limits import Key
from lib.gateway.routes import Route, check_method, find_route
from lib.net.http1 import BadMessage, Fields, ResponseHead, field_tokens, parse_request, parse_response

T = TypeVar("T")
MEMORY = 4096                              # heads remembered
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,19})(?=\r|\Z)", re.IGNORECASE)

_UP = frozenset({b"content-type", b"accept", b"traceparent", b"tracestate", b"x-request-id"})
_UP_PREFIXES = (b"openai-", b"anthropic-")
_DOWN = frozenset({b"content-type", b"content-encoding", b"content-language", b"content-disposition", b"cache-control", b"date",
                   b"retry-after", b"x-request-id", b"x-accel-buffering"})
_DOWN_PREFIXES = (b"openai-", b"anthropic-", b"x-ratelimit-")


@dataclass(frozen=True, slots=True)
class Known:
    """A request head that was accepted. `upstream` is the head to send on, up to its Authorization and Content-Length."""

    route: Route
    method: bytes
    keep_alive: bool
    http_1_1: bool
    expects_continue: bool
    content_type: bytes
    key: Key | None
    upstream: bytes
    model_id: bytes                        # percent-encoded, of the route /v1/models/{model}
    asked_fields: bytes                    # Access-Control-Request-Headers of a preflight
    length: int                            # CHUNKED, or 0 where there was no Content-Length


class RequestHeads:
    """Request heads against one table's keys; None while there is no table."""

    def __init__(self, keys: Mapping[str, Key] | None) -> None:
        self._keys = keys
        self._sized: dict[bytes, Known] = {}
        self._plain: dict[bytes, Known] = {}

    def find(self, head: bytes) -> tuple[Known, int]:
        """What `head` (without its blank line) asks, and its body's length or CHUNKED. Raises BadMessage or Refusal."""
        match = _LENGTH.search(head)
        if match is None:
            known = self._plain.get(head)
            return (known, known.length) if known is not None else self._read(head, self._plain, head)
        start, end = match.span()
        rest = head[:start] + head[end:]
        known = self._sized.get(rest)
        return (known, int(match[1])) if known is not None else self._read(head, self._sized, rest)

    def _read(self, head: bytes, memory: dict[bytes, Known], rest: bytes) -> tuple[Known, int]:
        request = parse_request(head)
        route, target, model_id = find_route(request.target)
        check_method(route, request.method)
        if request.values(b"content-encoding") not in ([], [b"identity"]):
            raise Refusal(415, "A compressed body is not accepted here.", code="content_encoding")
        preflight = request.method == b"OPTIONS"
        key = self._check_key(request.fields) if route.keyed and not preflight else None
        known = Known(route, request.method, request.keep_alive, bool(request.minor), request.expects_continue,
                      next(iter(request.values(b"content-type")), b""), key, _upstream_head(target, request.fields), model_id,
                      next(iter(request.values(b"access-control-request-headers")), b""), min(request.length, 0))
        if request.method == b"POST" if memory is self._sized else request.length <= 0:    # a GET is not good with any length
            _remember(memory, rest, known)
        return known, request.length

    def _check_key(self, fields: Fields) -> Key:
        """The key behind `Authorization: Bearer` or `x-api-key`; exactly one must be given."""
        if self._keys is None:
            raise no_table()
        given = [value for name, value in fields if name in (b"authorization", b"x-api-key")]
        if len(given) != 1:
            raise no_key()
        scheme, blank, rest = given[0].partition(b" ")
        text = rest.strip(b" ") if blank and scheme.lower() == b"bearer" else given[0]
        key = self._keys.get(hashlib.sha256(text).hexdigest())
        if key is None:
            raise no_key()
        return key


def _remember(memory: dict[bytes, T], head: bytes, meaning: T) -> None:
    if len(memory) >= MEMORY:
        memory.clear()
    memory[head] = meaning


def _upstream_head(target: bytes, fields: Fields) -> bytes:
    dropped = field_tokens(fields, b"connection")
    lines = [b"POST %s HTTP/1.1\r\nhost: llmgw\r\n" % target]
    lines += [b"%s: %s\r\n" % field for field in fields
              if (field[0] in _UP or field[0].startswith(_UP_PREFIXES)) and field[0] not in dropped]
    return b"".join(lines)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response head from an engine. `head` is the one to send on, up to its framing."""

    status: int
    head: bytes
    keep_alive: bool
    event_stream: bool
    retry_after_s: int
    length: int


class ReplyHeads:
    """Response heads, whoever they came from."""

    def __init__(self) -> None:
        self._sized: dict[bytes, Reply] = {}
        self._plain: dict[bytes, Reply] = {}

    def find(self, head: bytes) -> tuple[Reply, int]:
        """What `head` says, and its body's length, CHUNKED or UNTIL_CLOSE. Raises BadMessage."""
        match = _LENGTH.search(head)
        if match is None:
            reply = self._plain.get(head)
            return (reply, reply.length) if reply is not None else self._read(head, self._plain, head)
        start, end = match.span()
        rest = head[:start] + head[end:]
        reply = self._sized.get(rest)
        return (reply, int(match[1])) if reply is not None else self._read(head, self._sized, rest)

    def _read(self, head: bytes, memory: dict[bytes, Reply], rest: bytes) -> tuple[Reply, int]:
        response = parse_response(head)
        if response.status == 101 or response.status > 599:
            raise BadMessage(f"response status {response.status}", 502)
        found = dict(response.fields)
        waiting = found.get(b"retry-after", b"")
        reply = Reply(response.status, _client_head(response), response.keep_alive,
                      found.get(b"content-type", b"").lower().startswith(b"text/event-stream"),
                      int(waiting) if waiting.isdigit() and len(waiting) < 6 else 0, min(response.length, 0))
        if response.status not in (204, 304) if memory is self._sized else response.length <= 0:
            _remember(memory, rest, reply)
        return reply, response.length


def _client_head(response: ResponseHead) -> bytes:
    dropped = field_tokens(response.fields, b"connection")
    lines = [b"HTTP/1.1 %d %s\r\n" % (response.status, REASONS.get(response.status, b"Status"))]
    lines += [b"%s: %s\r\n" % field for field in response.fields
              if (field[0] in _DOWN or field[0].startswith(_DOWN_PREFIXES)) and field[0] not in dropped]
    return b"".join(lines) + CORS

