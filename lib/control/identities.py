"""What an operator changes about identities: recording certificates, revoking them, removing nodes.

Room: control. A revocation is in the state file and in revoked.jsonl before it is answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lib.base.errors import Blocked, NotFound, Refused, UsageError
from lib.control.api import Handler
from lib.control.register import Register, shown
from lib.model.certificate import Certificate, parse_certificate, parse_serial
from lib.model.identity import Identity, Role
from lib.net.server import Request
from lib.rules import removal
from lib.store.db import Transaction

REASON_LIMIT = 500
Json = dict[str, Any]
Commit = Callable[[Identity, Request, str, str, Callable[[Transaction], None], object], None]


def changes(register: Register, commit: Commit) -> Mapping[str, Handler]:
    """Path below /ctl/v1/ to handler, each to be POSTed to. `commit` does the work of one in one audited transaction."""
    desk = _Changes(register, commit)
    return {"certificates": desk.record, "certificates/*/revoke": desk.revoke, "nodes/*/remove": desk.remove}


@dataclass(frozen=True, slots=True)
class _Changes:
    """One method a route; each takes (caller, request, what stands for the `*`)."""

    register: Register
    commit: Commit

    def record(self, caller: Identity, request: Request, _rest: str) -> Json:
        """A certificate was issued where the authority is; for a removed node it is the way back."""
        known = parse_certificate(request.json())
        answer = shown(known, {})
        self.commit(caller, request, "record certificate", f"{known.role} {known.id}", lambda step: _record(step, known), answer)
        return answer

    def revoke(self, caller: Identity, request: Request, rest: str) -> Json:
        """Make a certificate worthless, now and for ever."""
        serial, body = parse_serial(rest), _body(request)
        reason, known = _reason(body), self.register.plane.store.state().certificates.get(serial)
        if serial == caller.serial:
            raise Refused("this is the certificate that you speak with",
                          hint="revoke it with the certificate of another operator")
        if known is None and body.get("unknown") is not True:
            raise NotFound(f"no certificate with serial {serial} is known",
                           hint="llmgw-ctl ca list shows them; --unknown revokes the serial all the same")
        answer = {"serial": serial, "role": known.role if known else "", "id": known.id if known else ""}

        def work(step: Transaction) -> None:
            step.revoke(serial, reason)
            step.event(known.id if known else serial, f"certificate {serial} revoked{f': {reason}' if reason else ''}")
        self.commit(caller, request, "revoke certificate", serial, work, answer)
        self.register.cut()
        return answer

    def remove(self, caller: Identity, request: Request, rest: str) -> Json:
        """Take a node out of the cluster: what runs there is rebuilt elsewhere, and it is not let in again."""
        there = removal.placed_on(self.register.plane.store.state(), rest)
        if there and _body(request).get("force") is not True:
            raise Blocked(f"node {rest} runs {', '.join(there)}",
                          hint="--force removes it all the same: they are rebuilt elsewhere")
        answer = {"id": rest, "replicas": there}
        self.commit(caller, request, "remove node", rest, lambda step: step.remove_node(rest, f"node {rest} was removed"), answer)
        self.register.cut()
        return answer


def _record(step: Transaction, known: Certificate) -> None:
    returns = known.role is Role.NODE and known.id in step.after.removed
    if step.record(known, returns=True) and returns:
        step.event(known.id, "onboarded again after its removal")


def _body(request: Request) -> Mapping[str, Any]:
    body = request.json() if request.body else {}
    if not isinstance(body, dict):
        raise UsageError("the body must be an object")
    return body


def _reason(body: Mapping[str, Any]) -> str:
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > REASON_LIMIT:
        raise UsageError(f"reason: must be a text of at most {REASON_LIMIT} characters")
    return reason
