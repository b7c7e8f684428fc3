"""The router table: which replicas are routed, and what is said of a model that has none.

Room: rules. It follows from committed state and the catalog alone, so that a control plane that has just started hands out
the same table as the one before it: an adopting replica keeps its route.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from lib.model.catalog import Catalog, Model
from lib.model.committed import Committed
from lib.model.fleet import Epoch, Replica
from lib.model.wire import Endpoint, ModelRoute, RouterTable
from lib.rules.lifecycle import LEAVING, ROUTED
from lib.rules.view import Observed, View

SILENT_ROUTER_S = 30.0                     # a router not heard from for so long is not waited for, and shares no limits


def routed(view: View) -> frozenset[str]:
    """The ids of the replicas in the table."""
    return frozenset(row.id for row in view.committed.replicas.values() if row.state in ROUTED)


def table(view: View, engine_key: Callable[[str, Epoch], str]) -> RouterTable:
    """The whole table; `engine_key(replica, epoch)` derives what the router must show the engine."""
    committed, catalog = view.committed, view.catalog
    serving: dict[str, list[Endpoint]] = {}
    waiting: dict[str, list[str]] = {}
    for row in sorted(committed.replicas.values(), key=lambda row: row.id):
        if row.state in ROUTED and row.epoch is not None:
            model = committed.specs[row.id].model
            serving.setdefault(row.model, []).append(_endpoint(row, row.epoch, engine_key(row.id, row.epoch), model))
        elif row.state not in LEAVING:
            waiting.setdefault(row.model, []).append(f"{row.id} is {row.state}")
    known = {model.name: model for model in (*_placed_models(committed).values(), *catalog.models.values())
             if model.name in catalog.models or model.name in serving}
    return RouterTable(
        rev=committed.rev, cluster=committed.cluster, cp_epoch=committed.cp_epoch, lineage=committed.lineage,
        models={name: _route(model, catalog, serving.get(name, []), waiting.get(name, []))
                for name, model in sorted(known.items())},
        keys=tuple(key.entry for _, key in sorted(committed.keys.items())), revoked=committed.revoked,
        routers=max(1, len(routers_heard(view.observed))))


def essence(of: RouterTable) -> RouterTable:
    """The table without the numbers that rise whatever changes: equal essences route alike."""
    return replace(of, rev=0, cp_epoch=0)


def routers_heard(observed: Observed) -> tuple[str, ...]:
    """The routers that have called in of late."""
    return tuple(name for name, router in observed.routers.items() if observed.clock - router.heard < SILENT_ROUTER_S)


def routers_have(observed: Observed, rev: int) -> bool:
    """Whether every router that is heard of has applied `rev`. Never true while routers may not have called in yet."""
    if observed.clock - observed.started < SILENT_ROUTER_S:
        return False
    return all(observed.routers[name].applied_rev >= rev for name in routers_heard(observed))


def _placed_models(committed: Committed) -> Mapping[str, Model]:
    return {spec.model.name: spec.model for spec in committed.specs.values()}


def _endpoint(row: Replica, epoch: Epoch, key: str, model: Model) -> Endpoint:
    first = row.shards[0]
    return Endpoint(row.id, epoch.counter, epoch.nonce, first.address, first.port, first.node, key, row.state.value,
                    (model.name, *model.aliases))


def _route(model: Model, catalog: Catalog, endpoints: list[Endpoint], waiting: list[str]) -> ModelRoute:
    limits = [profile.max_inflight for profile in catalog.profiles.values() if profile.model == model.name]
    most = min(limits) if limits and all(limits) else max(limits, default=0)
    state = "" if endpoints else "; ".join(waiting) or ("no replica of it is wanted" if limits else "no profile runs it")
    return ModelRoute(model.aliases, tuple(endpoints), most, state)
