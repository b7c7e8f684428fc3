"""The control plane, as onboarding asks it: who is there, what was issued, whether the node is seen.

Room: onboard.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.base.errors import LlmgwError, NotFound, TimedOut, Unavailable
from lib.model.certificate import render_time
from lib.model.identity import Role
from lib.net.client import Client
from lib.onboard.facts import Facts
from lib.pki.authority import Issued

ALIVE_S = 45.0                             # a node heard from within this time still holds its id
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the control plane knows of the node id."""

    state: str
    address: str
    agent_run: str                         # id of the start of the agent that was heard last
    version: str
    heard_s: float | None                  # None: not since the control plane has started

    @property
    def alive(self) -> bool:
        return self.heard_s is not None and self.heard_s < ALIVE_S


def rival(standing: Standing | None, facts: Facts) -> bool:
    """Whether another machine is this node, and is alive: by the run of its agent, since a copied disk has the same ids."""
    return standing is not None and standing.alive and standing.agent_run != facts.agent_run


class Cluster:
    """A control plane and one node's id in it."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node

    def name(self) -> str:
        """The cluster's name; proves that the control plane answers, and takes us for an operator."""
        return str(self._client.get("/ctl/v1/status")["cluster"])

    def standing(self) -> Standing | None:
        """What is known of the node; None where it is new."""
        row = self._row()
        if row is None:
            return None
        return Standing(str(row.get("state", "")), str(row.get("address") or ""),
                        str(row.get("agent_run") or ""), str(row.get("version") or ""), row.get("heard_s"))

    def _row(self) -> Mapping[str, Any] | None:
        try:
            return dict(self._client.get(f"/ctl/v1/nodes/{self._node}"))
        except NotFound:
            return None

    def record(self, issued: Issued) -> None:
        """Tell it of a new certificate; for a removed node that is the way back."""
        dates = {"not_before": render_time(issued.not_before.timestamp()), "not_after": render_time(issued.not_after.timestamp())}
        body = {"serial": issued.serial, "role": Role.NODE.value, "id": self._node, **dates}
        self._client.post("/ctl/v1/certificates", body, idempotent=True)

    def revoke(self, serial: str, reason: str) -> None:
        """Make a certificate worthless."""
        self._client.post(f"/ctl/v1/certificates/{serial}/revoke", {"reason": reason}, idempotent=True)

    def valid(self) -> Sequence[str]:
        """The serials of this node that are not revoked."""
        rows = self._client.get("/ctl/v1/certificates", {"id": self._node})
        return tuple(row["serial"] for row in rows if row["role"] == Role.NODE and not row["revoked_at"])

    def wait_ready(self, is_it: Callable[[Standing], bool], timeout_s: float) -> Mapping[str, Any]:
        """The node's row, once it is ready and is the one meant. TimedOut where that does not happen."""
        deadline, last = time.monotonic() + timeout_s, "nothing is known of it"
        while True:
            try:
                standing = self.standing()
                if standing and standing.state == "ready" and is_it(standing) and (row := self._row()):
                    return row
                last = f"its state is {standing.state}" if standing else last
            except Unavailable as err:
                last = str(err)
            if time.monotonic() > deadline:
                raise TimedOut(f"the control plane has not seen {self._node} ready within {timeout_s:g} s: {last}")
            time.sleep(LOOK_S)


def revoke_quietly(cluster: Cluster, serial: str, reason: str) -> str:
    """Revoke after a failure; what came of it, in words. A second failure may not hide the first."""
    try:
        cluster.revoke(serial, reason)
    except LlmgwError as err:
        return f"certificate {serial} could not be revoked ({err}): llmgw-ctl ca revoke {serial} does it"
    return f"certificate {serial} has been revoked"
