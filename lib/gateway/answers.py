"""The answers a router gives itself: errors in OpenAI's shape, and the fields every answer carries.

Room: gateway. Pure: values in, bytes out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lib.base.errors import LlmgwError

# A page from anywhere may call this API: what protects it is the key, and no cookie is involved.
CORS = b"access-control-allow-origin: *\r\naccess-control-expose-headers: retry-after, x-request-id, x-llmgw-attempts\r\n"

REASONS: Mapping[int, bytes] = {
    200: b"OK", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    405: b"Method Not Allowed", 408: b"Request Timeout", 411: b"Length Required", 413: b"Content Too Large",
    414: b"URI Too Long", 415: b"Unsupported Media Type", 417: b"Expectation Failed", 422: b"Unprocessable Content",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 500: b"Internal Server Error", 501: b"Not Implemented",
    502: b"Bad Gateway", 503: b"Service Unavailable", 504: b"Gateway Timeout", 505: b"HTTP Version Not Supported",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of our own, body included."""

    status: int
    body: bytes = b""
    content_type: bytes = b"application/json"
    fields: bytes = b""                    # further field lines, each with its CR LF

    def encode(self, *, keep_alive: bool, attempts: int = 0, head_only: bool = False) -> bytes:
        """The bytes to send; `head_only` answers HEAD."""
        entity = b"content-type: %s\r\ncontent-length: %d\r\n" % (self.content_type, len(self.body))
        if self.status == 204:
            entity = b""
        return b"".join((b"HTTP/1.1 %d %s\r\n" % (self.status, REASONS[self.status]), entity, CORS, self.fields,
                         b"x-llmgw-attempts: %d\r\n" % attempts, b"\r\n" if keep_alive else b"connection: close\r\n\r\n",
                         b"" if head_only else self.body))


class Refusal(LlmgwError):
    """A request that is answered with an error instead of being forwarded."""

    def __init__(self, status: int, message: str, *, code: str = "", param: str = "", retry_after_s: int = 0,
                 fields: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s, self.fields = status, code, param, retry_after_s, fields

    def answer(self) -> Answer:
        """As sent to the client."""
        retry = b"retry-after: %d\r\n" % self.retry_after_s if self.retry_after_s else b""
        return Answer(self.status, error_body(self.status, str(self), self.code, self.param), fields=self.fields + retry)


def error_body(status: int, message: str, code: str = "", param: str = "") -> bytes:
    """OpenAI's error object; the type follows from the status."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param or None, "code": code or None}}).encode()


def stream_error(message: str) -> bytes:
    """An error as the last event of a stream that broke."""
    return b"data: %s\n\n" % error_body(502, message, "stream_broken")


def json_answer(value: Any, *, fields: bytes = b"") -> Answer:
    """200 with a JSON body."""
    return Answer(200, json.dumps(value).encode(), fields=fields)


def no_key() -> Refusal:
    """The one answer to a missing, malformed, unknown or revoked key."""
    return Refusal(401, "Incorrect API key provided. Ask the operator of this service for one.", code="invalid_api_key",
                   fields=b"www-authenticate: Bearer\r\n")


def no_model(name: object) -> Refusal:
    """A model that is not in the table, or that the key may not use: the same to the client."""
    return Refusal(404, f"The model {str(name)[:200]!r} does not exist or you do not have access to it.", code="model_not_found",
                   param="model")


def no_table() -> Refusal:
    """Before the first table nobody's key is known, and no model either."""
    return Refusal(503, "This router has not had a table from the control plane yet.", code="no_table", retry_after_s=5)
