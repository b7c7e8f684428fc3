"""What changes the cluster: catalogs and API keys.

Room: operator. Every change carries a key of its own, so that the control plane does once what is asked twice.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lib.base.errors import LlmgwError
from lib.base.files import read_text
from lib.cli.app import Given, confirm, say
from lib.cli.render import Column, column, render_json, render_table
from lib.cli.watch import screen_width
from lib.operator.connect import connect, once

DIFF = (column("profile"), column("change"), Column("REPLICAS", lambda row: row["replicas"] or "-"),
        Column("RESTART", lambda row: "yes" if row["restarts"] else "no"), column("detail"))


def check_catalog(given: Given) -> int:
    """Judge a catalog here, without a control plane."""
    from lib.engines import rules
    from lib.model.catalog import parse_catalog

    catalog = parse_catalog(read_text(Path(given.file)), given.file, rules())
    if given.output == "json":
        sys.stdout.write(render_json({"models": sorted(catalog.models), "profiles": sorted(catalog.profiles)}))
    else:
        say(f"{given.file} is good: {_count(catalog.models, 'model')}, {_count(catalog.profiles, 'profile')}")
    return 0


def diff_catalog(given: Given) -> int:
    """What applying a catalog would change."""
    with connect(given) as client:
        changes = client.post("/ctl/v1/catalog/diff", _document(given.file), idempotent=True)
    _show_changes(changes, given.output, "nothing would change")
    return 0


def apply_catalog(given: Given) -> int:
    """Make a catalog the cluster's. What ends or restarts replicas asks first, where there is somebody to ask."""
    document = _document(given.file)
    with connect(given) as client:
        planned = client.post("/ctl/v1/catalog/diff", document, idempotent=True)
        if ending := [row for row in planned if row["replicas"] and (row["restarts"] or row["stops"])]:
            if not given.yes:
                sys.stderr.write(render_table(ending, DIFF, screen_width()))
            confirm("replace or stop these replicas?", yes=given.yes)
        changes = client.post("/ctl/v1/catalog/apply", document, headers=once())
    _show_changes(changes, given.output, "applied; it changes no profile")
    return 0


def create_key(given: Given) -> int:
    """Make an API key. It is shown now and never again: only its hash is stored."""
    limits = {"models": given.model, "concurrency": given.concurrency, "requests_per_minute": given.requests_per_minute}
    with connect(given) as client:
        made = client.post("/ctl/v1/keys", {"name": given.name, "limits": limits}, headers=once())
    if not made["key"]:
        raise LlmgwError(f"the key {made['id']} was made and its text was lost on the way",
                         hint=f"revoke it (llmgw-ctl keys revoke {made['id']}) and make another")
    if given.output == "json":
        sys.stdout.write(render_json(made))
    else:
        sys.stdout.write(f"{made['key']}\n")
        say(f"key {made['id']}: keep it, it cannot be shown again; routers know it within a second or two")
    return 0


def revoke_key(given: Given) -> int:
    """Make an API key worthless."""
    confirm(f"revoke API key {given.id}? Its users are refused from then on", yes=given.yes)
    with connect(given) as client:
        client.delete(f"/ctl/v1/keys/{quote(given.id, safe='')}", headers=once())
    say(f"key {given.id} is revoked")
    return 0


def _document(file: str) -> dict[str, str]:
    return {"text": read_text(Path(file)), "file": file}


def _count(of: Mapping[str, Any], word: str) -> str:
    return f"{len(of)} {word}{'' if len(of) == 1 else 's'}"


def _show_changes(changes: Sequence[Mapping[str, Any]], output: str, nothing: str) -> None:
    if output == "json":
        sys.stdout.write(render_json(changes))
    elif changes:
        sys.stdout.write(render_table(changes, DIFF, screen_width()))
    else:
        say(nothing)
