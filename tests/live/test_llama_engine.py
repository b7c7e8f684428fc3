"""A real llama-server, started with the very command and environment that llmgw gives it."""

import http.client
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lib.engines import ENGINES, Launch
from lib.engines.gguf import source_fault
from lib.engines.llamacpp import FORBIDDEN
from lib.host.run import attempt
from lib.model.fleet import FaultClass
from lib.model.wire import ShardOrder
from tests.eventually import eventually
from tests.programs import free_port
from tests.tiny_gguf import write_tiny_model

LLAMA = ENGINES["llama-server"]
KEY = "secret-of-the-test"
SMALL = ("--skip-chat-parsing", "-np", "2", "-t", "1")      # random words fit no chat format
Start = Callable[..., "Server"]


class Server:
    """One llama-server."""

    def __init__(self, program: Path, source: Path, log: Path, **changes: Any) -> None:
        self.port = int(changes.get("port") or free_port())
        order = ShardOrder("r1", 1, "00", 0, 1, True, "p", "tiny", "llama-server", str(source), ("tiny", "other"), args=SMALL,
                           engine_key=KEY)
        self.launch = Launch(replace(order, **{**changes, "port": self.port}), (str(program),), "127.0.0.1", home=str(log.parent))
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(LLAMA.command(self.launch), env=LLAMA.environment(self.launch), stdout=output,
                                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    @property
    def tail(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]

    def request(self, method: str, path: str, body: Any = None, key: str = KEY) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def ready(self) -> "Server":
        """Back once it passes what the shim asks: health, its name in the list, one token."""
        probe = LLAMA.readiness(self.launch)
        assert probe
        assert eventually(lambda: self.request("GET", probe.path)[0] == 200, 60)
        listed = json.loads(self.request("GET", probe.models_path)[1])
        assert probe.served_name in [card["id"] for card in listed["data"]]
        one = {"model": probe.served_name, "prompt": "a", "max_tokens": 1}
        assert self.request("POST", probe.canary_path, one)[0] == 200
        return self

    def verdict(self) -> tuple[FaultClass, str]:
        """How its end is judged."""
        return LLAMA.classify(self.process.wait(60), self.tail)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def start(llama_server: Path, tiny: Path, tmp_path: Path) -> Iterator[Start]:
    running: list[Server] = []

    def begin(source: Path = tiny, **changes: Any) -> Server:
        running.append(Server(llama_server, source, tmp_path / f"{len(running)}.log", **changes))
        return running[-1]
    yield begin
    for server in running:
        server.process.kill()
        server.process.wait(10)


def verdict(fault: FaultClass, start: Start, **changes: Any) -> str:
    """The sentence for an end that is judged as it should be; of several starts, as a llama-server that ends early loses its last
    lines now and then, and what it does not say cannot be judged.
    """
    def judged() -> str:
        found, sentence = start(**changes).verdict()
        assert found is fault, sentence
        return sentence
    return eventually(judged, 30)


def test_it_becomes_ready_under_its_own_name_and_ends_at_sigterm(start: Start) -> None:
    server = start().ready()
    server.process.terminate()
    assert server.process.wait(10) == 0


def test_only_the_engine_key_opens_it_and_its_metrics_are_on(start: Start) -> None:
    server = start().ready()
    assert server.request("POST", "/v1/completions", {"prompt": "a"}, key="wrong")[0] == 401
    assert server.request("GET", "/metrics", key="wrong")[0] == 401
    assert b"llamacpp:requests_processing" in server.request("GET", "/metrics")[1]
    assert KEY not in Path(f"/proc/{server.process.pid}/cmdline").read_text(encoding="utf-8")


def test_arguments_of_a_profile_take_effect(start: Start) -> None:
    server = start(args=(*SMALL, "--ctx-size", "512")).ready()
    slots = json.loads(server.request("GET", "/slots")[1])
    assert len(slots) == 2
    assert slots[0]["n_ctx"] * 2 == 512


def test_the_version_is_understood(llama_server: Path) -> None:
    done = attempt([llama_server, *LLAMA.version_argv])
    assert LLAMA.parse_version(done.stdout + done.stderr)


def test_every_flag_it_is_forbidden_is_one_it_knows(llama_server: Path) -> None:
    said = attempt([llama_server, "--help"])
    known = set((said.stdout + said.stderr).replace(",", " ").split())
    assert [flag for flags in FORBIDDEN.values() for flag in flags if flag not in known] == []


def test_the_completeness_check_agrees_with_the_program(start: Start, tiny: Path, tmp_path: Path) -> None:
    assert source_fault(str(tiny)) == ""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-100])
    assert "is not complete" in source_fault(str(cut))
    assert "not within the file bounds" in verdict(FaultClass.CONFIGURATION, start, source=cut)


def test_a_taken_port_is_a_matter_of_resources(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        verdict(FaultClass.RESOURCE, start, port=port)


@pytest.mark.parametrize("args", [("--bogus-flag",), ("-c", "many")])
def test_a_wrong_argument_is_a_matter_of_configuration(start: Start, args: tuple[str, ...]) -> None:
    verdict(FaultClass.CONFIGURATION, start, args=args)


def test_a_model_that_vanished_may_be_elsewhere(start: Start, tmp_path: Path) -> None:
    fault, sentence = start(tmp_path / "none.gguf").verdict()
    assert fault is FaultClass.RESOURCE
    assert "No such file" in sentence


def test_a_kill_is_worth_another_try(start: Start) -> None:
    server = start().ready()
    server.process.kill()
    fault, sentence = server.verdict()
    assert fault is FaultClass.TRANSIENT
    assert "SIGKILL" in sentence


def test_a_client_that_goes_away_frees_its_slot_within_a_second(start: Start, smollm2: Path) -> None:
    server = start(smollm2, args=("-c", "8192", "-np", "1", "-t", "1")).ready()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        body = json.dumps({"prompt": "Count: one, two,", "max_tokens": 4000, "stream": True, "ignore_eos": True})
        sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert sock.recv(100)
        assert json.loads(server.request("GET", "/slots")[1])[0]["is_processing"]
    assert eventually(lambda: not json.loads(server.request("GET", "/slots")[1])[0]["is_processing"], 1.0)


def test_a_real_model_answers_sensibly(start: Start, smollm2: Path) -> None:
    server = start(smollm2, args=("-c", "2048", "-np", "1")).ready()
    ask = {"model": "tiny", "max_tokens": 40, "temperature": 0,
           "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]}
    status, body = server.request("POST", "/v1/chat/completions", ask)
    assert status == 200
    assert "Paris" in json.loads(body)["choices"][0]["message"]["content"]
