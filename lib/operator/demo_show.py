"""What the demo prints: the tables while the cluster comes up, what happens later, and what to type.

Room: operator. Pure text over what the control plane answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lib.cli.render import Column, column, plain, render_table
from lib.operator.demo_layout import LARGE, Layout
from lib.operator.listing import REPLICAS, free_gpus, shards_ready

Rows = Sequence[Mapping[str, Any]]

NODES = (column("id", "NODE"), column("state"), Column("FABRIC", lambda row: row["fabrics"] or "island"),
         Column("FREE GPUS", free_gpus, right=True), Column("REPLICAS", lambda row: row["replicas"] or "-"))
SHORT_REPLICAS = tuple(each for each in REPLICAS if each.title not in ("EPOCH", "ENDPOINT"))


def tables(nodes: Rows, replicas: Rows, width: int | None) -> str:
    """Both listings, one above the other."""
    parts = [render_table(nodes, NODES, width)] if nodes else []
    parts += [render_table(replicas, SHORT_REPLICAS, width)] if replicas else []
    return "\n".join(parts)


def lines(nodes: Rows, replicas: Rows, *, reasons: bool = True) -> dict[str, str]:
    """The same as one line each, by id: what of it changes is worth a line of its own."""
    found = {node["id"]: f"{node['id']}: {node['state']}, {plain(node['fabrics']) or 'island'}" for node in nodes}
    for row in replicas:
        where = plain([shard["node"] for shard in row["shards"] if shard["state"] != "ended"])
        detail = f"{shards_ready(row)} shards ready on {where}" if where else row["reason"] if reasons else ""
        found[row["id"]] = f"{row['id']}: {row['state']}" + (f", {detail}" if detail else "")
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """What to say when the lines were `before` and are `after`."""
    yield from (text for id, text in after.items() if before.get(id) != text)
    yield from (f"{id}: gone" for id in before if id not in after)


def not_ready(replicas: Rows) -> str:
    """Which replicas are not ready and why; empty when all are. None at all is not ready either."""
    missing = [f"{row['id']} is {row['state']}" + (f" ({row['reason']})" if row["reason"] else "")
               for row in replicas if row["state"] != "ready"]
    return "; ".join(missing) if replicas else "there are no replicas"


def instructions(layout: Layout, api_key: str, ctl: str, model: str = LARGE) -> str:
    """What works as pasted."""
    real = "" if layout.real else "All engines are simulated; --llama-server PATH --gguf FILE puts a real one on the island.\n"
    return f"""
The cluster is up, and answers at {layout.router_url}/v1
API key: {api_key}

curl -N {layout.router_url}/v1/chat/completions -H 'Authorization: Bearer {api_key}' -H 'Content-Type: application/json' \
-d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{layout.router_url}/v1", api_key="{api_key}")
for chunk in client.chat.completions.create(model="{model}", stream=True, messages=[{{"role": "user", "content": "Hello!"}}]):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

{ctl} --dir {layout.ctl_dir} replicas --watch
{ctl} --dir {layout.ctl_dir} catalog diff {layout.ctl_dir / 'catalog.toml'}

Logs: {layout.directory / 'logs'}; of the shards: {layout.directory / 'nodes'}/*/state/shards/*/log
{real}Ctrl-C ends everything.
"""
