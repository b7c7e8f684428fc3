"""The listings: nodes, replicas, models and keys, as the control plane has them.

Room: operator. The control plane answers objects whose keys are the words of the vocabulary; `-o json` prints them as they are,
and the tables here only choose what fits into a line.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lib.cli.app import Given, say
from lib.cli.render import Column, Row, column, plain, render_table
from lib.cli.watch import View, show
from lib.operator.connect import connect


def free_gpus(node: Row) -> str:
    """`3/4`: GPUs that could be booked now, of all there are."""
    gpus = node["gpus"]
    free = sum(1 for gpu in gpus if not gpu["replica"] and not gpu["fault"])
    return f"{free}/{len(gpus)}" if gpus else "-"


def expiry(text: str) -> str:
    """The day a certificate ends."""
    return text[:10] or "-"


def shards_ready(replica: Row) -> str:
    """`1/2`: shards that are ready, of those that must be."""
    ready = sum(1 for shard in replica["shards"] if shard["state"] == "ready")
    return f"{ready}/{replica['shard_count']}"


def on_nodes(replica: Row) -> str:
    """The nodes of the present epoch, by rank."""
    return plain([shard["node"] for shard in replica["shards"] if shard["state"] != "ended"]) or "-"


NODES = (column("id", "NODE"), column("state"), Column("FABRICS", lambda row: row["fabrics"] or "-"),
         Column("FREE GPUS", free_gpus, right=True), Column("REPLICAS", lambda row: row["replicas"] or "-", spare=True),
         Column("ENGINES", lambda row: sorted(row["engines"]) or "-", spare=True),
         Column("CERTIFICATE", lambda row: expiry(row["certificate_expires"]), spare=True),
         Column("CONDITIONS", lambda row: "; ".join(map(plain, row["conditions"])) or "-"))
REPLICAS = (column("id", "REPLICA"), column("state"), Column("SHARDS", shards_ready, right=True),
            column("model", spare=True), Column("NODES", on_nodes),
            Column("ENDPOINT", lambda row: row["endpoint"] or "-", spare=True), column("epoch", right=True, spare=True),
            Column("REASON", lambda row: row["reason"] or "-"))
MODELS = (column("id", "MODEL"), Column("ALIASES", lambda row: row["aliases"] or "-"),
          Column("READY", lambda row: f"{row['ready']}/{row['wanted']}", right=True),
          Column("PROFILES", lambda row: row["profiles"] or "-"), Column("SOURCE", lambda row: row["source"] or "-"))
KEYS = (column("id", "KEY"), Column("NAME", lambda row: row["name"] or "-"),
        Column("LIMITS", lambda row: {name: value for name, value in row["limits"].items() if value} or "none"))


def list_nodes(given: Given) -> int:
    return listing(given, "nodes", NODES, "no nodes yet: start an agent with a certificate of this cluster")


def list_replicas(given: Given) -> int:
    return listing(given, "replicas", REPLICAS, "no replicas: the catalog asks for none",
                   query={"all": 1} if given.all else None)


def list_models(given: Given) -> int:
    return listing(given, "models", MODELS, "no models: the catalog is empty")


def list_keys(given: Given) -> int:
    return listing(given, "keys", KEYS, "no API keys: llmgw-ctl keys create NAME makes one")


def listing(given: Given, what: str, columns: Sequence[Column], empty: str, query: Mapping[str, int | str] | None = None) -> int:
    """Print one listing as the flags want it."""
    with connect(given) as client:
        def fetch() -> Any:
            return client.get(f"/ctl/v1/{what}", query)
        return show(View(f"llmgw-ctl {what}", fetch, table_of(columns, empty)), given.output, watch=given.watch)


def table_of(columns: Sequence[Column], empty: str) -> Callable[[Any, int | None], str]:
    """How to draw such a listing. That it is empty is talk, not a result: on a screen a line, else on stderr."""
    def draw(rows: Any, width: int | None) -> str:
        if rows:
            return render_table(rows, columns, width)
        if width:
            return f"{empty}\n"
        say(empty)
        return ""
    return draw
