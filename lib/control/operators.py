"""What an operator's certificate can ask and change.

Room: control. Reads come from one view; changes are committed before they are answered, with a line in the audit trail, and
carry an idempotency key so that a client may ask twice what was done once.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lib.base.errors import LlmgwError, NotFound, UsageError
from lib.base.version import VERSION
from lib.control import identities, listing
from lib.control.api import Handler, Route, whole_number
from lib.control.plane import Plane
from lib.control.register import Register
from lib.model.codec import decode, encode
from lib.model.committed import ApiKey
from lib.model.identity import Identity, Role
from lib.model.wire import EVENTS_AT_ONCE, KeyLimits
from lib.net.server import Request
from lib.store.db import Transaction

Json = dict[str, Any]


def routes(plane: Plane) -> Sequence[Route]:
    """Everything under /ctl/v1/."""
    handlers = Handlers(plane)
    register = Register(plane)
    reads: dict[str, Handler] = {
        "version": lambda *_: {"version": VERSION}, "status": handlers.status, "nodes": handlers.nodes, "nodes/*": handlers.node,
        "replicas": handlers.replicas, "replicas/*": handlers.replica, "models": lambda *_: listing.models(plane.view()),
        "events": handlers.events, "keys": handlers.keys,
        "certificates": lambda _caller, request, _rest: register.listing(request.query.get("id", "")),
        "catalog": lambda *_: {"text": plane.catalog.text, "fault": plane.catalog.fault}}
    changes: dict[tuple[str, str], Handler] = {
        ("POST", "catalog/apply"): handlers.once(handlers.apply_catalog), ("POST", "keys"): handlers.once(handlers.create_key),
        ("DELETE", "keys/*"): handlers.once(handlers.revoke_key), **{
            ("POST", path): handlers.once(handle) for path, handle in identities.changes(register, handlers.commit).items()}}
    return [*(Route("GET", f"/ctl/v1/{path}", Role.OPERATOR, handle) for path, handle in reads.items()),
            *(Route("POST", f"/ctl/v1/catalog/{word}", Role.OPERATOR, handle)
              for word, handle in (("check", handlers.check_catalog), ("diff", handlers.diff_catalog))),
            *(Route(method, f"/ctl/v1/{path}", Role.OPERATOR, handle) for (method, path), handle in changes.items())]


class Handlers:
    """One method a route; each takes (caller, request, what stands behind the path)."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def once(self, handle: Handler) -> Handler:
        """The same change asked for twice under one Idempotency-Key is done once; a refusal goes to the audit trail."""
        def wrapped(caller: Identity, request: Request, rest: str) -> object:
            if (key := _idempotency_key(request)) and (known := self._plane.store.recall(key, _digest(request))) is not None:
                return json.loads(known)
            try:
                return handle(caller, request, rest)
            except LlmgwError as err:
                self._plane.store.refused(caller.id, f"{request.method} {request.path}", rest, str(err))
                raise
        return wrapped

    def commit(self, caller: Identity, request: Request, action: str, target: str, work: Callable[[Transaction], None],
                answer: object) -> None:
        """Do `work`, keep `answer` for whoever asks again, and write the audit line: all in one transaction."""
        with self._plane.store.change(caller.id, action, target) as step:
            work(step)
            if key := _idempotency_key(request):
                step.remember(key, _digest(request), caller.id, json.dumps(answer))
        self._plane.poke()

    def status(self, _caller: Identity, _request: Request, _rest: str) -> Json:
        plane = self._plane
        return listing.status(plane.view(), plane.catalog.fault, plane.store.fault, plane.presented, plane.now().wall)

    def nodes(self, _caller: Identity, _request: Request, _rest: str) -> list[Json]:
        return listing.nodes(self._plane.view(), self._plane.presented, self._plane.now().wall)

    def node(self, _caller: Identity, _request: Request, rest: str) -> Json:
        found = listing.node(self._plane.view(), rest, self._plane.presented, self._plane.now().wall)
        return _found(found, "node", rest, "nodes")

    def replicas(self, _caller: Identity, request: Request, _rest: str) -> list[Json]:
        everything = request.query.get("all", "") not in ("", "0")
        return listing.replicas(self._plane.view(), self._plane.now().wall, everything=everything)

    def replica(self, _caller: Identity, _request: Request, rest: str) -> Json:
        return _found(listing.replica(self._plane.view(), rest, self._plane.now().wall), "replica", rest, "replicas --all")

    def events(self, _caller: Identity, request: Request, _rest: str) -> list[Json]:
        after, limit = whole_number(request, "after", 0), min(whole_number(request, "limit", 200), EVENTS_AT_ONCE)
        return [encode(event) for event in self._plane.store.events(after, limit)]

    def check_catalog(self, _caller: Identity, request: Request, _rest: str) -> Json:
        catalog = self._plane.catalog.check(*_catalog_text(request))
        return {"models": sorted(catalog.models), "profiles": sorted(catalog.profiles)}

    def diff_catalog(self, _caller: Identity, request: Request, _rest: str) -> list[Json]:
        view = self._plane.view()
        return listing.catalog_diff(view, replace(view, catalog=self._plane.catalog.check(*_catalog_text(request))))

    def apply_catalog(self, caller: Identity, request: Request, _rest: str) -> list[Json]:
        text, file = _catalog_text(request)
        view, catalog = self._plane.view(), self._plane.catalog.check(text, file)
        changes = listing.catalog_diff(view, replace(view, catalog=catalog))
        digest = self._plane.catalog.digest()
        self.commit(caller, request, "catalog apply", file, lambda step: step.set_catalog(text, digest), changes)
        self._plane.catalog.take(catalog, text)
        self._plane.poke()
        return changes

    def keys(self, _caller: Identity, _request: Request, _rest: str) -> list[Json]:
        keys = self._plane.store.state().keys.values()
        return [{"id": key.id, "name": key.name, "limits": encode(key.limits)} for key in sorted(keys, key=lambda key: key.id)]

    def create_key(self, caller: Identity, request: Request, _rest: str) -> Json:
        body = request.json()
        if not isinstance(body, dict) or not isinstance(name := body.get("name", ""), str) or len(name) > 200:
            raise UsageError("keys: the body must be an object with a name of at most 200 characters")
        limits = decode(KeyLimits, body.get("limits", {}), "limits")
        id = secrets.token_hex(6)
        key = f"llmgw_{id}_{secrets.token_urlsafe(32)}"
        entry = ApiKey(id, name, hashlib.sha256(key.encode()).hexdigest(), limits)
        shown = {"id": id, "name": name, "key": ""}         # asked again, it cannot be shown again: it is stored nowhere
        self.commit(caller, request, "create key", id, lambda step: step.save_key(entry), shown)
        return {**shown, "key": key}

    def revoke_key(self, caller: Identity, request: Request, rest: str) -> Json:
        self.commit(caller, request, "revoke key", rest, lambda step: step.delete_key(rest), {"id": rest})
        return {"id": rest}


def _found(item: Json | None, kind: str, id: str, command: str) -> Json:
    if item is None:
        raise NotFound(f"there is no {kind} {id!r}", hint=f"llmgw-ctl {command} lists them")
    return item


def _idempotency_key(request: Request) -> str:
    return request.headers.get("idempotency-key", "")


def _digest(request: Request) -> str:
    return hashlib.sha256(f"{request.method} {request.path}\n".encode() + request.body).hexdigest()


def _catalog_text(request: Request) -> tuple[str, str]:
    body = request.json()
    text, file = (body.get("text"), body.get("file", "catalog")) if isinstance(body, dict) else (None, "")
    if not isinstance(text, str) or not isinstance(file, str):
        raise UsageError("catalog: the body must be an object with the catalog's text, and the name of its file")
    return text, file
