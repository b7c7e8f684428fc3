"""The authority and the identities of the cluster: looking at them, revoking one, taking a node out.

Room: operator. What is revoked is the control plane's to say; the authority only signs it as a list for other programs.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lib.base.errors import LlmgwError
from lib.base.files import write_atomic
from lib.cli.app import Given, confirm, say
from lib.cli.render import Column, column, render_fields, render_json
from lib.cli.watch import screen_width
from lib.model.certificate import parse_serial, parse_time
from lib.operator.certificates import open_authority
from lib.operator.connect import connect, once, settings
from lib.operator.listing import listing

Row = Mapping[str, Any]

CERTIFICATES = (column("serial"), Column("ROLE", lambda row: row["role"] or "-"), Column("ID", lambda row: row["id"] or "-"),
                Column("BEGINS", lambda row: row["not_before"][:10] or "-", spare=True),
                Column("ENDS", lambda row: row["not_after"][:10] or "-"),
                Column("REVOKED", lambda row: row["revoked_at"] or "-"), Column("REASON", lambda row: row["reason"] or "-"))


def list_certificates(given: Given) -> int:
    """Every certificate that the control plane knows."""
    query = {"id": given.id} if given.id else None
    return listing(given, "certificates", CERTIFICATES, "no certificates are known", query=query)


def show_authority(given: Given) -> int:
    """The authority in this installation's directory, and what it has issued as far as the control plane knows."""
    from lib.pki.authority import read_root

    here = settings(given)
    root = read_root(here.authority)
    found: dict[str, Any] = {"directory": str(here.authority), "cluster": root.cluster, "domain": root.domain,
                             "networks": list(root.networks), "ends": f"{root.not_after:%Y-%m-%dT%H:%M:%SZ}",
                             "sealed": root.sealed,
                             "key": root.key_fault or ("sealed by a passphrase" if root.sealed else "open"),
                             "renewed_days": here.certificate_days, "issued": None, "revoked": None}
    try:
        with connect(given) as client:
            rows = client.get("/ctl/v1/certificates")
        found |= {"issued": sum(bool(row["role"]) for row in rows), "revoked": sum(bool(row["revoked_at"]) for row in rows)}
    except LlmgwError as err:
        say(f"what was issued and revoked is not known here: {err}")
    if given.output == "json":
        sys.stdout.write(render_json(found))
    else:
        fields = [(key.replace("_", " "), "unknown" if value is None else value) for key, value in found.items()
                  if key != "sealed"]
        sys.stdout.write(render_fields(fields, screen_width()))
    return 0


def revoke_certificate(given: Given) -> int:
    """Make a certificate worthless, for ever."""
    serial = parse_serial(given.serial)
    confirm(f"revoke certificate {serial}? It can never be made good again", yes=given.yes)
    with connect(given) as client:
        done = client.post(f"/ctl/v1/certificates/{serial}/revoke", {"reason": given.reason, "unknown": given.unknown},
                           idempotent=True)
    whose = f" of {done['role']} {done['id']}" if done["role"] else ""
    say(f"certificate {serial}{whose} is revoked: the control plane refuses it from now on, routers and guards within seconds")
    return 0


def export_crl(given: Given) -> int:
    """The deny-list as a CRL signed by the root, for programs that are not ours."""
    with connect(given) as client:
        rows = client.get("/ctl/v1/certificates")
    revoked = [(row["serial"], parse_time(row["revoked_at"], "revoked_at")) for row in rows if row["revoked_at"]]
    crl = open_authority(settings(given), given.passphrase_file).crl(revoked, days=given.days)
    write_atomic(Path(given.out), crl, mode=0o644)
    say(f"{given.out}: {len(revoked)} revoked certificates, to be exported again within {given.days:g} days")
    return 0


def remove_node(given: Given) -> int:
    """Take a node out of the cluster."""
    confirm(f"remove node {given.node}? It is let in again only after it was onboarded anew", yes=given.yes)
    with connect(given) as client:
        done = client.post(f"/ctl/v1/nodes/{quote(given.node, safe='')}/remove", {"force": given.force},
                           headers=once())
    moved = f"; {', '.join(done['replicas'])} are placed anew" if done["replicas"] else ""
    say(f"node {given.node} is removed and its certificates are revoked{moved}")
    if done["replicas"]:
        say("its engines go on until that machine is switched off, or onboarded again: see docs/identity.md")
    return 0
