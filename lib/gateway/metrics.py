"""The counters of all workers as Prometheus text.

Room: gateway. Every label comes from a closed set: the routes and statuses known here and the replicas of the table; so a
replica that leaves the table leaves the metrics. Sum over routers, never over workers: any worker answers for all of them.
"""

from collections.abc import Iterator

from lib.gateway import cells as cell
from lib.gateway.cells import BUCKETS_MS, FAILURES, STATUSES, Cells, request_cell
from lib.gateway.routes import ROUTES
from lib.gateway.table import Routes


def render(cells: Cells, routes: Routes) -> str:
    """The text of /metrics."""
    return "".join(f"{line}\n" for line in _lines(cells, routes))


def _lines(cells: Cells, routes: Routes) -> Iterator[str]:
    yield from _family("llmgw_router_requests_total", "counter", "Requests answered, by route and status.")
    for route in ROUTES:
        for status in (*STATUSES, 0):
            count = cells.total(request_cell(route.index, status))
            if count:
                yield f'llmgw_router_requests_total{{route="{route.path}",status="{status or "other"}"}} {count}'
    yield from _family("llmgw_router_replica_inflight", "gauge", "Requests in flight, by replica.")
    for word, replica in sorted(routes.replicas.items()):
        model, name = _escaped(routes.owners[word]), _escaped(replica.endpoint.id)
        labels = f'model="{model}",replica="{name}",epoch="{replica.endpoint.counter}"'
        yield f"llmgw_router_replica_inflight{{{labels}}} {cells.total(cell.REPLICA + replica.number * cell.REPLICA_CELLS)}"
    yield from _family("llmgw_router_upstream_failures_total", "counter", "Attempts that ended without a whole answer, by kind.")
    for index, kind in enumerate(FAILURES):
        yield f'llmgw_router_upstream_failures_total{{kind="{kind}"}} {cells.total(cell.FAILURE + index)}'
    for name, kind, index, text in _SINGLE:
        yield from _family(name, kind, text)
        yield f"{name} {cells.total(index)}"
    yield from _histogram(cells, cell.FIRST_BYTE, "llmgw_router_first_byte_seconds", "From request read to answer begun.")
    yield from _histogram(cells, cell.DURATION, "llmgw_router_request_seconds", "From request read to answer ended.")
    yield from _family("llmgw_router_table_rev", "gauge", "Revision of the router table in use.")
    yield f"llmgw_router_table_rev {routes.rev}"


_SINGLE = (
    ("llmgw_router_connections", "gauge", cell.CONNECTIONS, "Client connections."),
    ("llmgw_router_retries_total", "counter", cell.RETRIES, "Attempts after the first."),
    ("llmgw_router_ejections_total", "counter", cell.EJECTIONS, "Times that a worker stopped trusting a replica for a while."),
    ("llmgw_router_request_bytes_total", "counter", cell.BYTES_IN, "Bytes of request bodies."),
    ("llmgw_router_response_bytes_total", "counter", cell.BYTES_OUT, "Bytes of forwarded answers."),
)


def _family(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _histogram(cells: Cells, first: int, name: str, text: str) -> Iterator[str]:
    yield from _family(name, "histogram", text)
    count = 0
    for index, bound in enumerate((*BUCKETS_MS, None)):
        count += cells.total(first + index)
        yield f'{name}_bucket{{le="{"+Inf" if bound is None else f"{bound / 1000:g}"}"}} {count}'
    yield f"{name}_sum {cells.total(first + len(BUCKETS_MS) + 1) / 1000:g}"
    yield f"{name}_count {count}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


