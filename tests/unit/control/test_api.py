"""Who may call what: every cell of the table, deny by default."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lib.base.errors import LlmgwError, NotFound, Refused
from lib.control import operators, peers
from lib.control.api import Api, Route
from lib.control.catalogs import CatalogFile
from lib.control.plane import Plane
from lib.model.committed import Committed
from lib.model.identity import Identity, Role
from lib.net.server import Request
from lib.store.db import Store

CLUSTER = "demo"


def certificate(role: str, id: str, *, cluster: str = CLUSTER, days: float = 30.0) -> dict[str, Any]:
    """As `getpeercert()` gives it."""
    def moment(offset_s: float) -> str:
        return time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + offset_s))
    return {"subject": ((("commonName", id),),),
            "subjectAltName": (("URI", f"llmgw://{cluster}/{role}/{id}"), ("DNS", f"{id}.x")), "serialNumber": "0A1B",
            "notBefore": moment(-86400 * 60), "notAfter": moment(86400 * days)}


def call(api: Api, method: str, path: str, peer: Mapping[str, Any] | None, body: bytes = b"{}") -> Any:
    return api(Request(method, path, {}, {}, body, peer, ("10.0.0.9", 5555))).body


@pytest.fixture
def routes(tmp_path: Path) -> list[Route]:
    Store.create(tmp_path / "state.db", CLUSTER)
    store = Store.open(tmp_path / "state.db")
    (tmp_path / "catalog.toml").write_text("")
    plane = Plane(store, CatalogFile(tmp_path / "catalog.toml", Committed(), lambda *_: None), b"x" * 32)
    return [*operators.routes(plane), *peers.routes(plane)]


def test_every_route_lets_in_one_role_and_refuses_all_others_before_its_handler_runs(routes: list[Route]) -> None:
    reached: list[str] = []
    marked = [Route(route.method, route.path, route.role, lambda *_, name=route.path: reached.append(name)) for route in routes]
    api = Api(CLUSTER, marked, lambda _: "")
    for route in routes:
        path = route.path.replace("/*", "/some-id")
        for role in Role:
            reached.clear()
            if role is route.role:
                call(api, route.method, path, certificate(role, "some-id"))
                assert reached == [route.path]
            else:
                with pytest.raises(Refused, match=f"role {role} may not"):
                    call(api, route.method, path, certificate(role, "some-id"))
                assert not reached
    assert {route.role for route in routes} == {Role.NODE, Role.ROUTER, Role.OPERATOR}


@pytest.mark.parametrize("peer, words", [
    (None, "no client certificate"),
    (certificate("operator", "admin", cluster="other"), "cluster 'other'"),
    (certificate("operator", "admin", days=-1), "expired"),
    ({**certificate("operator", "admin"), "subject": ((("commonName", "somebody"),),)}, "not an identity"),
])
def test_a_caller_who_is_nobody_here_is_told_why(routes: list[Route], peer: Mapping[str, Any] | None, words: str) -> None:
    with pytest.raises(Refused, match=words):
        call(Api(CLUSTER, routes, lambda _: ""), "GET", "/ctl/v1/nodes", peer)


def test_a_revoked_certificate_is_refused_on_the_next_request_of_a_connection_that_was_let_in(routes: list[Route]) -> None:
    revoked: set[str] = set()
    api = Api(CLUSTER, routes, lambda caller: "its certificate has been revoked" if caller.serial in revoked else "")
    assert call(api, "GET", "/ctl/v1/nodes", certificate("operator", "admin")) == []
    revoked.add("a1b")
    with pytest.raises(Refused, match="revoked"):
        call(api, "GET", "/ctl/v1/nodes", certificate("operator", "admin"))


@pytest.mark.parametrize("path, claim", [
    ("/agent/v1/hello", b'{"node": "node02", "node_uid": "u", "boot_id": "b", "agent_run": "r", "version": "1"}'),
    ("/agent/v1/sync", b'{"session": "s", "agent_run": "r", "seq": 1, "applied_rev": 0, "inventory":'
                       b' {"node": "node02", "hostname": "h", "address": "10.0.0.1", "port_low": 1, "port_high": 2}}'),
])
def test_a_node_that_speaks_for_another_is_refused_and_both_names_are_logged(
        routes: list[Route], path: str, claim: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(Refused, match="'node01' may not speak for 'node02'"):
        call(Api(CLUSTER, routes, lambda _: ""), "POST", path, certificate("node", "node01"), claim)
    assert "'node01' claims to be 'node02', from ('10.0.0.9', 5555)" in caplog.text


def test_a_router_reports_for_itself_only(routes: list[Route]) -> None:
    with pytest.raises(Refused, match="'r1' may not speak for 'r2'"):
        call(Api(CLUSTER, routes, lambda _: ""), "POST", "/router/v1/report", certificate("router", "r1"),
             b'{"router": "r2", "applied_rev": 1}')


def test_what_is_not_there_is_not_found_and_another_method_is_said_to_be_none(routes: list[Route]) -> None:
    api, admin = Api(CLUSTER, routes, lambda _: ""), certificate("operator", "admin")
    for path in ("/", "/ctl/v1/secrets", "/ctl/v1/nodes/x/y", "/ctl/v1/nodes/"):
        with pytest.raises(NotFound):
            call(api, "GET", path, admin)
    with pytest.raises(Refused, match="DELETE is not a method"):
        call(api, "DELETE", "/ctl/v1/nodes", admin)


def test_a_body_that_does_not_fit_is_refused_with_the_field(routes: list[Route]) -> None:
    api = Api(CLUSTER, routes, lambda _: "")
    for body, words in ((b"", "not JSON"), (b"[]", "must be an object"), (b'{"node": 7}', "hello.node: must be str")):
        with pytest.raises(LlmgwError, match=words):
            call(api, "POST", "/agent/v1/hello", certificate("node", "node01"), body)


def test_an_identity_says_its_role_first() -> None:
    assert str(Identity("demo", Role.NODE, "n1")) == "node n1"
