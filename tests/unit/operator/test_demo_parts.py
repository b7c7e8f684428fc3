"""The parts of the demo that need no process."""

import io
import json
import socket
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, cast

import pytest

from lib.base.errors import LlmgwError, NotFound, UsageError
from lib.host.ports import free
from lib.operator import demo_ask, demo_show
from lib.operator.demo import real_engine
from lib.operator.demo_layout import BLOCK, HOST, Layout, claim_ports

LAYOUT = Layout(Path("/tmp/demo"), 20000)


def test_there_are_three_nodes_on_one_fabric_two_on_another_and_an_island() -> None:
    assert [(node.address, node.fabric) for node in LAYOUT.nodes] == [
        ("127.0.0.11", "ib-a"), ("127.0.0.12", "ib-a"), ("127.0.0.13", "ib-a"),
        ("127.0.0.14", "ib-b"), ("127.0.0.15", "ib-b"), ("127.0.0.16", "")]


def test_no_port_of_a_block_is_given_twice() -> None:
    """All engines listen on one loopback, whichever node they belong to."""
    ports = [LAYOUT.base, LAYOUT.control_port, LAYOUT.router_port]
    ports += [port for node in LAYOUT.nodes for port in range(node.port_low, node.port_high + 1)]
    assert sorted(ports) == list(range(LAYOUT.base, LAYOUT.base + BLOCK))


def test_two_demos_get_different_ports() -> None:
    (one, claim), (two, other) = claim_ports(), claim_ports()
    with claim, other:
        assert abs(one - two) >= BLOCK
        assert all(not free(HOST, port) for base in (one, two) for port in (base + 1, base + BLOCK - 1))


def test_a_block_with_a_taken_port_is_passed_over() -> None:
    base, claim = claim_ports()
    claim.close()
    with socket.create_server(("127.0.0.14", base + 300)):
        other, claim = claim_ports()
        claim.close()
    assert not other <= base + 300 < other + BLOCK


def answered(*lines: str) -> HTTPResponse:
    return cast("HTTPResponse", io.BytesIO("".join(f"{line}\n\n" for line in lines).encode()))


def chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]})


def test_the_text_of_a_stream_comes_piece_by_piece() -> None:
    stream = answered(": hello", chunk("a"), 'data: {"choices": []}', chunk(""), chunk("ö"), "data: [DONE]", chunk("late"))
    assert "".join(demo_ask._pieces(stream)) == "aö"


@pytest.mark.parametrize("lines", [(chunk("a"),), (chunk("a"), 'data: {"error": {"message": "engine died"}}', "data: [DONE]"),
                                   (chunk("a"), "data: {half")])
def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_one(lines: tuple[str, ...]) -> None:
    with pytest.raises(LlmgwError, match="broke off"):
        list(demo_ask._pieces(answered(*lines)))


def replica(state: str, reason: str = "", ready: int = 0) -> dict[str, Any]:
    shards = [{"node": f"n{rank}", "state": "ready" if rank < ready else "starting"} for rank in range(2)]
    return {"id": "r-1", "state": state, "reason": reason, "shard_count": 2, "shards": shards if state != "pending" else []}


def test_only_what_has_changed_is_said() -> None:
    nodes = [{"id": "n0", "state": "ready", "fabrics": ["ib-a"]}, {"id": "n1", "state": "ready", "fabrics": []}]
    before = demo_show.lines(nodes, [replica("starting")])
    assert before["n1"] == "n1: ready, island"
    after = demo_show.lines(nodes[:1], [replica("starting", ready=1)])
    assert list(demo_show.changes(before, after)) == ["r-1: starting, 1/2 shards ready on n0, n1", "n1: gone"]
    assert list(demo_show.changes(after, after)) == []


def test_it_is_up_when_every_replica_is_ready_and_there_are_some() -> None:
    assert demo_show.not_ready([]) == "there are no replicas"
    assert demo_show.not_ready([replica("ready"), replica("pending", "no room")]) == "r-1 is pending (no room)"
    assert demo_show.not_ready([replica("ready")]) == ""


def test_the_snippet_is_a_program_and_the_curl_line_is_one_line() -> None:
    text = demo_show.instructions(LAYOUT, "llmgw_key", "llmgw-ctl")
    snippet = text[text.index("from openai"):text.index("\n\nllmgw-ctl")]
    compile(snippet, "snippet", "exec")
    curl = next(line for line in text.splitlines() if line.startswith("curl"))
    assert json.loads(curl[curl.index("-d '") + 4:-1])["model"] == "demo-large"
    assert f"{LAYOUT.router_url}/v1/chat/completions" in curl


@pytest.mark.parametrize(("program", "gguf", "kind"), [
    ("/bin/true", "", UsageError), ("", "/etc/passwd", UsageError), ("/etc/none", "/etc/passwd", NotFound),
    ("/etc/passwd", "/etc/passwd", NotFound), ("/bin/true", "/etc/none", NotFound), ("/bin/true", "/etc", NotFound)])
def test_a_real_engine_must_be_whole_or_absent(program: str, gguf: str, kind: type[LlmgwError],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/etc/none")
    monkeypatch.delenv("LLMGW_GGUF", raising=False)
    with pytest.raises(kind):
        real_engine(program, gguf)


def test_without_an_engine_or_weights_it_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/etc/none")
    monkeypatch.setenv("LLMGW_GGUF", "/etc/passwd")
    assert real_engine("", "") is None
