"""What a node's and a router's certificate can ask: their own business, and nobody else's.

Room: control.
"""

from collections.abc import Sequence

from lib.control.api import Handler, Route, own, whole_number
from lib.control.issuer import cannot_renew
from lib.control.plane import Plane
from lib.model.codec import decode, encode
from lib.model.identity import Identity, Role
from lib.model.wire import Hello, RouterReport, Sync
from lib.net.server import Request
from lib.rules.renewal import LATE_S


def routes(plane: Plane, renew: Handler = cannot_renew) -> Sequence[Route]:
    """Everything under /agent/v1/ and /router/v1/."""
    def hello(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(Hello, request.json(), "hello")
        own(caller, message.node, request.peer_address)
        return encode(plane.hello(message))

    def sync(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(Sync, request.json(), "sync")
        if message.inventory:
            own(caller, message.inventory.node, request.peer_address)
        return encode(plane.sync(caller.id, message))

    def table(_caller: Identity, request: Request, _rest: str) -> object:
        return encode(plane.table(*(whole_number(request, name, 0) for name in ("rev", "cp_epoch", "hold"))))

    def report(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(RouterReport, request.json(), "report")
        own(caller, message.router, request.peer_address)
        plane.report(message)
        return {}

    return (Route("POST", "/agent/v1/hello", Role.NODE, hello), Route("POST", "/agent/v1/sync", Role.NODE, sync),
            Route("GET", "/router/v1/table", Role.ROUTER, table), Route("POST", "/router/v1/report", Role.ROUTER, report),
            Route("POST", "/agent/v1/renew", Role.NODE, renew, LATE_S),
            Route("POST", "/router/v1/renew", Role.ROUTER, renew, LATE_S))
