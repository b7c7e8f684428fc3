"""The official client against a whole cluster: simulated replicas on two fabrics and a real llama.cpp with a real small model."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.eventually import eventually
from tests.live.running_demo import RunningDemo, running_demo


@pytest.fixture(scope="module")
def demo(llama_server: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    flags = ("--llama-server", str(llama_server), "--gguf", str(smollm2))
    with running_demo(tmp_path_factory.mktemp("o") / "d", *flags) as running:
        running.all_ready()
        yield running


@pytest.fixture(scope="module")
def client(demo: RunningDemo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=demo.url + "/v1", api_key=demo.key, max_retries=0, timeout=60) as made:
        yield made


def simulated(demo: RunningDemo) -> str:
    return str(next(row["model"] for row in demo.replicas().values() if row["shard_count"] == 2))


def real(demo: RunningDemo) -> dict[str, Any]:
    return next(row for row in demo.replicas().values() if row["shard_count"] == 1)


def ask(words: str) -> Any:
    return [{"role": "user", "content": words}]


def test_the_client_lists_the_models_and_looks_one_up(demo: RunningDemo, client: openai.OpenAI) -> None:
    listed = {model.id for model in client.models.list()}
    assert listed >= {simulated(demo), real(demo)["model"]}
    assert client.models.retrieve(simulated(demo)).id == simulated(demo)


def test_the_client_chats_in_one_piece(demo: RunningDemo, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=simulated(demo), messages=ask("Hello, cluster!"))
    assert "Hello, cluster!" in (answer.choices[0].message.content or "")
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def test_the_client_chats_in_a_stream_and_gets_the_usage_it_asked_for(demo: RunningDemo, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=simulated(demo), stream=True, stream_options={"include_usage": True},
                                            messages=ask("Grüße, 世界 🌍"))
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Grüße, 世界 🌍" in text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage


def test_the_client_embeds(demo: RunningDemo, client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=simulated(demo), input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding != answer.data[1].embedding


def test_bad_keys_models_and_bodies_are_the_exceptions_they_should_be(demo: RunningDemo, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="llmgw_000000000000_wrong").models.list()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=ask("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=simulated(demo), messages=ask("x"), max_tokens=10**9)


def test_a_model_without_a_ready_replica_is_a_503_that_names_the_state(
        demo: RunningDemo, client: openai.OpenAI, tmp_path: Path) -> None:
    text = demo.catalog.read_text()
    more = tmp_path / "catalog.toml"
    more.write_text(text + '\n[models.too-big]\n\n[profiles.too-big]\nmodel = "too-big"\nengine = "sim"\ngpus = 64\n')
    demo.ctl("catalog", "apply", str(more))
    try:
        eventually(lambda: "too-big" in {model.id for model in client.models.list()}, 20)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(model="too-big", messages=ask("x"))
        assert refused.value.status_code == 503
        assert "too-big-1 is pending" in refused.value.message
        assert int(refused.value.response.headers["retry-after"]) > 0
    finally:
        more.write_text(text)
        demo.ctl("catalog", "apply", str(more))


def test_a_key_works_until_it_is_revoked(demo: RunningDemo, client: openai.OpenAI) -> None:
    made = json.loads(demo.ctl("keys", "create", "visitor", "-o", "json"))
    visitor = client.with_options(api_key=made["key"])
    eventually(lambda: can_list(visitor), 10)
    demo.ctl("keys", "revoke", made["id"], "--yes")
    eventually(lambda: not can_list(visitor), 10)


def can_list(client: openai.OpenAI) -> bool:
    try:
        return bool(list(client.models.list()))
    except openai.AuthenticationError:
        return False


def test_a_real_model_answers_with_sense(demo: RunningDemo, client: openai.OpenAI) -> None:
    question = "What is the capital of France? Answer in English in one short sentence."
    answer = client.chat.completions.create(model=real(demo)["model"], temperature=0, max_tokens=40, messages=ask(question))
    assert "Paris" in (answer.choices[0].message.content or "")


class Slots:
    """What the real engine says of itself on its loopback port, with the key that its shard was given."""

    def __init__(self, demo: RunningDemo) -> None:
        row = real(demo)
        spec = json.loads(next(demo.shards_dir(row["shards"][0]["node"]).glob("*/spec.json")).read_text())
        self._request = urllib.request.Request(f"http://{spec['engine_host']}:{spec['order']['port']}/slots",
                                               headers={"Authorization": f"Bearer {spec['order']['engine_key']}"})

    def busy(self) -> int:
        with urllib.request.urlopen(self._request, timeout=10) as answer:
            return sum(slot["is_processing"] for slot in json.load(answer))


def test_a_client_that_goes_away_in_the_middle_frees_its_slot_within_a_second(demo: RunningDemo, client: openai.OpenAI) -> None:
    slots = Slots(demo)
    eventually(lambda: slots.busy() == 0, 20)
    stream = client.chat.completions.create(model=real(demo)["model"], stream=True, max_tokens=1500, temperature=0,
                                            messages=ask("Count from one to one thousand in words."))
    for _ in range(3):
        next(stream)
    assert slots.busy() == 1
    left = time.monotonic()
    stream.close()
    eventually(lambda: slots.busy() == 0, 5)
    assert time.monotonic() - left < 1.0    # the promise itself, not a measure of speed: the answer would take ten times as long


def test_islands_and_fabrics_are_respected_by_what_was_placed(demo: RunningDemo) -> None:
    nodes = {row["id"]: row for row in demo.listing("nodes")}
    for row in demo.replicas().values():
        fabrics = {tuple(nodes[shard["node"]]["fabrics"]) for shard in row["shards"]}
        assert len(fabrics) == 1
        assert row["shard_count"] == 1 or fabrics != {()}


def test_a_two_shard_replica_that_no_fabric_has_room_for_waits_and_says_why(demo: RunningDemo, tmp_path: Path) -> None:
    text, more = demo.catalog.read_text(), tmp_path / "catalog.toml"
    more.write_text(text + '\n[models.wide]\n\n[profiles.wide]\nmodel = "wide"\nengine = "sim"\nshards = 4\n')
    demo.ctl("catalog", "apply", str(more))
    try:
        row = eventually(lambda: demo.replicas().get("wide-1", {}), 20)
        assert row["state"] == "pending"
        assert "needs 4 nodes on one fabric" in row["reason"]
    finally:
        more.write_text(text)
        demo.ctl("catalog", "apply", str(more))
    eventually(lambda: "wide-1" not in demo.replicas(), 20)
