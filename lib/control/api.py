"""The routes of the control plane: who may call what, and nothing else.

Room: control. Deny by default: a route without a role cannot be written down here, and a caller without the role never
reaches a handler. The role and the id come from the certificate; what a body claims is checked against them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lib.base.errors import NotFound, Refused
from lib.model.identity import Identity, Role, identity_of
from lib.net.server import Request, Response
from lib.net.tls import date_fault

log = logging.getLogger(__name__)

Handler = Callable[[Identity, Request, str], object]


@dataclass(frozen=True, slots=True)
class Route:
    """`path` may end in `/*`: the handler then gets what stands there as its third argument."""

    method: str
    path: str
    role: Role
    handle: Handler


class Api:
    """Finds the route of a request and judges its caller, dates included: OpenSSL does not check them here, because its refusal
    would reach the caller as a bare alert. `refused` says why a caller is shut out, or an empty string.
    """

    def __init__(self, cluster: str, routes: Sequence[Route], refused: Callable[[Identity], str]) -> None:
        self._cluster, self._refused = cluster, refused
        self._exact = {(route.method, route.path): route for route in routes if not route.path.endswith("/*")}
        self._below = {(route.method, route.path[:-2]): route for route in routes if route.path.endswith("/*")}
        self._paths = {route.path for route in routes}

    def __call__(self, request: Request) -> Response:
        try:
            caller = self._admit(request)
            route, rest = self._find(request)
            if route.role is not caller.role:
                raise Refused(f"a certificate of role {caller.role} may not call {request.path}",
                              hint=f"use one of role {route.role}")
        except Refused as err:
            log.warning("refused %s %s from %s: %s", request.method, request.path, request.peer_address, err)
            raise
        return Response(200, route.handle(caller, request, rest))

    def _admit(self, request: Request) -> Identity:
        caller = identity_of(request.peer)
        if caller.cluster != self._cluster:
            raise Refused(f"certificate of cluster {caller.cluster!r}, this is {self._cluster!r}")
        if reason := date_fault(request.peer or {}, time.time()) or self._refused(caller):
            raise Refused(f"{caller}: {reason}", hint="have a new certificate issued")
        return caller

    def _find(self, request: Request) -> tuple[Route, str]:
        if route := self._exact.get((request.method, request.path)):
            return route, ""
        above, _, last = request.path.rpartition("/")
        if last and (route := self._below.get((request.method, above))):
            return route, last
        if request.path in self._paths:
            raise Refused(f"{request.method} is not a method of {request.path}")
        raise NotFound(f"no such path: {request.path}", hint="client and control plane may be of different versions")


def own(caller: Identity, claimed: str, peer_address: object) -> None:
    """Refuse a body that speaks for another than its certificate; both names go to the log."""
    if caller.id != claimed:
        log.warning("certificate %r claims to be %r, from %s", caller.id, claimed, peer_address)
        raise Refused(f"certificate {caller.id!r} may not speak for {claimed!r}",
                      hint="set the node's own name in its configuration, or onboard the machine again")
