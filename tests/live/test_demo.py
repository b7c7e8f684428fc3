"""The demo as a person meets it: up, pasteable, undisturbed by what dies, and gone without a trace."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.eventually import eventually
from tests.live.ctl import PROGRAM, ask, ctl
from tests.live.running_demo import COMING_UP_S, RunningDemo, pids, running_demo
from tests.programs import killed, processes_naming

NODES = {f"demo-node{number:02}" for number in range(1, 7)}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    with running_demo(tmp_path_factory.mktemp("demo") / "d") as running:
        yield running


def once(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*PROGRAM, "demo", "--once", *words], capture_output=True, text=True, timeout=COMING_UP_S, check=False,
                          env={**os.environ, **(env or {})})


def test_its_summary_says_what_runs_and_where(demo: RunningDemo) -> None:
    summary = demo.facts
    assert set(summary) == {"router_url", "api_key", "ctl_dir", "nodes", "pids"}
    assert set(summary["nodes"]) == NODES
    started = [*summary["pids"].values(), *(node["pid"] for node in summary["nodes"].values())]
    assert set(started) <= set(processes_naming(demo.directory))
    assert len(set(started)) == 8
    assert Path(summary["ctl_dir"]) == demo.directory / "ctl"
    assert all(Path(node["config"]).is_file() for node in summary["nodes"].values())


def test_its_nodes_have_the_fabrics_and_gpus_they_should(demo: RunningDemo) -> None:
    nodes = ask(demo.ctl_dir, "nodes")
    assert all(set(node) == {"id", "state", "fabrics", "gpus", "replicas", "engines", "conditions", "certificate_expires"}
               for node in nodes)
    assert [(node["state"], len(node["gpus"])) for node in nodes] == [("ready", 4)] * 6
    assert [node["fabrics"] for node in nodes] == [["ib-a"]] * 3 + [["ib-b"]] * 2 + [[]]
    assert all(node["certificate_expires"] for node in nodes)


def test_a_replica_of_two_shards_lies_on_each_fabric_and_one_shard_on_the_island(demo: RunningDemo) -> None:
    places = {row["id"]: (row["state"], row["shard_count"], [shard["node"] for shard in row["shards"]])
              for row in ask(demo.ctl_dir, "replicas")}
    state, count, nodes = places["large-ib-a-1"]
    assert (state, count) == ("ready", 2)
    assert set(nodes) < {"demo-node01", "demo-node02", "demo-node03"}
    assert len(set(nodes)) == 2
    assert places["large-ib-b-1"][:2] == ("ready", 2)
    assert set(places["large-ib-b-1"][2]) == {"demo-node04", "demo-node05"}
    assert places["small-island-1"] == ("ready", 1, ["demo-node06"])


def test_the_curl_line_works_as_pasted(demo: RunningDemo) -> None:
    line = next(line for line in demo.said.splitlines() if line.startswith("curl "))
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 127:
        pytest.skip("no curl here")
    assert done.stdout.rstrip().endswith("data: [DONE]"), done


def test_the_python_snippet_works_as_pasted(demo: RunningDemo) -> None:
    pytest.importorskip("openai")
    text = demo.said
    snippet = text[text.index("from openai"):].split("\n\n")[0]
    done = subprocess.run([PROGRAM[0], "-c", snippet], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo-large" in done.stdout


def test_without_a_terminal_each_change_is_a_plain_line(demo: RunningDemo) -> None:
    assert "\x1b" not in demo.said
    assert "demo-node06: ready, island\n" in demo.said


def test_every_command_shows_a_running_cluster(demo: RunningDemo) -> None:
    node, replica = ctl("--dir", demo.ctl_dir, "node", "demo-node01"), ctl("--dir", demo.ctl_dir, "replica", "large-ib-b-1")
    assert "mlx5_1" in node.stdout
    assert "NVIDIA H100" in node.stdout
    assert replica.stdout.count("demo-node0") == 2
    assert [row["ready"] for row in ask(demo.ctl_dir, "models")] == [2, 1]
    assert "large-ib-a-1" in ctl("--dir", demo.ctl_dir, "events").stdout
    for words in (("status",), ("nodes",), ("replicas", "--all"), ("models",), ("keys", "list"), ("events",)):
        done = ctl("--dir", demo.ctl_dir, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def test_a_second_demo_beside_it_works_and_leaves_nothing(demo: RunningDemo) -> None:
    before = set(processes_naming(demo.directory))
    done = once(env={"TMPDIR": str(demo.directory.parent)})
    assert done.returncode == 0, done.stderr
    assert "demo-large" in done.stdout
    assert set(processes_naming(demo.directory)) == before
    assert not list(demo.directory.parent.glob("llmgw-demo-*"))


def test_a_directory_that_holds_a_demo_is_refused_and_the_demo_goes_on(demo: RunningDemo) -> None:
    before = set(processes_naming(demo.directory))
    done = once("--dir", str(demo.directory))
    assert (done.returncode, done.stdout) == (4, "")
    assert "holds a demo already" in done.stderr
    assert set(processes_naming(demo.directory)) == before


def test_no_request_fails_while_the_control_plane_is_dead_and_it_adopts_what_runs(demo: RunningDemo) -> None:
    engines = pids(demo.replicas())
    killed(demo.facts["pids"]["control"])
    eventually(lambda: ctl("--dir", demo.ctl_dir, "status").returncode == 1)
    assert [status_of_a_request(demo) for _ in range(5)] == [200] * 5
    eventually(lambda: "control (pid" in demo.said)
    demo.start_control()
    eventually(lambda: ctl("--dir", demo.ctl_dir, "status").returncode == 0)
    eventually(lambda: {row["state"] for row in ask(demo.ctl_dir, "replicas")} == {"ready"}, 60)
    assert pids(demo.replicas()) == engines


def test_an_agent_that_dies_is_told_and_can_be_brought_back_by_hand(demo: RunningDemo) -> None:
    engines, agent = pids(demo.replicas()), demo.facts["nodes"]["demo-node06"]
    killed(agent["pid"])
    eventually(lambda: f"demo-node06 (pid {agent['pid']}) has ended" in demo.said)
    demo.start_agent("demo-node06")
    began = time.time()
    eventually(lambda: heard_since(demo, "demo-node06", began), 60)
    assert pids(demo.replicas()) == engines


def heard_since(demo: RunningDemo, node: str, began: float) -> bool:
    heard_s = ask(demo.ctl_dir, "node", node)["heard_s"]
    return heard_s is not None and heard_s < time.time() - began


def status_of_a_request(demo: RunningDemo) -> int:
    summary = demo.facts
    with closing(HTTPConnection(urlsplit(summary["router_url"]).netloc, timeout=20)) as connection:
        connection.request("POST", "/v1/completions", '{"model": "demo-small", "prompt": "x", "max_tokens": 2}',
                           {"authorization": f"Bearer {summary['api_key']}", "content-type": "application/json"})
        return connection.getresponse().status


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_however_it_is_ended_nothing_is_left_even_when_nobody_listens_any_more(how: signal.Signals, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    process = subprocess.Popen([*PROGRAM, "demo", "--dir", str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually(lambda: len(processes_naming(directory)) > 8 or process.poll() is not None, COMING_UP_S)
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stderr.close()
    finally:
        process.send_signal(how)
        process.wait(60)
    assert processes_naming(directory) == {}
    assert (directory / "ctl" / "ctl.toml").exists()


@pytest.mark.parametrize(("words", "code", "part"), [
    (("--llama-server", "/etc/none", "--gguf", "/etc/passwd"), 3, "/etc/none"),
    (("--llama-server", "/bin/true"), 2, "--gguf"), (("--dir", "/proc/x"), 1, "/proc/x"),
    (("--dir", "/" + "x" * 90), 2, "too long"),
    (("--onec",), 2, "--once")])
def test_what_cannot_be_shown_is_refused_before_anything_starts(words: tuple[str, ...], code: int, part: str) -> None:
    done = once(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_real_engine_answers_where_one_is_given(llama_server: Path, smollm2: Path, tmp_path: Path) -> None:
    done = once("--dir", str(tmp_path / "d"), "--llama-server", str(llama_server), "--gguf", str(smollm2))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 3
    assert "simulated" not in done.stdout
    assert processes_naming(tmp_path) == {}
