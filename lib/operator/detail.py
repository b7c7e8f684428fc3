"""One thing at a time: the cluster, a node, a replica.

Room: operator. Pure drawing over what the control plane answers; `-o json` prints that answer as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from lib.cli.app import Given
from lib.cli.render import Column, Row, column, duration, plain, render_fields, render_table
from lib.cli.watch import View, show
from lib.operator.connect import connect
from lib.operator.listing import expiry, free_gpus

GPUS = (column("index", "GPU", right=True), column("name"), Column("MEMORY", lambda row: memory(row["memory_mib"]), right=True),
        Column("REPLICA", lambda row: row["replica"] or "-"), column("uuid", spare=True),
        Column("FAULT", lambda row: row["fault"] or "-"))
ADAPTERS = (column("name", "ADAPTER"), column("port", right=True), column("link_layer"), column("state"),
            column("rate", spare=True), column("guid", spare=True), Column("FABRIC", lambda row: row["fabric"] or "-"))
SHARDS = (column("rank", right=True), column("node"), column("state"), Column("PID", lambda row: row["pid"] or "-", right=True),
          Column("PORT", lambda row: row["port"] or "-", right=True), Column("DETAIL", lambda row: row["detail"] or "-"))
NODE_SHARDS = (column("replica"), *(each for each in SHARDS if each.title != "NODE"))


def show_status(given: Given) -> int:
    return _one(given, "status", draw_status)


def show_node(given: Given) -> int:
    return _one(given, f"nodes/{quote(given.node, safe='')}", draw_node)


def show_replica(given: Given) -> int:
    return _one(given, f"replicas/{quote(given.replica, safe='')}", draw_replica)


def _one(given: Given, path: str, draw: Any) -> int:
    with connect(given) as client:
        return show(View(f"llmgw-ctl {path.partition('/')[0]}", lambda: client.get(f"/ctl/v1/{path}"), draw),
                    given.output, watch=given.watch)


def draw_status(status: Row, width: int | None = None) -> str:
    """The cluster in a few lines; what somebody should do something about stands last, where the eye is."""
    routers = [f"{router['id']} (heard {duration(router['age_s'])} ago, has rev {router['applied_rev']})"
               for router in status["routers"]]
    return render_fields([
        ("cluster", status["cluster"]), ("control plane", f"start {status['cp_epoch']}, rev {status['rev']}"),
        ("nodes", counts(status["nodes"])), ("replicas", counts(status["replicas"])), ("routers", routers or "none"),
        ("adopting", "yes: not every node has reported since this start" if status["adopting"] else ""),
        ("alarms", status["alarms"] or "none")], width)


def counts(of: Mapping[str, int]) -> str:
    """`4 ready, 1 lost`."""
    return ", ".join(f"{number} {word}" for word, number in of.items()) or "none"


def draw_node(node: Row, width: int | None = None) -> str:
    """Everything a node has."""
    parts = [render_fields(_node_fields(node), width)]
    if node["gpus"]:
        parts.append(render_table(node["gpus"], GPUS, width))
    if node["adapters"]:
        fabric_of = {name: fabric for fabric, names in node["fabric_adapters"].items() for name in names}
        parts.append(render_table([{**each, "fabric": fabric_of.get(each["name"], "")} for each in node["adapters"]],
                                  ADAPTERS, width))
    if node["shards"]:
        parts.append(render_table(node["shards"], NODE_SHARDS, width))
    return "\n".join(parts)


def _node_fields(node: Row) -> Sequence[tuple[str, object]]:
    engines = [*(f"{name} {version}" for name, version in sorted(node["engines"].items())),
               *(f"{name}: {fault}" for name, fault in sorted(node["engine_faults"].items()))]
    sources = [f"{path}: {fault or 'complete'}" for path, fault in sorted((node["sources"] or {}).items())]
    ports = f"{node['port_low']}-{node['port_high']}" if node["port_low"] else ""
    heard = node["heard_s"]
    return [("node", node["id"]), ("state", node["state"]),
            ("heard", "not since the control plane started" if heard is None else f"{duration(heard)} ago"),
            ("hostname", node["hostname"]), ("address", node["address"]), ("ports", ports), ("agent", node["version"]),
            ("node uid", node["node_uid"]), ("certificate", f"ends on {expiry(node['certificate_expires'])}"),
            ("fabrics", node["fabrics"] or "none: an island"), ("labels", node["labels"]), ("free GPUs", free_gpus(node)),
            ("engines", engines or "none"), ("sources", sources), ("replicas", node["replicas"] or "none"),
            ("conditions", node["conditions"] or "none")]


def draw_replica(replica: Row, width: int | None = None) -> str:
    """A replica and its shards."""
    epoch = f"{replica['epoch']} ({replica['nonce']})" if replica["nonce"] else ""
    fields = [("replica", replica["id"]), ("state", replica["state"]), ("reason", replica["reason"]),
              ("profile", replica["profile"]), ("model", replica["model"]), ("epoch", epoch),
              ("endpoint", replica["endpoint"]), ("shard count", replica["shard_count"]),
              ("failures", replica["failures"] or ""), ("blamed", replica["blamed"])]
    parts = [render_fields(fields, width)]
    if replica["shards"]:
        parts.append(render_table(replica["shards"], SHARDS, width))
    return "\n".join(parts)


def memory(mib: int | None) -> str:
    """GPU memory as people say it; a GPU that does not tell has neither none nor any."""
    return "unknown" if mib is None else f"{plain(round(mib / 1024))} GiB"
