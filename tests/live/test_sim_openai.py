"""The official openai client against the sim engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim_process import KEY, SimProcess

openai = pytest.importorskip("openai")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimProcess]:
    flags = ("--model-name", "m", "--load-time", "0", "--token-rate", "0", "--first-token-delay", "0")
    process = SimProcess(Path(tmp_path_factory.mktemp("sim")) / "log", *flags)
    yield process.serving()
    process.kill_all()


def client(sim: SimProcess, key: str = KEY) -> Any:
    """A client that repeats nothing by itself."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{sim.port}/v1", api_key=key, max_retries=0)


def test_it_lists_the_model(sim: SimProcess) -> None:
    with client(sim) as ai:
        assert [card.id for card in ai.models.list()] == ["m"]


def test_it_chats(sim: SimProcess) -> None:
    with client(sim) as ai:
        answer = ai.chat.completions.create(model="m", messages=HELLO, n=2)
    assert "hello" in answer.choices[0].message.content
    assert answer.choices[1].index == 1
    assert answer.usage.completion_tokens > 0


def test_it_streams(sim: SimProcess) -> None:
    with client(sim) as ai:
        chunks = list(ai.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert "hello" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens > 0


def test_it_completes_text(sim: SimProcess) -> None:
    with client(sim) as ai:
        assert ai.completions.create(model="m", prompt="once", max_tokens=4).usage.completion_tokens == 4
        assert len(list(ai.completions.create(model="m", prompt="once", max_tokens=4, stream=True))) == 5


@pytest.mark.parametrize("form", ["float", "base64"])
def test_it_embeds(sim: SimProcess, form: str) -> None:
    with client(sim) as ai:
        default = ai.embeddings.create(model="m", input=["one", "two"])
        same = ai.embeddings.create(model="m", input=["one", "two"], encoding_format=form)
    assert len(default.data) == 2
    assert len(default.data[0].embedding) == 64
    if form == "float":
        assert same.data[1].embedding == pytest.approx(default.data[1].embedding, abs=1e-6)


def test_refusals_become_the_right_exceptions(sim: SimProcess) -> None:
    with client(sim) as ai, client(sim, "wrong") as stranger:
        with pytest.raises(openai.NotFoundError):
            ai.chat.completions.create(model="other", messages=HELLO)
        with pytest.raises(openai.BadRequestError):
            ai.chat.completions.create(model="m", messages=HELLO, max_tokens=10**6)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
