"""What the sim engine answers: pure parts."""

import itertools
from typing import Any

import pytest

from lib.engines import sim_text
from lib.engines.sim_asks import ApiError, Ask, parse_ask, parse_json, texts
from lib.engines.sim_http import BadHttp, parse_head
from lib.engines.sim_metrics import Metrics

HELLO = [{"role": "user", "content": "hello there"}]


def chat(length: int = 0, context: int = 100, **body: Any) -> Ask:
    """A chat completion read."""
    return parse_ask({"messages": HELLO, **body}, chat=True, names=("m", "alias"), context=context, length=length)


@pytest.mark.parametrize("text", ["", "a", " two  words ", "línea\n\nñ, 3.14!", "\t\ttabs\t", "日本語 テスト", "'quoted' – dash"])
def test_tokens_joined_are_the_text_again(text: str) -> None:
    assert "".join(sim_text.split(text)) == text
    assert len(sim_text.token_ids(text)) == len(sim_text.split(text))


def test_the_answer_shows_that_it_is_a_simulation_and_what_was_asked() -> None:
    said = chat().choices[0].text
    assert "simulated" in said
    assert "hello there" in said


def test_the_same_request_gets_the_same_answer() -> None:
    assert chat().choices == chat().choices


def test_an_answer_ends_by_itself_or_at_its_limit() -> None:
    assert chat().choices[0].finish == "stop"
    cut = chat(max_tokens=5).choices[0]
    assert (len(cut.tokens), cut.finish) == (5, "length")
    assert len(chat(max_completion_tokens=6).choices[0].tokens) == 6


@pytest.mark.parametrize("length", [1, 10, 60])
def test_the_length_of_an_answer_can_be_set(length: int) -> None:
    choice = chat(length).choices[0]
    assert (len(choice.tokens), choice.finish) == (length, "stop")


def test_min_tokens_and_ignore_eos_make_an_answer_longer() -> None:
    assert len(chat(1, min_tokens=20).choices[0].tokens) == 20
    endless = chat(1, ignore_eos=True, max_tokens=77).choices[0]
    assert (len(endless.tokens), endless.finish) == (77, "length")


@pytest.mark.parametrize("stop", ["simulated", ["nothing of it", "simulated"]])
def test_a_stop_word_ends_the_answer_before_it(stop: Any) -> None:
    choice = chat(stop=stop, ignore_eos=True, max_tokens=50).choices[0]
    assert choice.finish == "stop"
    assert choice.text.endswith("the ")


def test_several_choices_differ() -> None:
    first, second, third = chat(n=3).choices
    assert len({first.text, second.text, third.text}) == 3


def test_a_text_completion_has_sixteen_tokens_unless_more_are_asked_for() -> None:
    ask = parse_ask({"prompt": "one two"}, chat=False, names=("m",), context=100, length=0)
    assert (len(ask.choices[0].tokens), ask.prompt_tokens, ask.model) == (16, 2, "m")


@pytest.mark.parametrize("body,status,param", [
    ({"model": "other"}, 404, "model"), ({"max_tokens": 98}, 400, "max_tokens"), ({"messages": []}, 400, "messages"),
    ({"messages": "x"}, 400, "messages"), ({"messages": [{"role": "user", "content": 5}]}, 400, "messages"),
    ({"stream": "yes"}, 400, "stream"), ({"n": 0}, 400, "n"), ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": True}, 400, "max_tokens"), ({"stop": 5}, 400, "stop"), ({"stream_options": 5}, 400, "stream_options"),
    ({"messages": [{"role": "user", "content": "word " * 200}]}, 400, "prompt")])
def test_a_request_that_cannot_be_served_is_refused_in_openais_shape(body: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**body)
    error = refused.value.body["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["message"]
    assert error["type"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"5"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        parse_json(raw)


def test_parts_of_a_message_are_read_together() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "this"}]
    assert "see this" in chat(messages=[{"role": "user", "content": parts}]).choices[0].text


@pytest.mark.parametrize("value,count", [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)])
def test_an_embedding_takes_texts_and_token_numbers(value: Any, count: int) -> None:
    assert len(texts({"input": value}, "input")) == count


def test_embeddings_have_length_1_and_depend_on_the_text_alone() -> None:
    first, second = sim_text.embedding("a", 64), sim_text.embedding("b", 64)
    assert abs(sum(value * value for value in first) - 1) < 1e-9
    assert first == sim_text.embedding("a", 64) != second


def test_a_histogram_counts_upwards() -> None:
    metrics = Metrics(100)
    for seconds in (0.002, 0.3, 500.0):
        metrics.first_token.add(seconds)
    lines = [line for line in metrics.render(("m",)).splitlines() if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert all(low <= high for low, high in itertools.pairwise(counts))
    assert (counts[0], counts[-1]) == (0, 3)


def test_a_head_is_read() -> None:
    method, target, fields = parse_head(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length:  5 \r\n\r\n")
    assert (method, target, fields) == ("POST", "/v1/x", {"host": "a", "content-length": "5"})


@pytest.mark.parametrize("head", [b"\r\n\r\n", b"GET /\r\n\r\n", b"GET / FTP/1\r\n\r\n", b"GET / HTTP/1.1\r\nnocolon\r\n\r\n",
                                  b"GET / HTTP/1.1\r\n bad: x\r\n\r\n"])
def test_a_head_that_is_none_is_refused(head: bytes) -> None:
    with pytest.raises(BadHttp):
        parse_head(head)
