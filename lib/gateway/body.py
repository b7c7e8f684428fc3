"""Which model a request body asks for. Bodies are read, and rewritten in one case only: see `rename_model`.

Room: gateway. Pure. What two JSON readers could understand differently is refused: a duplicate key could route a request by
one model and have it answered as another.
"""

import json
import re
from typing import Any

from lib.gateway.answers import Refusal

Body = bytes | bytearray

DEPTH_LIMIT = 64
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_BOUNDARY = re.compile(rb'(?:^|;)[ \t]*boundary[ \t]*=[ \t]*(?:"([^"\r\n]{1,200})"|([^;,\s"]{1,200}))', re.IGNORECASE)
_PART_NAME = re.compile(rb'(?:^|;)[ \t]*name="([^"]*)"')


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_raw_decode = json.JSONDecoder().raw_decode
_decode = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_no_constant).decode


def bad_body(message: str, param: str = "") -> Refusal:
    """A body that cannot be understood."""
    return Refusal(400, message, code="invalid_body", param=param)


def model_of(body: Body, content_type: bytes) -> str:
    """The model a body names; Refusal (400) where it names none that is beyond doubt."""
    if content_type[:10].lower() == b"multipart/":
        return _model_in_multipart(body, content_type)
    return _model_in_json(body)


def _model_in_json(body: Body) -> str:
    if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT:
        _check_depth(body)
    try:
        pairs = _decode(body.decode())
    except UnicodeDecodeError:
        raise bad_body("The body is not UTF-8.") from None
    except (ValueError, RecursionError) as err:
        raise bad_body(f"The body is not JSON: {err}.") from None
    if type(pairs) is not tuple:
        raise bad_body("The body must be a JSON object.")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise bad_body("The body has a key twice.")
    model = fields.get("model")
    if type(model) is not str or not model:
        raise bad_body("You must name a model, as a string.", "model")
    return model


def rename_model(body: Body, name: str) -> bytes:
    """A JSON body that `model_of` has read, with its model's name replaced and every other byte as it was.

    For an alias that is younger than the engine: two of three real engines check the name, by what they were started with.
    """
    text = body.decode()
    at = _past_blanks(text, text.index("{") + 1)
    while True:
        key, at = _raw_decode(text, at)
        begin = _past_blanks(text, _past_blanks(text, at) + 1)
        _, end = _raw_decode(text, begin)
        if key == "model":
            return (text[:begin] + json.dumps(name) + text[end:]).encode()
        at = _past_blanks(text, _past_blanks(text, end) + 1)


def _past_blanks(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _check_depth(body: Body) -> None:
    """Refuse nesting that could exhaust the engine's parser, or ours, without parsing."""
    brackets = _STRINGS.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(DEPTH_LIMIT):           # each round takes the innermost level away
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise bad_body(f"The body is nested more than {DEPTH_LIMIT} deep, or its brackets do not match.")


def _model_in_multipart(body: Body, content_type: bytes) -> str:
    match = _BOUNDARY.search(content_type.partition(b";")[2])
    if not match:
        raise bad_body("The multipart body has no boundary in its Content-Type.")
    names = [value for name, value in _parts(body, b"--" + (match[1] or match[2])) if name == b"model"]
    if len(names) != 1:
        raise bad_body("A multipart body must have exactly one field named model.", "model")
    try:
        return names[0].decode()
    except UnicodeDecodeError:
        raise bad_body("The model's name is not UTF-8.", "model") from None


def _parts(body: Body, delimiter: bytes) -> list[tuple[bytes, bytes]]:
    """Name and content of each part; contents of other parts than `model` are left out, to copy no file."""
    found: list[tuple[bytes, bytes]] = []
    if not body.startswith(delimiter + b"\r\n"):
        raise bad_body("The multipart body does not begin with its boundary.")
    at = len(delimiter) + 2
    while True:
        head_end = body.find(b"\r\n\r\n", at, at + 16384)
        end = body.find(b"\r\n" + delimiter, head_end)
        if head_end < 0 or end < 0 or len(found) >= 200:
            raise bad_body("The multipart body is damaged.")
        name = _part_name(bytes(body[at:head_end]))
        found.append((name, bytes(body[head_end + 4:end]) if name == b"model" else b""))
        after = end + 2 + len(delimiter)
        if body[after:after + 2] == b"--":
            return found
        if body[after:after + 2] != b"\r\n":
            raise bad_body("The multipart body is damaged.")
        at = after + 2


def _part_name(head: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.lower() == b"content-disposition":
            match = _PART_NAME.search(value.partition(b";")[2])
            return match[1] if match else b""
    return b""
