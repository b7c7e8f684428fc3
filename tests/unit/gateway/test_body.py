"""Which model a body names, and every way of not naming one beyond doubt."""

import json
import random
import time
from contextlib import suppress

import pytest

from lib.gateway.answers import Refusal
from lib.gateway.body import model_of, rename_model

FORM = b"multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    rows = [b'--xyz\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % part for part in parts]
    return b"".join(rows) + b"--xyz--\r\n"


@pytest.mark.parametrize("body, model", [
    (b'{"model":"m"}', "m"), (b' {"a":{"model":"n"},"model":"org/m:1"} ', "org/m:1"), (b'{"mod\\u0065l":"m"}', "m"),
    ('{"model":"gr\u00fc\u00df"}'.encode(), "gr\u00fc\u00df"), (bytearray(b'{"model":"m"}'), "m"),
    (b'{"model":"m","text":"' + b"[{" * 500 + b'"}', "m"),
])
def test_json_bodies_that_name_a_model(body: bytes, model: str) -> None:
    assert model_of(body, b"application/json") == model


BAD = [
    b"", b"{", b"[]", b"1", b"null", b'{"a":1}', b'{"model":null}', b'{"model":1}', b'{"model":""}', b'{"model":["m"]}',
    b'{"model":"m","model":"m"}', b'{"model":"m","a":1,"a":2}', b'{"model":"m","a":NaN}', b'{"model":"m","a":-Infinity}',
    b'{"model":"m"}{}', b'{"model":"m",}', b"{'model':'m'}", b'{"model":"m","a":"\xff"}', b"\xef\xbb\xbf{}",
    '{"model":"m"}'.encode("utf-16"), b"[" * 100000, b'{"a":' * 100000, b'{"model":"m","a":' + b"[" * 64 + b"]" * 64 + b"}",
    b'{"model":"m","a":"\n"}', b'{"model":"m","a":' + b"1" * 5000 + b"}",
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_json_bodies_that_do_not(number: int) -> None:
    with pytest.raises(Refusal) as refused:
        model_of(BAD[number], b"application/json")
    assert refused.value.status == 400


def test_random_damage_is_refused_or_read_and_never_crashes() -> None:
    chance = random.Random(1)
    good = json.dumps({"model": "m", "messages": [{"role": "user", "content": "h\u00e9 \"q\" \\"}], "x": [1, 2.5, None]}).encode()
    for _ in range(5000):
        body = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        with suppress(Refusal):
            assert model_of(bytes(body), b"application/json")


def test_a_deep_body_is_refused_quickly() -> None:
    began = time.process_time()
    with pytest.raises(Refusal):
        model_of(b'{"model":"m","a":' + b'[{"a":' * 1_000_000, b"application/json")
    assert time.process_time() - began < 2


def test_the_model_field_of_a_form_wherever_it_stands() -> None:
    assert model_of(form((b"model", b"m")), FORM) == "m"
    assert model_of(form((b"file", b"\x00\r\n--not\r\n\xff"), (b"model", b"m"), (b"x", b"y")), FORM) == "m"
    assert model_of(form((b"model", b"m")), b'multipart/form-data; charset=x; boundary="xyz"') == "m"


@pytest.mark.parametrize("body, content_type", [
    (form((b"file", b"x")), FORM), (form((b"model", b"m"), (b"model", b"n")), FORM), (form((b"model", b"m"))[:-8], FORM),
    (b"", FORM), (form((b"model", b"\xff")), FORM), (form((b"model", b"m")), b"multipart/form-data"),
    (b"preamble" + form(), FORM), (b"--xyz\r\n" * 1000, FORM),
])
def test_forms_that_name_no_model(body: bytes, content_type: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        model_of(body, content_type)
    assert refused.value.status == 400


@pytest.mark.parametrize("body, renamed", [
    (b'{"model":"old","n":1}', b'{"model":"new","n":1}'),
    (b' { "messages" : [{"model": "old", "content": "\\"model\\": \\"old\\""}] , "model"\t:\n"old" } ',
     b' { "messages" : [{"model": "old", "content": "\\"model\\": \\"old\\""}] , "model"\t:\n"new" } '),
    ('{"a": 1e400, "b": 12345678901234567890, "c": "\u4e16\\u754c", "mod\\u0065l": "old"}'.encode(),
     '{"a": 1e400, "b": 12345678901234567890, "c": "\u4e16\\u754c", "mod\\u0065l": "new"}'.encode()),
])
def test_a_renamed_model_changes_no_other_byte(body: bytes, renamed: bytes) -> None:
    assert model_of(body, b"application/json") == "old"
    assert rename_model(body, "new") == renamed
    assert model_of(renamed, b"application/json") == "new"
