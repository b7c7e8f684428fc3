"""What a client may ask of a router: an allow-list, because engines have management routes beside the ones named here.

Room: gateway. Pure. Paths are compared as they came, never decoded: `/v1/../x`, `//` and `%2e%2e` are simply not in the list.
"""

from dataclasses import dataclass

from lib.gateway.answers import Refusal


@dataclass(frozen=True, slots=True)
class Route:
    """One path; `index` numbers it in the metrics. `inference` routes are forwarded, the others answered here."""

    index: int
    path: str
    methods: tuple[bytes, ...]
    inference: bool
    keyed: bool = True                     # wants an API key

    @property
    def allow(self) -> bytes:
        return b", ".join((*self.methods, b"OPTIONS"))


_INFERENCE = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/rerank", "/v1/score", "/v1/tokenize", "/v1/detokenize", "/v1/classify", "/v1/pooling", "/v1/moderations",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits",
    "/v1/images/variations",
)
_READ = (b"GET", b"HEAD")
OTHER = Route(0, "other", (), False)       # whatever is not in the list, for the metrics
MODELS = Route(1, "/v1/models", _READ, False)
MODEL = Route(2, "/v1/models/{model}", _READ, False)
HEALTH = Route(3, "/health", _READ, False, keyed=False)
READY = Route(4, "/ready", _READ, False, keyed=False)
METRICS = Route(5, "/metrics", _READ, False, keyed=False)
_LOCAL = (OTHER, MODELS, MODEL, HEALTH, READY, METRICS)
ROUTES = _LOCAL + tuple(Route(len(_LOCAL) + number, path, (b"POST",), True) for number, path in enumerate(_INFERENCE))

_BY_PATH = {route.path.encode(): route for route in ROUTES if route not in (OTHER, MODEL)}
_MODEL_PREFIX = b"/v1/models/"


def find_route(target: bytes) -> tuple[Route, bytes, bytes]:
    """The route of a request target, the target to send upstream, and the encoded model id of MODEL. OTHER where unknown."""
    path, mark, query = target.partition(b"?")
    plain = path[:-1] if path.endswith(b"/") and len(path) > 1 else path
    route = _BY_PATH.get(plain)
    if route is not None:
        return route, plain + mark + query, b""
    if plain.startswith(_MODEL_PREFIX) and len(plain) > len(_MODEL_PREFIX):
        return MODEL, plain, plain[len(_MODEL_PREFIX):]
    return OTHER, b"", b""


def check_method(route: Route, method: bytes) -> None:
    """Refuse what is not in the list: 404 for the path, 405 for the method."""
    if route is OTHER:
        raise Refusal(404, "There is no such route here.", code="unknown_url")
    if method not in route.methods and method != b"OPTIONS":
        raise Refusal(405, f"{route.path} does not take {method.decode()}.", code="method_not_allowed",
                      fields=b"allow: %s\r\n" % route.allow)
