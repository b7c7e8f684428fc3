"""Identities as they live: renewed in time, refused when revoked or removed, taken back by a new certificate. Real programs."""

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lib.base.errors import LlmgwError
from lib.host.openssl import read_dates
from lib.model.identity import Role, expect
from lib.net.client import Client
from tests.certificates import Certificates, Pair
from tests.eventually import eventually
from tests.live.ctl import ask, ctl, init, serving
from tests.live.running_demo import RunningDemo, running_demo
from tests.programs import free_port, program

HELLO = {"node_uid": "u", "boot_id": "b", "agent_run": "r", "version": "1"}
SHORT = 24 / 86400                          # days: renewed after two thirds of it


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    """A demo whose answers are so long that a stream does not end by itself."""
    with running_demo(tmp_path_factory.mktemp("life") / "demo") as running:
        before, long = running.all_ready(), '"--answer-tokens", "4000"'
        text = running.catalog.read_text().replace('"0.5"]', f'"0.5", {long}]')
        running.catalog.write_text(text.replace('engine = "sim"\ngpus = 1', f'engine = "sim"\ngpus = 1\nargs = [{long}]'))

        def exchanged() -> bool:
            rows = running.all_ready()
            return len(rows) == len(before) and {row["epoch"] for row in rows.values()}.isdisjoint(
                row["epoch"] for row in before.values())
        eventually(exchanged, 90, every_s=0.5)
        yield running


def serial_of(certificate: Path) -> str:
    done = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", certificate], capture_output=True, text=True,
                          check=True)
    return done.stdout.strip().partition("=")[2].lower().lstrip("0")


def node_pki(directory: Path, node: str, role: str = "node", *more: str, days: str = "") -> Path:
    """A certificate by hand, as an operator makes it."""
    out = directory / f"{role}-{node}"
    done = ctl("--dir", directory, "ca", "issue", "--role", role, "--name", node, "--address", "127.0.0.1", "--out", out,
               *(["--days", days] if days else []), *more)
    assert done.returncode == 0, done.stderr
    return out


def server_of(directory: Path) -> str:
    line = next(line for line in (directory / "ctl.toml").read_text().splitlines() if line.startswith("server"))
    return str(json.loads(line.partition("=")[2].partition("#")[0]))


def client(directory: Path, pki: Path, role: str = "node") -> Client:
    pair = Pair(pki / f"{role}.pem", pki / f"{role}.key", pki / "ca.pem")
    return Client(server_of(directory), pair.client_context(), check_peer=expect("lab", Role.CONTROL_PLANE))


def shorten(directory: Path) -> None:
    """Renewed certificates live for seconds."""
    file = directory / "ctl.toml"
    file.write_text(file.read_text().replace("certificate_days = 90", f"certificate_days = {SHORT}"))


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return init(tmp_path / "lab")


def agent_config(directory: Path, pki: Path, node: str) -> Path:
    home = directory / f"agent-{node}"
    home.mkdir()
    port = free_port()
    (home / "agent.toml").write_text(
        f'node = "{node}"\nserver = "{server_of(directory)}"\naddress = "127.0.0.1"\nports = "{port}-{port}"\n'
        f'state_dir = "state"\n[pki]\n'
        f'certificate = "{pki}/node.pem"\nkey = "{pki}/node.key"\nca = "{pki}/ca.pem"\n[hardware]\nib_root = "none"\n')
    (home / "none").mkdir()
    return home / "agent.toml"


class Background:
    """A role in the background, with its log."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)

    @property
    def said(self) -> str:
        return self.log.read_text()


def agent(config: Path) -> Background:
    return Background(config.with_name("log"), *program("agent"), "run", "--config", str(config))


def test_an_agent_renews_again_and_again_and_stays_in_contact(lab: Path) -> None:
    shorten(lab)
    with serving(lab):
        pki = node_pki(lab, "node01", days=str(SHORT))
        first = serial_of(pki / "node.pem")
        with agent(agent_config(lab, pki, "node01")) as running:
            eventually(lambda: [row["state"] for row in ask(lab, "nodes")] == ["ready"], 20)
            eventually(lambda: serial_of(pki / "node.pem") != first, 40)
            second = serial_of(pki / "node.pem")
            eventually(lambda: serial_of(pki / "node.pem") != second, 40)
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(read_dates(pki / "node.pem")[1]))
            eventually(lambda: ask(lab, "nodes")[0]["certificate_expires"] >= ends, 20)     # it is the one it speaks with
            assert "not reachable" not in running.said
            known = {row["serial"] for row in ask(lab, "ca", "list", "--id", "node01")}
            assert {first, second, serial_of(pki / "node.pem")} <= known
        assert sum("certificate of node node01 renewed" in event["text"] for event in ask(lab, "events")) >= 2


def test_a_router_renews_and_stays_in_contact(lab: Path) -> None:
    shorten(lab)
    with serving(lab):
        pki = node_pki(lab, "r1", "router", days=str(SHORT))
        config = lab / "router.toml"
        config.write_text(f'name = "r1"\nserver = "{server_of(lab)}"\nlisten = "127.0.0.1:{free_port()}"\n'
                          f'state_dir = "router"\nworkers = 1\n[pki]\n'
                          f'certificate = "{pki}/router.pem"\nkey = "{pki}/router.key"\nca = "{pki}/ca.pem"\n')
        first = serial_of(pki / "router.pem")
        with Background(lab / "router.log", *program("router"), "run", "--config", str(config)) as running:
            eventually(lambda: serial_of(pki / "router.pem") != first, 40)
            cut = serial_of(pki / "router.pem")
            assert ctl("--dir", lab, "ca", "revoke", first, "--yes").returncode == 0      # not the one it speaks with any more

            def heard() -> bool:
                routers = json.loads(ctl("--dir", lab, "status", "-o", "json").stdout)["routers"]
                return [row["id"] for row in routers if row["age_s"] < 4] == ["r1"]
            eventually(heard, 30)
            eventually(lambda: serial_of(pki / "router.pem") != cut, 40)
            eventually(heard, 30)
            assert "old certificate stays" not in running.said


def test_where_the_authority_is_away_nothing_is_renewed_and_all_say_so(lab: Path, tmp_path: Path) -> None:
    shorten(lab)
    key = lab / "ca" / "ca.key"
    with serving(lab):
        pki = node_pki(lab, "node01", days=str(SHORT))
        key.rename(tmp_path / "ca.key")                    # as where the authority lives on another host
        with agent(agent_config(lab, pki, "node01")) as running:
            eventually(lambda: "is not renewed: this control plane cannot renew certificates" in running.said, 40)
            assert "llmgw-onboard-node --renew --node node01" in running.said
            eventually(lambda: any("has not been renewed" in text or "expired" in text for row in ask(lab, "nodes")
                                   for text in row["conditions"]), 30)
            (tmp_path / "ca.key").rename(key)
            before = serial_of(pki / "node.pem")
            eventually(lambda: serial_of(pki / "node.pem") != before, 40)                   # and late is not too late


def test_a_revoked_certificate_is_refused_within_a_second_on_open_and_new_connections(lab: Path) -> None:
    with serving(lab):
        pki = node_pki(lab, "node01")
        with client(lab, pki) as open_one:
            open_one.post("/agent/v1/hello", {"node": "node01", **HELLO})
            session = open_one.post("/agent/v1/hello", {"node": "node01", **HELLO})["session"]
            held: list[tuple[float, LlmgwError]] = []

            def poll() -> None:
                sync = {"session": session, "agent_run": "r", "seq": 1, "applied_rev": 10**6, "hold_s": 20}
                try:
                    while True:
                        with client(lab, pki) as poller:
                            poller.post("/agent/v1/sync", sync, idempotent=True)
                        sync["seq"] = int(str(sync["seq"])) + 1
                except LlmgwError as err:
                    held.append((time.monotonic(), err))
            thread = threading.Thread(target=poll)
            thread.start()
            done = ctl("--dir", lab, "ca", "revoke", serial_of(pki / "node.pem"), "--reason", "stolen", "--yes")
            revoked = time.monotonic()
            assert done.returncode == 0, done.stderr
            with pytest.raises(LlmgwError, match="node node01: its certificate has been revoked"):
                open_one.post("/agent/v1/hello", {"node": "node01", **HELLO}, idempotent=True)
            with client(lab, pki) as new_one, pytest.raises(LlmgwError, match="revoked"):
                new_one.post("/agent/v1/hello", {"node": "node01", **HELLO})
            with client(lab, pki) as renewing, pytest.raises(LlmgwError, match="revoked"):
                renewing.post("/agent/v1/renew", {"csr": "x"})
            assert time.monotonic() - revoked < 1
            thread.join(5)
            assert not thread.is_alive()
            assert held[0][0] - revoked < 1
        assert [row["reason"] for row in ask(lab, "ca", "list", "--id", "node01")] == ["stolen"]
        assert "refused POST /agent/v1/hello" in (lab / "serve.log").read_text()


def test_a_removed_node_is_refused_by_name_and_comes_back_by_a_new_certificate(lab: Path) -> None:
    with serving(lab):
        pki = node_pki(lab, "node01")
        config = agent_config(lab, pki, "node01")
        with agent(config) as running:
            eventually(lambda: [row["state"] for row in ask(lab, "nodes")] == ["ready"], 20)
            done = ctl("--dir", lab, "remove", "node01", "--yes")
            assert done.returncode == 0, done.stderr
            eventually(lambda: ask(lab, "nodes") == [], 5)
            eventually(lambda: "node node01 was removed; onboard it again" in running.said, 20)
            assert "node node01 was removed; onboard it again" in (lab / "serve.log").read_text()
            node_pki(lab, "node01", "node", "--csr", str(request(pki)), "--out", str(lab / "fresh"))
            os.replace(lab / "fresh" / "node.pem", pki / "node.pem")
            eventually(lambda: [row["state"] for row in ask(lab, "nodes")] == ["ready"], 60)   # the agent was not even restarted
    with serving(lab):                                     # and after a restart all of it is so
        rows = ask(lab, "ca", "list", "--id", "node01")
        assert sorted(bool(row["revoked_at"]) for row in rows) == [False, True]


def request(pki: Path) -> Path:
    """A signing request for the key that is there."""
    subprocess.run(["openssl", "req", "-new", "-key", pki / "node.key", "-subj", "/CN=node01", "-out", pki / "csr"], check=True)
    return pki / "csr"


@pytest.mark.parametrize("kind, words", [
    ("expired", "certificate expired on"), ("not_yet_valid", "certificate is not valid before"),
    ("router", "a certificate of role router may not call /agent/v1/hello"),
    ("other node", "certificate 'node02' may not speak for 'node01'"), ("other cluster", "certificate of cluster 'mars'")])
def test_a_certificate_that_will_not_do_is_refused_with_its_own_reason_on_both_sides(
        lab: Path, kind: str, words: str) -> None:
    with serving(lab):
        pki = node_pki(lab, "node02" if kind == "other node" else "node01")
        certificates = Certificates(lab, "lab")
        pair = Pair(pki / "node.pem", pki / "node.key", pki / "ca.pem")
        if kind == "router":
            router = node_pki(lab, "node01", "router")
            pair = Pair(router / "router.pem", router / "router.key", router / "ca.pem")
        elif kind == "other cluster":
            pair = certificates.of_cluster("mars", pair)
        elif kind != "other node":
            pair = getattr(certificates, kind)(pair)
        with Client(server_of(lab), pair.client_context()) as caller, pytest.raises(LlmgwError) as caught:
            caller.post("/agent/v1/hello", {"node": "node01", **HELLO})
        assert words in str(caught.value)
        logged = "certificate 'node02' claims to be 'node01'" if kind == "other node" else words
        assert logged in (lab / "serve.log").read_text()


def test_an_expired_node_may_renew_for_a_week_and_nothing_else(lab: Path) -> None:
    with serving(lab):
        pki = node_pki(lab, "node01")
        expired = Certificates(lab, "lab").expired(Pair(pki / "node.pem", pki / "node.key", pki / "ca.pem"))
        os.replace(expired.cert, pki / "node.pem")
        with agent(agent_config(lab, pki, "node01")):
            eventually(lambda: [row["state"] for row in ask(lab, "nodes")] == ["ready"], 30)


def test_the_control_planes_own_certificate_is_replaced_under_it(lab: Path) -> None:
    with serving(lab):
        before = {row["serial"] for row in ask(lab, "ca", "list", "--id", "llmgw-ctl")}
        made = node_pki(lab, "llmgw-ctl", "control-plane")
        for name in ("control-plane.pem", "control-plane.key"):
            os.replace(made / name, lab / "pki" / name)
        eventually(lambda: len({row["serial"] for row in ask(lab, "ca", "list", "--id", "llmgw-ctl")} - before) == 1, 10)
        eventually(lambda: ctl("--dir", lab, "status").returncode == 0, 5)


def test_the_deny_list_is_exported_as_a_crl_that_openssl_believes(lab: Path) -> None:
    with serving(lab):
        pki = node_pki(lab, "node01")
        assert ctl("--dir", lab, "ca", "revoke", serial_of(pki / "node.pem"), "--yes").returncode == 0
        assert ctl("--dir", lab, "ca", "crl", "--out", lab / "crl.pem").returncode == 0
    done = subprocess.run(["openssl", "verify", "-CAfile", str(lab / "pki" / "ca.pem"), "-CRLfile", str(lab / "crl.pem"),
                           "-crl_check", str(pki / "node.pem")], capture_output=True, text=True, check=False)
    assert "certificate revoked" in done.stderr + done.stdout


def test_a_sealed_authority_opens_with_its_passphrase_for_issuing_and_renewing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    secret = credentials / "ca-passphrase"
    secret.touch(0o600)
    secret.write_text("correct horse\n")
    lab = init(tmp_path / "lab", "lab", "--passphrase-file", str(secret))
    assert "ENCRYPTED" in (lab / "ca" / "ca.key").read_text()
    refused = ctl("--dir", lab, "ca", "issue", "--role", "router", "--name", "r1", "--out", lab / "r1")
    assert (refused.returncode, "protected by a passphrase" in refused.stderr) == (78, True)
    shorten(lab)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    with serving(lab):
        pki = node_pki(lab, "node01", "node", "--passphrase-file", str(secret), days=str(SHORT))
        first = serial_of(pki / "node.pem")
        with agent(agent_config(lab, pki, "node01")):
            eventually(lambda: serial_of(pki / "node.pem") != first, 40)
    assert ask_status(lab)["sealed"]


def ask_status(lab: Path) -> Any:
    return json.loads(ctl("--dir", lab, "ca", "status", "-o", "json").stdout)


# -- in a cluster that serves ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stream(demo: RunningDemo, model: str = "demo-large") -> Iterator[http.client.HTTPResponse]:
    """A long streamed answer, begun."""
    connection = http.client.HTTPConnection(demo.url.removeprefix("http://"), timeout=60)
    body = {"model": model, "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": "go on"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"authorization": f"Bearer {demo.key}", "content-type": "application/json"})
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert answer.status == 200, answer.read()
        assert answer.read(10)
        yield answer


def seconds_to_end(answers: list[http.client.HTTPResponse], limit_s: float) -> list[float]:
    """How long from now until each stream ends, `limit_s` for those that go on."""
    began, ends = time.monotonic(), [limit_s] * len(answers)

    def follow(number: int) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while answers[number].read1(65536):
                if time.monotonic() - began >= limit_s:
                    return
        ends[number] = time.monotonic() - began
    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s + 5)
    return ends


def test_routers_let_go_of_a_node_whose_certificate_is_revoked_within_five_seconds(demo: RunningDemo) -> None:
    rows = demo.all_ready()
    replica = next(row for row in rows.values() if row["id"].startswith("large-ib-b"))
    node = next(shard["node"] for shard in replica["shards"] if shard["rank"] == 0)
    certificate = Path(demo.facts["nodes"][node]["config"]).parent / "pki" / "node.pem"
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(stream(demo)) for _ in range(6)]
        demo.ctl("ca", "revoke", serial_of(certificate), "--yes")
        ends = sorted(seconds_to_end(streams, 8))
    assert ends[0] < 5, ends                               # those that ran there are cut
    assert not [each for each in ends if 5 < each < 8], ends
    assert ends[-1] == 8, ends                             # the others are none of its business


def test_guards_close_the_streams_of_a_router_whose_certificate_is_revoked_within_five_seconds(demo: RunningDemo) -> None:
    with stream(demo, "demo-small") as answer:
        demo.ctl("ca", "revoke", serial_of(demo.directory / "router" / "pki" / "router.pem"), "--yes")
        assert seconds_to_end([answer], 8)[0] < 5
