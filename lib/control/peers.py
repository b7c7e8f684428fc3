"""What a node's and a router's certificate can ask: their own business, and nobody else's.

Room: control.
"""

from collections.abc import Sequence

from lib.control.api import Route, own
from lib.control.operators import number
from lib.control.plane import Plane
from lib.model.codec import decode, encode
from lib.model.identity import Identity, Role
from lib.model.wire import Hello, RouterReport, Sync
from lib.net.server import Request


def routes(plane: Plane) -> Sequence[Route]:
    """Everything under /agent/v1/ and /router/v1/."""
    def hello(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(Hello, request.json(), "hello")
        own(caller, message.node, request.peer_address)
        _note_expiry(caller, request)
        return encode(plane.hello(message))

    def sync(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(Sync, request.json(), "sync")
        if message.inventory:
            own(caller, message.inventory.node, request.peer_address)
        return encode(plane.sync(caller.id, message))

    def table(caller: Identity, request: Request, _rest: str) -> object:
        _note_expiry(caller, request)
        return encode(plane.table(number(request, "rev", 0), number(request, "cp_epoch", 0), float(number(request, "hold", 0))))

    def report(caller: Identity, request: Request, _rest: str) -> object:
        message = decode(RouterReport, request.json(), "report")
        own(caller, message.router, request.peer_address)
        plane.report(message)
        return {}

    def _note_expiry(caller: Identity, request: Request) -> None:
        plane.expires[caller.id] = str((request.peer or {}).get("notAfter", ""))

    return (Route("POST", "/agent/v1/hello", Role.NODE, hello), Route("POST", "/agent/v1/sync", Role.NODE, sync),
            Route("GET", "/router/v1/table", Role.ROUTER, table), Route("POST", "/router/v1/report", Role.ROUTER, report))
