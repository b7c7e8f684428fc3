"""The demo's cluster on disk: certificates, configurations, stand-in hardware, and the catalog.

Room: operator. The same files as in a real installation, made by the same code where there is some.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError, Refused
from lib.base.files import write_atomic
from lib.host import standin
from lib.host.openssl import make_key_and_csr
from lib.model.catalog import NAME
from lib.model.identity import Role
from lib.operator.certificates import issue_for
from lib.operator.demo_layout import CLUSTER, GPUS_A_NODE, HOST, LARGE, SMALL, DemoNode, Layout, Real
from lib.operator.install import CreateState, Plan, install

ADAPTERS = ("mlx5_0", "mlx5_1")            # a fabric takes two
ISLAND = {"place": "island"}

_CATALOG = """\
# The catalog of the demo. Edit it: the control plane follows this file (llmgw-ctl catalog check|diff FILE say what an edit does).

[models.{large}]
aliases = ["default"]

# One replica on each fabric, of two shards on two nodes. The stand-ins hold no weights: the engine is simulated.
[profiles.large-ib-a]
model = "{large}"
engine = "sim"
fabric = "ib-a"
shards = 2
gpus = 2
drain_timeout = 5
stop_timeout = 5
args = ["--load-time", "0.5"]

[profiles.large-ib-b]
model = "{large}"
engine = "sim"
fabric = "ib-b"
shards = 2
gpus = 2
drain_timeout = 5
stop_timeout = 5
args = ["--load-time", "0.5"]
"""
_SMALL = """
# One shard, on the node that is on no fabric.
[models.{small}]
{model}
[profiles.small-island]
model = "{small}"
{engine}
node_labels = {{ place = "island" }}
drain_timeout = 5
stop_timeout = 5
"""


def catalog_text(real: Real | None) -> str:
    """A two-shard replica on each fabric, one of a single shard on the island."""
    model, engine = "", 'engine = "sim"\ngpus = 1'
    if real:
        model = f"source = {json.dumps(str(real.gguf))}\naliases = [{_alias(real.gguf)}]\n"
        engine = 'engine = "llama-server"\nargs = ["--ctx-size", "4096", "--threads", "2"]'
    return _CATALOG.format(large=LARGE) + _SMALL.format(small=SMALL, model=model, engine=engine)


def _alias(gguf: Path) -> str:
    """The file's name as a second name of the model, where it can be one."""
    return f'"{gguf.stem}"' if re.fullmatch(NAME, gguf.stem) and gguf.stem not in (LARGE, SMALL, "default") else ""


def refuse_used(directory: Path) -> None:
    """Refused where there is a demo already, which may be running: nothing of it may be touched, and nothing be ended."""
    if found := [name for name in ("ctl", "nodes", "router", "logs", "demo.json") if (directory / name).exists()]:
        raise Refused(f"{directory} holds a demo already ({', '.join(found)})", hint="name another --dir, or remove it")


def prepare(layout: Layout, create_state: CreateState) -> None:
    """Everything that must lie there before anything starts."""
    directory = layout.directory
    try:
        for part in (directory, directory / "logs", directory / "router", directory / "nodes"):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as err:
        raise LlmgwError(f"cannot make {err.filename}: {err.strerror}", hint="name another --dir") from err
    listen = f"{HOST}:{layout.control_port}"
    install(Plan(layout.ctl_dir, CLUSTER, listen, (HOST,), layout.ctl_dir / "state" / "ctl.db",
                 catalog=catalog_text(layout.real)), create_state)
    _write_identities(layout)
    for node in layout.nodes:
        _write_node(layout, node)
    _write_toml(layout.router_config, {
        "name": "demo-router", "server": f"https://{listen}", "listen": f"{HOST}:{layout.router_port}", "state_dir": "state",
        "workers": min(2, os.cpu_count() or 1), "pki": _pki("router"), "timeouts": {"settle": 0.2, "stop": 3}})
    (layout.router_config.parent / "state").mkdir(mode=0o700)


def _write_identities(layout: Layout) -> None:
    """Each key is made in its own place, and only the request goes to the authority."""
    from lib.pki.authority import Authority

    authority = Authority.open(layout.ctl_dir / "ca")
    places = [(layout.node_config(node).parent, Role.NODE, node.name, (node.address,)) for node in layout.nodes]
    for home, role, id, addresses in [*places, (layout.router_config.parent, Role.ROUTER, "demo-router", (HOST,))]:
        pki = home / "pki"
        pki.mkdir(parents=True, mode=0o700)
        make_key_and_csr(pki / f"{role}.key", pki / "request.csr", id)
        issue_for(authority, pki, role, id, pki / "request.csr", addresses)


def _pki(role: str) -> dict[str, str]:
    return {"certificate": f"pki/{role}.pem", "key": f"pki/{role}.key", "ca": "pki/ca.pem"}


def _write_node(layout: Layout, node: DemoNode) -> None:
    home = layout.node_config(node).parent
    (home / "state").mkdir(mode=0o700)
    standin.write_nvidia_smi(home / "nvidia-smi", standin.stand_in_gpus(node.name, GPUS_A_NODE))
    adapters = standin.stand_in_adapters(node.name, ADAPTERS if node.fabric else ())
    config: dict[str, Any] = {
        "node": node.name, "server": f"https://{HOST}:{layout.control_port}", "address": node.address,
        "fabrics": [node.fabric] if node.fabric else [], "ports": f"{node.port_low}-{node.port_high}", "state_dir": "state",
        "pki": _pki("node"),
        "hardware": {"nvidia_smi": str(home / "nvidia-smi"), "ib_root": str(standin.write_infiniband(home / "sys", adapters))}}
    if node.fabric:
        config["fabric_addresses"] = {node.fabric: node.address}
    else:
        config["labels"] = ISLAND
    if layout.real:
        config["engines"] = {"llama-server": layout.real.program}
    _write_toml(layout.node_config(node), config)


def _write_toml(path: Path, value: Mapping[str, Any]) -> None:
    import tomli_w

    write_atomic(path, tomli_w.dumps(value), mode=0o644)
