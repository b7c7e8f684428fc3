"""Certificates and removals by operators: kept, revoked for ever, and forgotten nodes come back only by a new certificate."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lib.base.errors import Blocked, NotFound, Refused, UsageError
from lib.control import operators
from lib.control.catalogs import CatalogFile
from lib.control.plane import Plane
from lib.control.register import Register
from lib.model.certificate import Certificate
from lib.model.committed import Change, Committed
from lib.model.fleet import Epoch, KnownNode, Placed, Replica, ReplicaState
from lib.model.identity import Identity, Role
from lib.net.server import Request
from lib.net.tls import PeerCert
from lib.store.db import Store

ADMIN = Identity("demo", Role.OPERATOR, "admin", "99")
NODE = {"serial": "a1", "role": "node", "id": "node01", "not_before": "2026-01-01T00:00:00Z", "not_after": "2026-04-01T00:00:00Z"}


class Desk:
    """The operator routes over one state file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.db"
        if not self.path.exists():
            Store.create(self.path, "demo")
        (directory / "catalog.toml").write_text("")
        self.store = Store.open(self.path)
        self.plane = Plane(self.store, CatalogFile(directory / "catalog.toml", Committed(), lambda *_: None), b"x" * 32)
        self.register = Register(self.plane)
        self._routes = {(route.method, route.path): route for route in operators.routes(self.plane)}

    def call(self, method: str, path: str, body: object = None, *, rest: str = "", query: dict[str, str] | None = None) -> Any:
        raw = b"" if body is None else json.dumps(body).encode()
        request = Request(method, f"/ctl/v1/{path}", query or {}, {}, raw, None, ("10.0.0.9", 1))
        return self._routes[method, f"/ctl/v1/{path}"].handle(ADMIN, request, rest)

    def record(self, **more: str) -> Any:
        return self.call("POST", "certificates", {**NODE, **more})

    def revoke(self, serial: str, **body: Any) -> Any:
        return self.call("POST", "certificates/*/revoke", body, rest=serial)

    def remove(self, node: str, **body: Any) -> Any:
        return self.call("POST", "nodes/*/remove", body, rest=node)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    yield (made := Desk(tmp_path))
    made.store.close()


def placed(desk: Desk) -> None:
    """node01 with one ready replica on it."""
    row = Replica("solo-1", "solo", "m", 1, ReplicaState.READY, epoch=Epoch(1, "aa"), shards=(
        Placed(0, "node01", address="10.0.0.1", port=20000),))
    with desk.store.change("", "test") as step:
        step.perform(Change("node01", node=KnownNode("node01")))
        step.perform(Change("solo-1", replica=row))


def peer(serial: str, role: str = "node", id: str = "node01") -> PeerCert:
    return {"subject": ((("commonName", id),),), "subjectAltName": (("URI", f"llmgw://demo/{role}/{id}"),),
            "serialNumber": serial.upper(), "notBefore": "Jan  1 00:00:00 2026 GMT", "notAfter": "Apr  1 00:00:00 2026 GMT"}


def test_a_recorded_certificate_is_listed_and_recording_it_again_changes_nothing(desk: Desk) -> None:
    first = desk.record()
    assert first == {**NODE, "revoked_at": "", "reason": ""}
    assert desk.record() == first
    desk.record(serial="0B:2C", id="node02")
    assert [row["serial"] for row in desk.call("GET", "certificates")] == ["a1", "b2c"]
    assert [row["id"] for row in desk.call("GET", "certificates", query={"id": "node02"})] == ["node02"]


@pytest.mark.parametrize("wrong, words", [
    ({"serial": "xyz"}, "not the serial"), ({"role": "king"}, "no role"), ({"id": "Node 1"}, "cannot be an id"),
    ({"not_after": "tomorrow"}, "not a time in UTC"), ({"not_after": "2026-04-01T00:00:00"}, "not a time in UTC"),
    ({"not_after": "2025-04-01T00:00:00Z"}, "ends before it begins")])
def test_a_record_that_makes_no_sense_is_refused(desk: Desk, wrong: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        desk.record(**wrong)


def test_one_serial_cannot_belong_to_two(desk: Desk) -> None:
    desk.record()
    with pytest.raises(Refused, match="known as the certificate a1 of node node01"):
        desk.record(id="node02")


def test_a_revocation_shuts_out_says_why_and_outlives_an_older_state_file(desk: Desk, tmp_path: Path) -> None:
    desk.record()
    desk.store.backup(tmp_path / "before.db")
    assert desk.revoke("A1", reason="key lost") == {"serial": "a1", "role": "node", "id": "node01"}
    assert "revoked" in desk.register.refusal(Identity("demo", Role.NODE, "node01", "a1"))
    row = desk.call("GET", "certificates")[0]
    assert (row["reason"], row["revoked_at"][:2]) == ("key lost", "20")
    desk.store.close()
    for leftover in tmp_path.glob("state.db*"):
        leftover.unlink()
    (tmp_path / "before.db").rename(desk.path)
    again = Desk(tmp_path)
    assert again.store.state().revoked == ("a1",)
    assert again.call("GET", "certificates")[0]["reason"] == "key lost"
    again.store.close()


def test_a_serial_nobody_knows_is_revoked_only_when_that_is_meant(desk: Desk) -> None:
    with pytest.raises(NotFound, match="no certificate with serial ff"):
        desk.revoke("ff")
    desk.revoke("ff", unknown=True)
    assert desk.call("GET", "certificates")[0]["serial"] == "ff"


def test_nobody_revokes_the_certificate_they_speak_with(desk: Desk) -> None:
    with pytest.raises(Refused, match="you speak with"):
        desk.revoke("99", unknown=True)


def test_open_connections_of_the_revoked_are_ended_and_of_nobody_else(desk: Desk) -> None:
    ended: list[str] = []
    peers = [peer("a1"), peer("a2"), peer("a3", "router", "node01")]

    def cut(shut_out: Callable[[PeerCert], bool]) -> int:
        chosen = [each["serialNumber"] for each in peers if shut_out(each)]
        ended.extend(chosen)
        return len(chosen)
    desk.plane.cut = cut
    desk.record()
    desk.revoke("a1")
    assert ended == ["A1"]
    desk.remove("node01")
    assert ended == ["A1", "A1", "A2"]                     # by its id, whatever its serial; a router of that name stays


def test_a_node_that_runs_something_is_removed_only_by_force_and_its_replicas_are_rebuilt(desk: Desk) -> None:
    placed(desk)
    with pytest.raises(Blocked, match="node node01 runs solo-1"):
        desk.remove("node01")
    assert not desk.store.state().removed
    assert desk.remove("node01", force=True) == {"id": "node01", "replicas": ["solo-1"]}
    desk.plane.tick()
    state = desk.store.state()
    assert "node01" not in state.nodes
    assert not [row for row in state.replicas.values() if row.state is ReplicaState.READY]
    assert [held.node for held in state.held.values()] == ["node01"]    # known for what it is, should the machine come back


def test_a_removed_node_is_refused_by_name_until_a_new_certificate_is_recorded(desk: Desk) -> None:
    desk.record()
    placed(desk)
    desk.remove("node01", force=True)
    node = Identity("demo", Role.NODE, "node01", "c3")
    with pytest.raises(Refused, match="node node01 was removed; onboard it again"):
        desk.register.refusal(node)
    desk.record()                                          # the old certificate brings nobody back
    with pytest.raises(Refused, match="was removed"):
        desk.register.refusal(node)
    desk.record(serial="c3")
    assert desk.register.refusal(node) == ""
    assert "revoked" in desk.register.refusal(Identity("demo", Role.NODE, "node01", "a1"))


def test_a_removal_outlives_an_older_state_file_and_a_return_does_too(desk: Desk, tmp_path: Path) -> None:
    desk.record()
    desk.store.backup(tmp_path / "member.db")
    desk.remove("node01")
    desk.store.backup(tmp_path / "removed.db")
    desk.store.close()
    (tmp_path / "member.db").replace(desk.path)
    again = Desk(tmp_path)
    assert again.store.state().removed == {"node01"}
    again.record(serial="c3")
    again.store.close()
    (tmp_path / "removed.db").replace(desk.path)
    last = Desk(tmp_path)
    assert not last.store.state().removed
    last.store.close()


def test_a_node_nobody_knows_cannot_be_removed(desk: Desk) -> None:
    with pytest.raises(NotFound, match="no node 'node09'"):
        desk.remove("node09")


def test_every_certificate_that_is_let_in_is_kept(desk: Desk) -> None:
    desk.register.note(Identity("demo", Role.NODE, "node01", "d4"), peer("d4"))
    rev = desk.store.state().rev
    desk.register.note(Identity("demo", Role.NODE, "node01", "d4"), peer("d4"))
    assert desk.store.state().rev == rev
    assert desk.store.state().certificates["d4"] == Certificate("d4", Role.NODE, "node01", 1767225600.0, 1775001600.0)
    desk.remove("node01")
    assert desk.store.state().revoked == ("d4",)
