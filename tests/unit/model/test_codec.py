"""Types to JSON and back, strictly: what does not fit names its field, what is newer is passed over."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from lib.base.errors import UsageError
from lib.model.codec import decode, encode


class Colour(StrEnum):
    RED, UNKNOWN = "red", "unknown"


class Size(StrEnum):
    BIG, SMALL = "big", "small"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Whole:
    id: str
    weight: float = 0.0
    ready: bool = False
    colour: Colour = Colour.RED
    size: Size = Size.BIG
    main: Part | None = None
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    anything: Any = None


FULL = Whole("w", 1.5, True, Colour.RED, Size.SMALL, Part("m", 2), (Part("a"), Part("b", 3)), {"x": Part("y")}, {"k": "v"},
             [1, {}])


@pytest.mark.parametrize("value", [FULL, Whole("only")], ids=["full", "defaults"])
def test_what_goes_out_comes_back_the_same(value: Whole) -> None:
    assert decode(Whole, json.loads(json.dumps(encode(value)))) == value


def test_containers_of_dataclasses_become_plain_json() -> None:
    assert encode({"a": (Part("x"), Colour.RED), 2: frozenset({1})}) == {"a": [{"name": "x", "count": 1}, "red"], "2": [1]}


def test_fields_of_a_newer_peer_are_ignored_and_those_of_an_older_one_take_their_defaults() -> None:
    assert decode(Part, {"name": "x", "invented_later": [1]}) == Part("x", 1)


def test_an_unknown_word_is_unknown_where_that_can_be_said() -> None:
    assert decode(Whole, {"id": "w", "colour": "ultraviolet"}).colour is Colour.UNKNOWN


def test_an_unknown_word_is_refused_where_it_cannot() -> None:
    with pytest.raises(UsageError, match=r"^Whole\.size: 'huge' is not one of big, small$"):
        decode(Whole, {"id": "w", "size": "huge"})


@pytest.mark.parametrize("value, says", [
    ({}, "Whole: id missing"), ([], "Whole: must be an object"), (None, "Whole: must be an object"),
    ({"id": 7}, "Whole.id: must be str, not int"), ({"id": None}, "Whole.id: must be str, not NoneType"),
    ({"id": "w", "weight": "1"}, "Whole.weight: must be float, not str"),
    ({"id": "w", "weight": True}, "Whole.weight: must be float"),
    ({"id": "w", "ready": 1}, "Whole.ready: must be bool, not int"),
    ({"id": "w", "main": {"name": "x", "count": True}}, "Whole.main.count: must be int, not bool"),
    ({"id": "w", "main": {"name": "x", "count": 1.0}}, "Whole.main.count: must be int, not float"),
    ({"id": "w", "parts": {"name": "x"}}, "Whole.parts: must be a list"),
    ({"id": "w", "parts": [{"name": "x"}, {}]}, "Whole.parts[1]: name missing"),
    ({"id": "w", "by_name": {"x": {"name": 1}}}, "Whole.by_name.x.name: must be str"),
    ({"id": "w", "labels": [1]}, "Whole.labels: must be an object"),
    ({"id": "w", "labels": {"k": 1}}, "Whole.labels.k: must be str"),
    ({"id": "w", "colour": 3, "size": ["big"]}, "Whole.size: ['big'] is not one of")])
def test_what_does_not_fit_names_its_field(value: object, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(Whole, value)
    assert str(caught.value).startswith(says)


def test_a_whole_number_does_for_a_number() -> None:
    weight = decode(Whole, {"id": "w", "weight": 3}).weight
    assert (weight, type(weight)) == (3.0, float)


def test_the_outermost_name_can_be_given() -> None:
    with pytest.raises(UsageError, match=r"^the body: name missing$"):
        decode(Part, {}, "the body")
