"""Changes by operators: done once, audited, and never with a secret at rest."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lib.base.errors import ConfigError, NotFound, UsageError
from lib.control import operators
from lib.control.catalogs import CatalogFile
from lib.control.plane import Plane
from lib.model.committed import Change, Committed
from lib.model.fleet import Replica, ReplicaState
from lib.model.identity import Identity, Role
from lib.net.server import Request
from lib.store.db import Store

ADMIN = Identity("demo", Role.OPERATOR, "admin")
CATALOG = '[models.m]\n[profiles.p]\nmodel = "m"\nengine = "sim"\n'


class Desk:
    """The operator routes of a control plane whose loop does not run."""

    def __init__(self, directory: Path) -> None:
        Store.create(directory / "state.db", "demo")
        self.store, self.file = Store.open(directory / "state.db"), directory / "catalog.toml"
        self.file.write_text("")
        catalog = CatalogFile(self.file, Committed(), lambda *_: None)
        self.plane = Plane(self.store, catalog, b"x" * 32)
        self._routes = {(route.method, route.path): route for route in operators.routes(self.plane)}

    def call(self, method: str, path: str, body: object = None, *, key: str = "", rest: str = "",
             query: dict[str, str] | None = None) -> Any:
        headers = {"idempotency-key": key} if key else {}
        request = Request(method, f"/ctl/v1/{path}", query or {}, headers, json.dumps(body).encode(), None, ("10.0.0.9", 1))
        return self._routes[method, f"/ctl/v1/{path}"].handle(ADMIN, request, rest)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_api_key_is_shown_once_and_stored_as_a_hash(desk: Desk, tmp_path: Path) -> None:
    made = desk.call("POST", "keys", {"name": "alice", "limits": {"models": ["m"], "concurrency": 2}}, key="k1")
    stored = desk.store.state().keys[made["id"]]
    assert made["key"].startswith(f"llmgw_{made['id']}_")
    assert stored.sha256 == hashlib.sha256(made["key"].encode()).hexdigest()
    assert desk.call("GET", "keys") == [{"id": made["id"], "name": "alice",
                                         "limits": {"models": ["m"], "concurrency": 2, "requests_per_minute": 0}}]
    desk.store.close()
    secret = made["key"].split("_", 2)[2].encode()
    assert not [path for path in tmp_path.iterdir() if secret in path.read_bytes()]


def test_a_change_asked_for_twice_is_done_once(desk: Desk) -> None:
    first = desk.call("POST", "keys", {"name": "bob"}, key="k1")
    again = desk.call("POST", "keys", {"name": "bob"}, key="k1")
    assert again == {**first, "key": ""}
    assert len(desk.store.state().keys) == 1
    with pytest.raises(UsageError, match="another request"):
        desk.call("POST", "keys", {"name": "carol"}, key="k1")


def test_a_revoked_key_is_gone_and_an_unknown_one_is_not_found(desk: Desk) -> None:
    made = desk.call("POST", "keys", {"name": "bob"})
    assert desk.call("DELETE", "keys/*", rest=made["id"]) == {"id": made["id"]}
    assert desk.store.state().keys == {}
    with pytest.raises(NotFound):
        desk.call("DELETE", "keys/*", rest=made["id"])


def test_every_change_and_every_refusal_is_in_the_audit_trail(desk: Desk) -> None:
    desk.call("POST", "keys", {"name": "bob"})
    with pytest.raises(ConfigError):
        desk.call("POST", "catalog/apply", {"text": "[profiles.p]\n", "file": "c.toml"})
    trail = [(entry.actor, entry.action, entry.result.partition(":")[0]) for entry in desk.store.audit_trail()]
    assert trail == [("admin", "create key", "done"), ("admin", "POST /ctl/v1/catalog/apply", "refused")]


def test_an_applied_catalog_is_current_committed_and_in_the_file(desk: Desk) -> None:
    changes = desk.call("POST", "catalog/apply", {"text": CATALOG, "file": "new.toml"})
    assert [(row["profile"], row["change"]) for row in changes] == [("p", "added")]
    assert list(desk.plane.catalog.current.profiles) == ["p"]
    assert desk.store.state().catalog == desk.file.read_text() == CATALOG
    assert desk.plane.catalog.poll() is False


def test_a_refused_catalog_changes_nothing(desk: Desk) -> None:
    desk.call("POST", "catalog/apply", {"text": CATALOG})
    with pytest.raises(ConfigError, match="no engine 'smi'"):
        desk.call("POST", "catalog/apply", {"text": CATALOG.replace('"sim"', '"smi"'), "file": "x.toml"})
    assert desk.store.state().catalog == desk.file.read_text() == CATALOG


@pytest.mark.parametrize("after, restarts", [
    (CATALOG.replace('"sim"', '"sim"\nargs = ["--slots", "2"]'), [True]),
    (CATALOG.replace('"sim"', '"sim"\nmax_inflight = 3'), [False]),
    (CATALOG.replace("[models.m]", "[models.m]\n\n# a comment\n"), []),
    ("[models.m]\n", [False]),
])
def test_diff_says_which_replicas_roll_and_which_do_not(desk: Desk, after: str, restarts: list[bool]) -> None:
    desk.call("POST", "catalog/apply", {"text": CATALOG})
    assert [row["restarts"] for row in desk.call("POST", "catalog/diff", {"text": after})] == restarts


def test_diff_says_what_is_stopped_for_good(desk: Desk) -> None:
    for number in (1, 2, 3):
        with desk.store.change("", "place") as step:
            step.perform(Change(f"p-{number}", replica=Replica(f"p-{number}", "p", "m", 1, ReplicaState.PENDING)))
    desk.call("POST", "catalog/apply", {"text": CATALOG + "replicas = 3\n"})
    fewer, = desk.call("POST", "catalog/diff", {"text": CATALOG})
    assert (fewer["restarts"], fewer["stops"]) == (False, 2)
    assert fewer["detail"] == "replicas changed: 2 of 3 replicas are drained and stopped"
    more, = desk.call("POST", "catalog/diff", {"text": CATALOG + "replicas = 4\n"})
    assert (more["stops"], more["detail"]) == (0, "replicas changed: running replicas stay")
    gone, = desk.call("POST", "catalog/diff", {"text": "[models.m]\n"})
    assert (gone["change"], gone["stops"]) == ("removed", 3)


@pytest.mark.parametrize("method, path, body", [
    ("POST", "keys", []), ("POST", "keys", {"name": 7}), ("POST", "keys", {"limits": {"models": "m"}}),
    ("POST", "catalog/apply", {"text": 1}), ("POST", "catalog/check", "x"),
])
def test_a_body_of_the_wrong_shape_is_refused(desk: Desk, method: str, path: str, body: object) -> None:
    with pytest.raises(UsageError):
        desk.call(method, path, body)


def test_numbers_in_a_query_are_numbers(desk: Desk) -> None:
    assert desk.call("GET", "events", query={"after": "0", "limit": "5"}) == []
    for bad in ("-1", "x", "1e9", "٣"):
        with pytest.raises(UsageError, match="whole number"):
            desk.call("GET", "events", query={"after": bad})
