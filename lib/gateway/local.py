"""What a router answers by itself: models, health, readiness, metrics, preflights.

Room: gateway.
"""

from urllib.parse import unquote_to_bytes

from lib.gateway import metrics
from lib.gateway.answers import Answer, Refusal, json_answer, no_model, no_table
from lib.gateway.desk import Desk
from lib.gateway.heads import Known
from lib.gateway.limits import Key
from lib.gateway.routes import HEALTH, METRICS, MODEL, MODELS, READY


def answer(desk: Desk, known: Known) -> Answer:
    """The answer to a request that is not forwarded. Raises Refusal."""
    route = known.route
    if known.method == b"OPTIONS":
        return _preflight(known)
    if route is HEALTH:
        return json_answer({"status": "ok"})
    if route is READY:
        return _ready(desk)
    if route is METRICS:
        return Answer(200, metrics.render(desk.cells, desk.routes).encode(), b"text/plain; version=0.0.4; charset=utf-8")
    if route is MODELS:
        names = sorted(name for name in desk.routes.models if _may_see(desk, known.key, name))
        return json_answer({"object": "list", "data": [_model(name) for name in names]})
    if route is MODEL:
        return _one_model(desk, known)
    raise Refusal(404, "There is no such route here.", code="unknown_url")


def _preflight(known: Known) -> Answer:
    asked = b"access-control-allow-headers: %s\r\n" % (known.asked_fields or b"authorization, content-type")
    allow = b"access-control-allow-methods: %s\r\n" % known.route.allow
    return Answer(204, fields=allow + asked + b"access-control-max-age: 86400\r\n")


def _ready(desk: Desk) -> Answer:
    if desk.draining:
        raise Refusal(503, "This router is being stopped.", code="stopping", retry_after_s=5)
    if not desk.routes.loaded:
        raise no_table()
    return json_answer({"status": "ready", "rev": desk.routes.rev})


def _one_model(desk: Desk, known: Known) -> Answer:
    name = unquote_to_bytes(known.model_id).decode("utf-8", "replace")
    if name not in desk.routes.models or not _may_see(desk, known.key, name):
        raise no_model(name)
    return json_answer(_model(name))


def _may_see(desk: Desk, key: Key | None, name: str) -> bool:
    return key is None or key.may_use(name) or key.may_use(desk.routes.models[name].name)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "llmgw"}
