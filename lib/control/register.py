"""The certificates of the cluster as the control plane keeps them: who has which, and who is shut out.

Room: control. Every certificate that is let in is kept, so that removing a node revokes whatever it ever came with. A
revocation counts for the next request of every connection, and ends those that are open.
"""

import logging
from collections.abc import Mapping
from typing import Any

from lib.base.errors import LlmgwError, Refused
from lib.control.plane import Plane
from lib.model.certificate import Certificate, Revocation, removed, render_time
from lib.model.identity import Identity, Role, identity_of
from lib.net.tls import PeerCert, begins_s, expires_s

log = logging.getLogger(__name__)

Json = dict[str, Any]


class Register:
    """Judges callers and lists certificates, by what is committed."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane

    def refusal(self, caller: Identity) -> str:
        """Why a caller is shut out, in words that follow its name; empty where it is not. Refused where it was removed."""
        state = self.plane.store.state()
        if caller.role is Role.NODE and caller.id in state.removed:
            raise removed(caller.id)
        return "its certificate has been revoked" if caller.serial in state.revoked else ""

    def note(self, caller: Identity, peer: PeerCert) -> None:
        """Remember which certificate somebody came with, and keep it where it is a new one."""
        seen = Certificate(caller.serial, caller.role, caller.id, begins_s(peer), expires_s(peer))
        self.plane.presented[caller.role, caller.id] = seen
        if seen.serial in self.plane.store.state().certificates:
            return
        try:
            with self.plane.store.change("", "certificate") as step:
                step.record(seen)
        except LlmgwError as err:           # a full disk: it is kept at the next request
            log.debug("%s not kept: %s", seen, err)

    def cut(self) -> None:
        """End the open connections of whoever is shut out by now."""
        self.plane.cut(self._shut_out)

    def _shut_out(self, peer: PeerCert) -> bool:
        try:
            return bool(self.refusal(identity_of(peer)))
        except Refused:
            return True

    def listing(self, id: str = "") -> list[Json]:
        """Every certificate that is known (of `id`), by holder and end, and what is revoked besides."""
        known, revoked = self.plane.store.state().certificates, self.plane.store.revocations()
        rows = [shown(each, revoked) for each in
                sorted(known.values(), key=lambda each: (each.role, each.id, each.not_after))]
        rows += [{"serial": serial, "role": "", "id": "", "not_before": "", "not_after": "", **_revoked(entry)}
                 for serial, entry in sorted(revoked.items()) if serial not in known]
        return [row for row in rows if id in ("", row["id"])]


def shown(known: Certificate, revoked: Mapping[str, Revocation]) -> Json:
    """A certificate as operators are shown it."""
    return {"serial": known.serial, "role": known.role.value, "id": known.id, "not_before": render_time(known.not_before),
            "not_after": render_time(known.not_after), **_revoked(revoked.get(known.serial))}


def _revoked(entry: Revocation | None) -> Json:
    return {"revoked_at": render_time(entry.at if entry else None), "reason": entry.reason if entry else ""}
