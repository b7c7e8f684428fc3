"""How a router follows its control plane: tables applied, kept, refused; reports posted; and serving while it is away."""

import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from lib.model.codec import decode, encode
from lib.model.identity import identity_of
from lib.model.wire import KeyEntry, RouterReport, RouterTable
from lib.net.server import Request, Response, Server
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.routers import KEY, Router, make_table, route, running, with_replicas
from tests.stub_engine import DONE, LAST_CHUNK, STREAM_HEAD, Connection, StubGuard, event

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Plane:
    """A control plane of two routes: holds polls until there is another table, keeps the reports."""

    def __init__(self, certificates: Certificates, table: RouterTable | None, port: int = 0) -> None:
        self.reports: list[RouterReport] = []
        self.callers: set[str] = set()
        self._table: Any = encode(table) if table else None
        self._news = threading.Condition()
        self._server = Server(("127.0.0.1", port), certificates.control_plane().server_context(), self._handle)
        self._server.start()
        self.port = self._server.address[1]
        self.url = f"https://127.0.0.1:{self.port}"

    def publish(self, table: Any) -> None:
        with self._news:
            self._table = table
            self._news.notify_all()

    def close(self) -> None:
        self._server.close()

    def _handle(self, request: Request) -> Response:
        self.callers.add(identity_of(request.peer).uri)
        if request.method == "POST":
            self.reports.append(decode(RouterReport, request.json()))
            return Response(200, {})
        have = int(request.query["rev"]), int(request.query["cp_epoch"])
        with self._news:
            self._news.wait_for(lambda: self._news_for(have), min(0.6, float(request.query["hold"])))
            return Response(200, self._table)

    def _news_for(self, have: tuple[int, int]) -> bool:
        table = self._table
        return table is not None and (not isinstance(table, dict) or (table.get("rev"), table.get("cp_epoch")) != have)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def guard(certificates: Certificates) -> Iterator[StubGuard]:
    made = StubGuard(certificates.node())
    yield made
    made.close()


def rev(router: Router) -> int:
    return int(router.metric("llmgw_router_table_rev"))


def test_a_router_gets_its_table_reports_it_and_keeps_it_private(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url, workers=2) as router:
        eventually(lambda: router.ask(body=CHAT)[0] == 200)
        eventually(lambda: plane.reports and plane.reports[-1].seen)
        report = plane.reports[-1]
        assert (report.router, report.applied_rev, report.applied_cp_epoch) == ("llmgw-router01", 5, 2)
        assert [(seen.replica, seen.counter) for seen in report.seen] == [("r1", 7)]
        assert 0 <= report.seen[0].ok_age_s < 60
        assert plane.callers == {"llmgw://demo/router/llmgw-router01"}
        kept = tmp_path / "state" / "table.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert decode(RouterTable, json.loads(kept.read_text())) == table
    plane.close()


def test_a_new_table_is_applied_at_once_and_acknowledged(tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    other = StubGuard(certificates.node(), id="r2")
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url, workers=2) as router:
        eventually(lambda: router.ask(body=CHAT)[0] == 200)
        plane.publish(encode(with_replicas(table, "m", other.endpoint, rev=6)))
        eventually(lambda: plane.reports[-1].applied_rev == 6, timeout_s=2)
        before = len(guard.requests)
        assert {router.ask(body=CHAT)[0] for _ in range(6)} == {200}
        assert (len(guard.requests), len(other.requests)) == (before, 6)
        eventually(lambda: not guard.live)                 # connections kept for later are closed with the replica
        assert router.metric("llmgw_router_replica_inflight") == 0
    plane.close()
    other.close()


def test_a_stream_outlives_the_removal_of_its_replica_from_the_table(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    release = threading.Event()

    def script(connection: Connection) -> None:
        connection.send(STREAM_HEAD + event("a"))
        release.wait(20)
        connection.send(event("b") + DONE + LAST_CHUNK)
    guard.script = script
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: rev(router) == 5)
        client = openai.OpenAI(base_url=router.url + "/v1", api_key=KEY, max_retries=0)
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        words = [next(stream).choices[0].delta.content]
        plane.publish(encode(with_replicas(table, "m", rev=6)))
        eventually(lambda: rev(router) == 6)
        assert router.ask(body=CHAT)[1]["error"]["code"] == "model_not_ready"
        release.set()
        words += [part.choices[0].delta.content for part in stream]
        assert words == ["a", "b"]
        client.close()
    plane.close()


def test_a_revoked_key_stops_working_though_its_head_was_remembered(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: router.ask(body=CHAT)[0] == 200)
        plane.publish(encode(replace(table, rev=6, keys=(KeyEntry("k2", "0" * 64),))))
        eventually(lambda: rev(router) == 6)
        assert router.ask(body=CHAT)[0] == 401
    plane.close()


def test_a_table_that_is_older_or_cannot_be_routed_by_is_refused(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: rev(router) == 5)
        bad = [encode(replace(table, rev=4)), encode(replace(table, rev=9, cp_epoch=1)), {"rev": 9}, ["no"],
               encode(replace(table, rev=9, cluster="other")),
               encode(replace(table, rev=9, models={"a": route(aliases=("m",)), "m": route()})),
               encode(with_replicas(table, "m", replace(guard.endpoint, engine_key="x\r\nEvil: 1"), rev=9)),
               encode(with_replicas(table, "m", replace(guard.endpoint, addr="localhost"), rev=9))]
        for number, value in enumerate(bad):
            said = router.log.count("control plane: ")
            plane.publish(value)
            eventually(lambda said=said: router.log.count("control plane: ") > said, timeout_s=45)  # type: ignore[misc]
            assert rev(router) == 5, number
            assert router.ask(body=CHAT)[0] == 200
            plane.publish(encode(table))
            said = router.log.count("in contact again")
            eventually(lambda number=number: router.log.count("in contact again") > number, timeout_s=45)  # type: ignore[misc]
    plane.close()


def test_another_lineage_may_begin_lower(tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: rev(router) == 5)
        plane.publish(encode(replace(table, rev=1, lineage="l2")))
        eventually(lambda: rev(router) == 1)
    plane.close()


def test_without_its_control_plane_a_router_serves_restarts_and_comes_back(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: rev(router) == 5)
        plane.close()
        assert router.ask(body=CHAT)[0] == 200
    with running(tmp_path, certificates, table, server=plane.url) as router:       # from disk
        assert router.ask(body=CHAT)[0] == 200
        eventually(lambda: "connection refused" in router.log)
        again = Plane(certificates, replace(table, rev=8), plane.port)
        eventually(lambda: rev(router) == 8, timeout_s=60)
        again.close()


def test_a_follower_that_dies_is_replaced(tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    table = make_table({"m": route(guard.endpoint)})
    plane = Plane(certificates, table)
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: rev(router) == 5)
        os.kill(router.workers()[-1], signal.SIGKILL)
        plane.publish(encode(replace(table, rev=6)))
        eventually(lambda: rev(router) == 6)
    plane.close()


def test_a_control_plane_of_another_role_is_not_believed(tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    class Impostor(Certificates):
        def control_plane(self, id: str = "llmgw-node01") -> Any:
            return certificates.node()
    plane = Plane(Impostor.__new__(Impostor), make_table({"m": route(guard.endpoint)}))
    with running(tmp_path, certificates, None, server=plane.url) as router:
        eventually(lambda: "not a control-plane" in router.log)
        assert router.ask("/ready", key="")[0] == 503
    plane.close()


def test_an_openai_client_gets_its_answers_and_the_right_exceptions(
        tmp_path: Path, certificates: Certificates, guard: StubGuard) -> None:
    guard.script = lambda c: c.send(STREAM_HEAD + event("hel") + event("lo") + DONE + LAST_CHUNK)
    with running(tmp_path, certificates, make_table({"m": route(guard.endpoint), "down": route(state="starting")})) as router:
        client = openai.OpenAI(base_url=router.url + "/v1", api_key=KEY, max_retries=0)
        assert [model.id for model in client.models.list()] == ["down", "m"]
        assert client.models.retrieve("m").id == "m"
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "hello"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="typo", messages=[])
        with pytest.raises(openai.InternalServerError, match="starting"):
            client.chat.completions.create(model="down", messages=[])
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="bad").models.list()
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="", messages=[])
        client.close()
