"""The routes of the control plane: who may call what, and nothing else.

Room: control. Deny by default: a route without a role cannot be written down here, and a caller without the role never
reaches a handler. The role and the id come from the certificate; what a body claims is checked against them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lib.base.errors import NotFound, Refused, UsageError
from lib.model.certificate import render_time
from lib.model.identity import Identity, Role, identity_of
from lib.net.server import Request, Response
from lib.net.tls import PeerCert, date_fault

log = logging.getLogger(__name__)

Handler = Callable[[Identity, Request, str], object]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` may have one `*`, as its last part or the one before: the handler gets what stands there as its third argument."""

    method: str
    path: str
    role: Role
    handle: Handler
    late_s: float = 0.0                    # a certificate may be so long past its end


class Api:
    """Finds the route of a request and judges its caller, dates included: OpenSSL does not check them here, because its refusal
    would reach the caller as a bare alert. `refused` says why a caller is shut out, or an empty string; `seen` is told of
    every caller that is not.
    """

    def __init__(self, cluster: str, routes: Sequence[Route], refused: Callable[[Identity], str],
                 seen: Callable[[Identity, PeerCert], None] = lambda *_: None) -> None:
        self._cluster, self._refused, self._seen = cluster, refused, seen
        self._routes = {(route.method, route.path): route for route in routes}
        self._paths = {route.path for route in routes}

    def __call__(self, request: Request) -> Response:
        try:
            caller = self._known(request)
            route, rest = self._find(request)
            _refuse_late(caller, request, route.late_s)
            if route.role is not caller.role:
                raise Refused(f"a certificate of role {caller.role} may not call {request.path}",
                              hint=f"use one of role {route.role}")
        except Refused as err:
            log.warning("refused %s %s from %s: %s", request.method, request.path, request.peer_address, err)
            raise
        self._seen(caller, request.peer or {})
        return Response(200, route.handle(caller, request, rest))

    def _known(self, request: Request) -> Identity:
        """Who this is; Refused where it is nobody of this cluster, or shut out."""
        caller = identity_of(request.peer)
        if caller.cluster != self._cluster:
            raise Refused(f"certificate of cluster {caller.cluster!r}, this is {self._cluster!r}",
                          hint="check the server's address")
        if reason := self._refused(caller):
            raise Refused(f"{caller}: {reason}", hint=by_hand(caller))
        return caller

    def _find(self, request: Request) -> tuple[Route, str]:
        if route := self._routes.get((request.method, request.path)):
            return route, ""
        above, _, last = request.path.rpartition("/")
        if last and (route := self._routes.get((request.method, f"{above}/*"))):
            return route, last
        above, _, middle = above.rpartition("/")
        if middle and (route := self._routes.get((request.method, f"{above}/*/{last}"))):
            return route, middle
        if request.path in self._paths:
            raise Refused(f"{request.method} is not a method of {request.path}")
        raise NotFound(f"no such path: {request.path}", hint="client and control plane may be of different versions")


def _refuse_late(caller: Identity, request: Request, late_s: float) -> None:
    now = time.time()
    if reason := date_fault(request.peer or {}, now, late_s=late_s):
        raise Refused(f"{caller}: {reason}, and it is {render_time(now)}", hint=by_hand(caller))


def by_hand(caller: Identity) -> str:
    """How this caller gets a new certificate where it cannot renew its own."""
    if caller.role is Role.NODE:
        return f"where the authority is: llmgw-onboard-node --renew --node {caller.id} --addr ADDRESS"
    return f"where the authority is: llmgw-ctl ca issue --role {caller.role} --name {caller.id}"


def own(caller: Identity, claimed: str, peer_address: object) -> None:
    """Refuse a body that speaks for another than its certificate; both names go to the log."""
    if caller.id != claimed:
        log.warning("certificate %r claims to be %r, from %s", caller.id, claimed, peer_address)
        raise Refused(f"certificate {caller.id!r} may not speak for {claimed!r}",
                      hint="set the id of the certificate in its configuration, or have one issued for this id")


def whole_number(request: Request, name: str, default: int) -> int:
    """A whole number from the query; UsageError where it is none."""
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(f"{name}={text!r} is not a whole number")
    return int(text)
