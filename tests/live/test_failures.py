"""What a cluster does when parts of it are killed, on the built programs, with clients that keep asking."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.eventually import eventually
from tests.live.running_demo import RunningDemo, pids, running_demo
from tests.programs import alive, killed


@pytest.fixture
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    with running_demo(tmp_path_factory.mktemp("f") / "d") as running:
        running.all_ready()
        yield running


class Load:
    """Clients that stream one answer after the other, and remember what went wrong."""

    def __init__(self, demo: RunningDemo, clients: int = 4) -> None:
        self.models = [row["id"] for row in demo.listing("models")]
        self.failures: list[str] = []
        self.answers = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(demo, self.models[index % len(self.models)]))
                         for index in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def answered(self, more: int) -> None:
        """Wait until so many more answers have come."""
        goal = self.answers + more
        eventually(lambda: self.answers >= goal or self.failures, 60)

    def _ask(self, demo: RunningDemo, model: str) -> None:
        client = openai.OpenAI(base_url=demo.url + "/v1", api_key=demo.key, max_retries=0, timeout=30)
        while not self._stop.is_set():
            try:
                stream = client.chat.completions.create(model=model, stream=True, max_tokens=20,
                                                        messages=[{"role": "user", "content": "hello"}])
                ended = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1]
                if ended is None:
                    self.failures.append(f"{model}: a stream without a finish reason")
                self.answers += 1
            except openai.OpenAIError as err:
                self.failures.append(f"{model}: {err!r}")
        client.close()


def engine_state(demo: RunningDemo, replica: str, shard: dict[str, Any]) -> dict[str, Any]:
    found = next(demo.shards_dir(shard["node"]).glob(f"{replica}.*.{shard['rank']}/state.json"))
    state: dict[str, Any] = json.loads(found.read_text())
    return state


def two_shard_replica(replicas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in replicas.values() if row["shard_count"] == 2)


def test_killing_the_control_plane_under_load_fails_no_request_and_its_restart_moves_no_engine(demo: RunningDemo) -> None:
    before = demo.replicas()
    with Load(demo) as load:
        load.answered(20)
        killed(demo.facts["pids"]["control"])
        load.answered(40)
        demo.start_control()
        after = demo.all_ready()
        load.answered(20)
    assert load.failures == []
    assert pids(after) == pids(before)
    assert {row["id"]: row["epoch"] for row in after.values()} == {row["id"]: row["epoch"] for row in before.values()}
    assert all(alive(pid) for pid in pids(after).values())


def test_half_of_a_two_shard_replica_killed_at_the_restart_is_never_ready_and_is_rebuilt(demo: RunningDemo) -> None:
    row = two_shard_replica(demo.replicas())
    victim = row["shards"][1]
    killed(demo.facts["pids"]["control"])
    killed(engine_state(demo, row["id"], victim)["engine_pid"])
    demo.start_control()
    states: list[tuple[int, str]] = []

    def rebuilt() -> dict[str, Any]:
        now = demo.replicas()[row["id"]]
        states.append((now["epoch"], now["state"]))
        return now if now["epoch"] != row["epoch"] and now["state"] == "ready" else {}
    now = eventually(rebuilt, 90)
    assert (row["epoch"], "ready") not in states
    assert [shard["state"] for shard in now["shards"]] == ["ready", "ready"]
    assert not set(pids({row["id"]: now}).values()) & set(pids({row["id"]: row}).values())
    assert not any(alive(shard["pid"]) for shard in row["shards"])


def test_an_agent_that_is_killed_and_started_again_takes_over_its_engines(demo: RunningDemo) -> None:
    before = demo.replicas()
    row = two_shard_replica(before)
    node = row["shards"][0]["node"]
    with Load(demo) as load:
        load.answered(10)
        killed(demo.facts["nodes"][node]["pid"])
        load.answered(20)
        assert alive(row["shards"][0]["pid"])
        demo.start_agent(node)
        eventually(lambda: next(each for each in demo.listing("nodes") if each["id"] == node)["state"] == "ready", 30)
        load.answered(20)
    assert load.failures == []
    assert pids(demo.all_ready()) == pids(before)


def test_a_node_that_claims_another_id_is_refused_and_the_control_plane_logs_both(demo: RunningDemo, tmp_path: Path) -> None:
    honest, other, *_ = demo.facts["nodes"]
    config = Path(demo.facts["nodes"][honest]["config"])
    liar = config.with_name("liar.toml")
    text = config.read_text().replace(f'"{honest}"', f'"{other}"', 1)
    liar.write_text(text.replace("state_dir", f'state_dir = "{tmp_path}"\n#', 1))
    pid = demo.start("agent", "run", "--config", str(liar))
    try:
        eventually(lambda: [line for line in logs(demo, "control") if f"'{honest}' claims to be '{other}'" in line], 20)
        assert eventually(lambda: "may not speak for" in (demo.directory / "agent-again.log").read_text(), 20)
    finally:
        killed(pid)                        # its configuration is not of the demo, which leaves it alone


def logs(demo: RunningDemo, name: str) -> list[str]:
    return next((demo.directory / "logs").glob(f"*{name}*")).read_text().splitlines()
