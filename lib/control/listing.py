"""What operators are shown, as JSON objects whose keys are the words of the vocabulary.

Room: control. Pure: from a view to plain values. `ctl` prints them and adds nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lib.base.names import natural
from lib.model.certificate import Certificate, render_time
from lib.model.codec import encode
from lib.model.fleet import Inventory, Replica, ReplicaState
from lib.model.identity import Role
from lib.rules import explain, facts, leases, renewal, routing
from lib.rules.view import View

Json = dict[str, Any]
Presented = Mapping[renewal.Holder, Certificate]
OVER = (ReplicaState.STOPPED,)


def status(view: View, catalog_fault: str, store_fault: str, presented: Presented, wall: float) -> Json:
    """`llmgw-ctl status`: one object; `alarms` is what somebody should do something about."""
    rows = [facts.public_state(view, row)[0].value for row in live(view)]
    states = {state: rows.count(state) for state in dict.fromkeys(rows)}
    nodes = [leases.state(view.observed, node).value for node in view.committed.nodes]
    alarms = [("catalog refused, the last good one stands: " + catalog_fault) if catalog_fault else "",
              ("state file cannot be written, nothing can be changed: " + store_fault) if store_fault else "",
              *explain.alarms(view), *renewal.overdue(view.committed, presented, wall)]
    return {"cluster": view.committed.cluster, "cp_epoch": view.committed.cp_epoch, "rev": view.committed.rev,
            "lineage": view.committed.lineage, "adopting": not view.observed.adopted,
            "nodes": {state: nodes.count(state) for state in dict.fromkeys(nodes)}, "replicas": states,
            "routers": [{"id": router.router, "applied_rev": router.applied_rev,
                         "age_s": round(view.observed.clock - router.heard, 1)} for router in view.observed.routers.values()],
            "alarms": [alarm for alarm in alarms if alarm]}


def nodes(view: View, presented: Presented, wall: float) -> list[Json]:
    """`llmgw-ctl nodes`."""
    return [_node(view, id, presented, wall) for id in sorted(view.committed.nodes)]


def node(view: View, id: str, presented: Presented, wall: float) -> Json | None:
    """`llmgw-ctl node NAME`: the same and all its hardware; None where there is no such node."""
    if id not in view.committed.nodes:
        return None
    inventory, seen = _inventory(view, id), view.observed.nodes.get(id)
    more = encode(inventory) if inventory else {}
    return {**_node(view, id, presented, wall), **{key: more.get(key) for key in
            ("hostname", "address", "adapters", "sources", "labels", "port_low", "port_high")},
            "fabric_adapters": {fabric.name: list(fabric.adapters) for fabric in inventory.fabrics} if inventory else {},
            "engine_faults": {name: found.fault for name, found in inventory.engines.items() if found.fault} if inventory else {},
            "version": seen.version if seen else "", "node_uid": seen.node_uid if seen else "",
            "agent_run": seen.agent_run if seen else "",
            "heard_s": round(leases.silent_for(view.observed, id), 1) if seen and seen.heard is not None else None,
            "shards": [{"replica": row.id, **encode(line)} for row in live(view) for line in explain.shard_lines(view, row)
                       if line.node == id]}


def _node(view: View, id: str, presented: Presented, wall: float) -> Json:
    inventory, known = _inventory(view, id), view.committed.nodes[id]
    certificate = renewal.present(view.committed, presented, (Role.NODE, id))
    conditions = ("cordoned" if known.cordoned else "", renewal.warning(certificate, wall))
    booked = {gpu: row.id for row in live(view) for shard in row.shards if shard.node == id for gpu in shard.gpus}
    return {"id": id, "state": leases.state(view.observed, id).value,
            "fabrics": [fabric.name for fabric in inventory.fabrics] if inventory else [],
            "gpus": [{"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name, "memory_mib": gpu.memory_mib, "fault": gpu.fault,
                      "replica": booked.get(gpu.uuid, "")} for gpu in inventory.gpus] if inventory else [],
            "replicas": sorted({row.id for row in live(view) if id in row.nodes}),
            "engines": {name: found.version for name, found in inventory.engines.items() if not found.fault} if inventory else {},
            "conditions": [*filter(None, conditions), *(inventory.conditions if inventory else [])],
            "certificate_expires": render_time(certificate.not_after if certificate else None)}


def _inventory(view: View, id: str) -> Inventory | None:
    seen = view.observed.nodes.get(id)
    return (seen.inventory if seen else None) or view.committed.nodes[id].inventory


def live(view: View) -> list[Replica]:
    """Every replica that is not over."""
    return [row for row in view.committed.replicas.values() if row.state not in OVER]


def replicas(view: View, wall: float, *, everything: bool = False) -> list[Json]:
    """`llmgw-ctl replicas`; `everything` adds the stopped ones. `wall`: Unix time."""
    rows = view.committed.replicas.values() if everything else live(view)
    return [_replica(view, row, wall) for row in sorted(rows, key=lambda row: natural(row.id))]


def replica(view: View, id: str, wall: float) -> Json | None:
    """`llmgw-ctl replica ID`: the same and its past; None where there is no such replica."""
    row = view.committed.replicas.get(id)
    if row is None:
        return None
    return {**_replica(view, row, wall), "nonce": row.epoch.nonce if row.epoch else "", "failures": len(row.attempts),
            "retry_at": row.retry_at or None, "blamed": sorted(row.blamed)}


def _replica(view: View, row: Replica, wall: float) -> Json:
    state, reason = explain.status(view, row, wall)
    return {"id": row.id, "profile": row.profile, "model": row.model, "state": state.value, "shard_count": row.shard_count,
            "epoch": row.epoch.counter if row.epoch else 0, "shards": [encode(line) for line in explain.shard_lines(view, row)],
            "endpoint": row.endpoint, "reason": reason}


def models(view: View) -> list[Json]:
    """`llmgw-ctl models`."""
    return [_model(view, name, [profile.name for profile in view.catalog.profiles.values() if profile.model == name])
            for name in sorted(view.catalog.models)]


def _model(view: View, name: str, profiles: Iterable[str]) -> Json:
    model = view.catalog.models[name]
    rows = [row for row in live(view) if row.model == name]
    return {"id": name, "aliases": list(model.aliases), "source": model.source, "profiles": list(profiles),
            "replicas": [row.id for row in rows], "wanted": sum(view.catalog.profiles[each].replicas for each in profiles),
            "ready": sum(row.id in routing.routed(view) for row in rows)}


def catalog_diff(before: View, after: View) -> list[Json]:
    """What applying the catalog of `after` would change, profile by profile: which replicas roll, and which do not."""
    names = sorted({*before.catalog.profiles, *after.catalog.profiles})
    return [change for name in names if (change := _profile_diff(before, after, name))]


def _profile_diff(before: View, after: View, name: str) -> Json | None:
    old, new = before.catalog.profiles.get(name), after.catalog.profiles.get(name)
    running = [row.id for row in live(before) if row.profile == name]
    stops = max(0, len(running) - (new.replicas if new else 0))
    change = {"profile": name, "change": "changed", "replicas": running, "restarts": False, "stops": stops}
    if new is None:
        return {**change, "change": "removed", "detail": "its replicas are drained and stopped"}
    if old is None:
        return {**change, "change": "added",
                "detail": f"{new.replicas} replicas of {new.shards} shards with {new.gpus} GPUs each"}
    changed = ", ".join(key for key, value in encode(new).items() if encode(old)[key] != value)
    fewer = f", and {stops} of {len(running)} stopped" if stops else ""
    if before.catalog.generation(name) != after.catalog.generation(name):
        return {**change, "restarts": True, "detail": f"{changed or 'source'} changed: each replica is replaced{fewer}"}
    if changed:
        what = f"{stops} of {len(running)} replicas are drained and stopped" if stops else "running replicas stay"
        return {**change, "detail": f"{changed} changed: {what}"}
    return None
