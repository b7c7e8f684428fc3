"""The sim engine as real processes: what it answers, in which order it comes up, and every way it can misbehave."""

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lib.engines.sim_flags import FAULTS
from lib.host.process import marked
from tests.eventually import eventually
from tests.programs import free_port
from tests.sim_process import KEY, SimProcess

Start = Callable[..., SimProcess]
Pair = Callable[..., tuple[SimProcess, Start]]     # rank 0, and what starts its worker
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LONG = {**CHAT, "ignore_eos": True, "max_tokens": 2000}
COMPLETIONS = "/v1/chat/completions"
FAST = ("--load-time", "0", "--token-rate", "0", "--first-token-delay", "0")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts shards; ends all of them."""
    running: list[SimProcess] = []

    def begin(*flags: str, key: str = KEY) -> SimProcess:
        names = ("--model-name", "m", "--model-name", "alias")
        running.append(SimProcess(tmp_path / f"{len(running)}.log", *names, *flags, key=key))
        return running[-1]
    yield begin
    for process in running:
        process.kill_all()


@pytest.fixture
def pair(start: Start) -> Pair:
    """Starts rank 0 of two, and gives what starts its worker."""
    def begin(*flags: str) -> tuple[SimProcess, Callable[..., SimProcess]]:
        both = ("--shards", "2", "--rendezvous", f"127.0.0.1:{free_port()}", *flags)
        return start("--rank", "0", *both), lambda *more, key=KEY: start("--rank", "1", *both, *more, key=key)
    return begin


def connects(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_it_answers_the_routes_of_an_engine(start: Start) -> None:
    sim = start(*FAST).serving()
    assert sim.json("GET", "/health") == (200, None)
    assert [card["id"] for card in sim.json("GET", "/v1/models")[1]["data"]] == ["m", "alias"]
    status, body = sim.json("POST", COMPLETIONS, {**CHAT, "model": "alias"})
    assert (status, body["model"], body["choices"][0]["finish_reason"]) == (200, "alias", "stop")
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert sim.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})[1]["usage"]["completion_tokens"] == 3
    assert len(sim.json("POST", "/v1/embeddings", {"input": ["a", "b"]})[1]["data"]) == 2
    assert sim.json("POST", "/tokenize", {"prompt": "one two"})[1]["count"] == 2
    assert sim.metric("vllm:prompt_tokens_total") > 0


@pytest.mark.parametrize("method,path,body,status", [
    ("POST", COMPLETIONS, {**CHAT, "model": "other"}, 404), ("POST", COMPLETIONS, {**CHAT, "max_tokens": 10**6}, 400),
    ("POST", "/v1/nothing", {}, 404), ("GET", COMPLETIONS, None, 405), ("POST", COMPLETIONS, [], 400)])
def test_refusals_have_openais_shape(start: Start, method: str, path: str, body: object, status: int) -> None:
    found, answer = start(*FAST).serving().json(method, path, body)
    assert found == status
    assert {"message", "type", "code"} <= set(answer["error"])


def test_without_the_engine_key_only_health_and_metrics_answer(start: Start) -> None:
    sim = start(*FAST).serving()
    assert sim.json("GET", "/v1/models", key="wrong")[0] == 401
    assert sim.json("POST", COMPLETIONS, CHAT, key="")[0] == 401
    assert sim.json("GET", "/health", key="wrong")[0] == 200


def test_a_stream_holds_the_same_words_and_the_usage_where_asked(start: Start) -> None:
    sim = start(*FAST).serving()
    whole = sim.json("POST", COMPLETIONS, CHAT)[1]["choices"][0]["message"]["content"]
    lines = sim.events(COMPLETIONS, {**CHAT, "stream_options": {"include_usage": True}})
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == whole
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 10


def test_tokens_come_at_the_set_rate(start: Start) -> None:
    sim = start("--load-time", "0", "--token-rate", "100", "--first-token-delay", "0.2", "--answer-tokens", "50").serving()
    begun = time.monotonic()
    sim.json("POST", COMPLETIONS, CHAT)
    assert 0.65 < time.monotonic() - begun < 5.0        # 0.2 s and 49 steps of 10 ms


def test_requests_beyond_the_slots_wait_and_beyond_the_queue_get_503(start: Start) -> None:
    sim = start("--load-time", "0", "--slots", "1", "--max-queue", "1", "--token-rate", "100").serving()
    with sim.asked("POST", COMPLETIONS, {**LONG, "stream": True}), ThreadPoolExecutor() as pool:
        assert eventually(lambda: sim.metric("vllm:num_requests_running") == 1)
        waiting = pool.submit(sim.json, "POST", COMPLETIONS, CHAT)
        assert eventually(lambda: sim.metric("vllm:num_requests_waiting") == 1)
        with sim.asked("POST", COMPLETIONS, CHAT) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert not waiting.done()
        sim.signal(signal.SIGTERM)
        sim.ended()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot_at_once(start: Start, stream: bool) -> None:
    sim = start("--load-time", "0", "--slots", "1", "--token-rate", "1").serving()
    connection = http.client.HTTPConnection("127.0.0.1", sim.port)
    connection.request("POST", COMPLETIONS, json.dumps({**LONG, "stream": stream}), {"Authorization": f"Bearer {KEY}"})
    assert eventually(lambda: sim.metric("vllm:num_requests_running") == 1)
    if connection.sock:
        connection.sock.close()
    connection.close()
    assert eventually(lambda: sim.metric("vllm:num_requests_running") == 0, timeout_s=1.0)


def test_hundreds_of_streams_run_at_once(start: Start) -> None:
    sim = start("--load-time", "0", "--slots", "300", "--token-rate", "5", "--answer-tokens", "8").serving()
    with ThreadPoolExecutor(300) as pool:
        done = list(pool.map(lambda _: sim.events(COMPLETIONS, CHAT)[-1], range(300)))
    assert done == ["data: [DONE]"] * 300


def test_a_connection_is_kept_and_closed_when_idle(start: Start) -> None:
    sim = start(*FAST, "--fault", "idle-close=0.3").serving()
    with socket.create_connection(("127.0.0.1", sim.port), timeout=5) as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in sock.recv(4096)
        assert sock.recv(4096) == b""


def test_chunked_requests_are_read_and_garbage_is_refused(start: Start) -> None:
    sim = start(*FAST).serving()
    body = json.dumps(CHAT).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunked = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for sent, status in ((chunked, b" 200 "), (b"\x16\x03\x01 hello\r\n\r\n", b" 400 ")):
        with socket.create_connection(("127.0.0.1", sim.port), timeout=5) as sock:
            sock.sendall(sent)
            assert status in sock.recv(4096)


def test_sigterm_ends_it_with_status_0_and_streams_with_abort(start: Start) -> None:
    sim = start("--load-time", "0", "--token-rate", "20").serving()
    with sim.asked("POST", COMPLETIONS, {**LONG, "stream": True}) as response:
        response.readline()
        sim.signal(signal.SIGTERM)
        text = response.read().decode()
    assert '"finish_reason": "abort"' in text
    assert sim.ended() == 0


def test_rank_0_serves_nothing_until_every_worker_has_joined(pair: Pair) -> None:
    leader, worker = pair(*FAST)
    leader.says("waiting at")
    assert "serving" not in leader.text
    worker().says("ready")
    leader.serving()
    assert leader.json("POST", COMPLETIONS, CHAT)[0] == 200


def test_a_worker_may_come_first(start: Start) -> None:
    both = ("--shards", "2", "--rendezvous", f"127.0.0.1:{free_port()}", *FAST)
    worker = start("--rank", "1", *both)
    worker.says("rendezvous: ")                         # it has knocked in vain
    leader = start("--rank", "0", *both).serving()
    assert leader.alive
    assert worker.alive


@pytest.mark.parametrize("flags,key,reason", [
    (("--group", "other"), KEY, "this is group sim"), ((), "other key", "does not know the engine key")])
def test_a_stranger_is_turned_away_and_takes_nobodys_place(
        pair: Pair, flags: tuple[str, ...], key: str, reason: str) -> None:
    leader, worker = pair(*FAST)
    stranger = worker(*flags, "--join-timeout", "1", key=key)
    stranger.says(reason)
    assert stranger.ended() == 6
    assert "serving" not in leader.text
    worker()
    leader.serving()


def test_what_is_no_worker_keeps_nobody_out(pair: Pair) -> None:
    leader, worker = pair(*FAST)
    leader.says("waiting at")
    port = int(leader.text.split("waiting at 127.0.0.1:")[1].split()[0])
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"rank": "x"}\n'):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(garbage)
    worker()
    leader.serving()


def test_a_worker_that_never_comes_ends_the_wait(pair: Pair) -> None:
    leader, worker = pair(*FAST, "--join-timeout", "1", "--fault", "no-join")
    worker().says("not joining")
    assert leader.ended() == 6
    assert "ranks [1] did not join" in leader.text


def test_the_loss_of_a_worker_kills_rank_0_after_a_while(pair: Pair) -> None:
    leader, start_worker = pair(*FAST, "--worker-loss", "0.2")
    worker = start_worker()
    leader.serving()
    worker.signal(signal.SIGKILL)
    assert leader.ended() == 1


def test_a_leader_that_never_notices_is_healthy_and_hangs(pair: Pair) -> None:
    leader, start_worker = pair(*FAST, "--worker-loss", "never")
    worker = start_worker()
    leader.serving()
    worker.signal(signal.SIGKILL)
    leader.says("rank 1 is gone")
    assert leader.json("GET", "/health")[0] == 200
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(leader.json, "POST", COMPLETIONS, CHAT)
        assert eventually(lambda: leader.metric("vllm:num_requests_running") == 1)
        leader.signal(signal.SIGKILL)
        assert isinstance(hanging.exception(10), OSError | http.client.HTTPException)


@pytest.mark.parametrize("patience", ["0.1", "never"])
def test_a_worker_dies_of_a_lost_leader_or_never(pair: Pair,
                                                 patience: str) -> None:
    leader, start_worker = pair(*FAST, "--leader-loss", patience)
    worker = start_worker()
    leader.serving()
    leader.signal(signal.SIGKILL)
    worker.says("rank 0 is gone")
    if patience == "never":
        assert worker.alive
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    else:
        assert worker.ended() == 1


def test_a_taken_port_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        sim = start(*FAST, "--port", str(taken.getsockname()[1]))
        assert sim.ended() == 1
    assert "cannot bind 127.0.0.1:" in sim.text
    assert "Address already in use" in sim.text


def test_a_wrong_flag_is_told_in_one_line(start: Start) -> None:
    sim = start("--slotz", "3")
    assert sim.ended() == 2
    assert "--slots" in sim.text
    assert len(sim.text.splitlines()) == 1


def test_the_key_is_in_no_log(start: Start) -> None:
    sim = start(*FAST).serving()
    sim.json("POST", COMPLETIONS, CHAT)
    sim.json("POST", COMPLETIONS, CHAT, key="wrong-key")
    assert KEY not in sim.text
    assert "wrong-key" not in sim.text


SLOW_LOAD = ("--load-time", "30")


def test_fault_loading_refuse(start: Start) -> None:
    port = free_port()
    sim = start(*SLOW_LOAD, "--port", str(port), "--fault", "loading-refuse")
    sim.says("loading for")
    assert not connects(port)


def test_fault_loading_503(start: Start) -> None:
    sim = start(*SLOW_LOAD, "--port", str(free_port()), "--fault", "loading-503")
    sim.port = port_of(sim)
    for path in ("/health", "/v1/models"):
        status, body = sim.json("GET", path, key="wrong")
        assert (status, body["error"]["message"]) == (503, "Loading model")


def test_fault_health_lies(start: Start) -> None:
    sim = start(*SLOW_LOAD, "--port", str(free_port()), "--fault", "health-lies")
    sim.port = port_of(sim)
    assert sim.json("GET", "/health")[0] == 200
    assert sim.json("GET", "/v1/models")[1]["data"] == []
    assert sim.json("POST", COMPLETIONS, CHAT)[0] == 503


def test_fault_bind_then_listen(start: Start) -> None:
    port = free_port()
    sim = start(*SLOW_LOAD, "--port", str(port), "--fault", "bind-then-listen")
    sim.says("loading for")
    assert not connects(port)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_fault_follower_200(pair: Pair) -> None:
    _, start_worker = pair(*FAST, "--fault", "follower-200")
    worker = start_worker("--port", str(free_port()))
    worker.port = port_of(worker)
    assert worker.json("GET", "/health")[0] == 200
    assert worker.json("GET", "/v1/models")[0] == 404


@pytest.mark.parametrize("fault,code", [("load-exit=7", 7), ("exit-0-after=0.2", 0), ("exit=9@0.2", 9)])
def test_faults_that_exit(start: Start, fault: str, code: int) -> None:
    sim = start(*FAST, "--fault", fault)
    assert sim.ended() == code
    assert ("serving" in sim.text) == (not fault.startswith("load"))


def test_fault_ignore_term(start: Start) -> None:
    sim = start(*FAST, "--fault", "ignore-term").serving()
    sim.signal(signal.SIGTERM)
    sim.says("SIGTERM ignored")
    assert sim.json("GET", "/health")[0] == 200


@pytest.mark.parametrize("fault", ["orphan", "orphan=detached"])
def test_fault_orphan(start: Start, fault: str) -> None:
    sim = start(*FAST, "--fault", fault).serving()
    sim.signal(signal.SIGKILL)
    sim.ended()
    assert len(marked(sim.marker)) == 1
    assert not connects(sim.port)


def test_an_orderly_end_leaves_no_orphan(start: Start) -> None:
    sim = start(*FAST, "--fault", "orphan").serving()
    sim.signal(signal.SIGTERM)
    assert sim.ended() == 0
    assert eventually(lambda: not marked(sim.marker))


def test_fault_hang_after(start: Start) -> None:
    sim = start(*FAST, "--fault", "hang-after=1").serving()
    assert sim.json("POST", COMPLETIONS, CHAT)[0] == 200
    with socket.create_connection(("127.0.0.1", sim.port)) as sock:
        body = json.dumps(CHAT)
        sock.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        eventually(lambda: sim.metric("vllm:num_requests_running") == 1)
        assert sim.json("GET", "/health")[0] == 200
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):       # what did get an answer came later
            sock.recv(1)


@pytest.mark.parametrize("fault,last", [("error-chunk=2", "data: [DONE]"), ("error-chunk-no-done=2", "")])
def test_faults_inside_a_stream(start: Start, fault: str, last: str) -> None:
    sim = start(*FAST, "--fault", fault).serving()
    lines = sim.events(COMPLETIONS, CHAT)
    errors = [line for line in lines if '"error"' in line]
    assert len(errors) == 1
    assert lines.index(errors[0]) == 2
    assert lines[3:] == ([last] if last else [])
    assert sim.json("POST", COMPLETIONS, CHAT)[0] == 500


def test_fault_truncate_after(start: Start) -> None:
    sim = start(*FAST, "--fault", "truncate-after=2").serving()
    lines = sim.events(COMPLETIONS, CHAT)
    assert lines[-1] == "CUT"
    assert len(lines) == 3
    with sim.asked("POST", COMPLETIONS, CHAT) as response, pytest.raises(http.client.IncompleteRead):
        response.read()


def test_fault_comments(start: Start) -> None:
    lines = start(*FAST, "--fault", "comments").serving().events(COMPLETIONS, {**CHAT, "max_tokens": 2})
    assert [line.startswith(": ") for line in lines] == [True, False] * 3 + [False]


@pytest.mark.parametrize("fault", ["first-byte-delay=0.5", "slow=25"])
def test_faults_that_take_time(start: Start, fault: str) -> None:
    sim = start("--load-time", "0", "--token-rate", "1000", "--first-token-delay", "0", "--answer-tokens", "21",
                "--fault", fault).serving()
    begun = time.monotonic()
    sim.json("POST", COMPLETIONS, CHAT)
    assert time.monotonic() - begun > 0.45


def test_fault_die_on_abort(start: Start) -> None:
    sim = start("--load-time", "0", "--token-rate", "5", "--fault", "die-on-abort").serving()
    with sim.asked("POST", COMPLETIONS, {**LONG, "stream": True}) as response:
        response.readline()
    assert sim.ended() == 134


def test_every_fault_has_a_test_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in FAULTS if text.count(name) < 1] == []


def port_of(sim: SimProcess) -> int:
    """The port it was told to bind, once somebody listens there."""
    port = int(sim.flags[len(sim.flags) - sim.flags[::-1].index("--port")])
    assert eventually(lambda: connects(port))
    return port
