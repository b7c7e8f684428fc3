"""Waiting until a new machine is there: it answers ssh, under the right name, and has finished setting itself up.

Room: provision. That a port answers proves nothing, and a guest agent is not in every image: only the node's own word counts.
"""

import time
from collections.abc import Callable

from lib.base.errors import LlmgwError, TimedOut
from lib.host.run import Outcome
from lib.remote.contact import SSH_FAILED, Contact

ASK_S, PAUSE_S, TELL_S = 20.0, 1.0, 15.0
NOT_THERE = 127
CLOUD_INIT = "cloud-init status --wait"


def refusal(answer: Outcome, name: str) -> str:
    """Why this is not the node yet, empty when it is. A name with a domain behind it is the name too."""
    said = answer.stdout.strip()
    if answer.status:
        lines = answer.stderr.strip().splitlines()
        return lines[-1].strip() if lines else f"exit {answer.status}"
    return "" if said.partition(".")[0] == name else f"it says its name is {said!r}, not {name!r}"


def await_arrival(contact: Contact, name: str, timeout_s: float, say: Callable[[str], None]) -> str:
    """The fingerprint of its host key once it is there; TimedOut with the last reason, LlmgwError where cloud-init failed."""
    began = time.monotonic()

    def left() -> float:
        return timeout_s - (time.monotonic() - began)
    _until(lambda: refusal(contact.ask("hostname", min(ASK_S, max(1.0, left()))), name), contact, left, say)
    say(f"ssh answers as {name} after {timeout_s - left():.0f} s; waiting for cloud-init to finish")
    _until(lambda: _unfinished(contact.ask(CLOUD_INIT, max(1.0, left())), say), contact, left, say)
    return contact.fingerprint()


def _until(reason_against: Callable[[], str], contact: Contact, left: Callable[[], float], say: Callable[[str], None]) -> None:
    told, told_at, began = "", 0.0, time.monotonic()
    while reason := reason_against():
        now = time.monotonic()
        if left() <= 0:
            raise TimedOut(f"{contact.user}@{contact.address} is not there in time: {reason}")
        if reason != told or now - told_at > TELL_S:
            say(f"  {now - began:.0f} s: {reason}")
            told, told_at = reason, now
        time.sleep(PAUSE_S)


def _unfinished(answer: Outcome, say: Callable[[str], None]) -> str:
    """Why cloud-init has not finished, empty when it has. Recoverable errors (2) are told; a failure (1) is one."""
    said = " ".join(answer.stdout.split())
    if answer.status == SSH_FAILED:
        return refusal(answer, "")
    if answer.status == 1:
        raise LlmgwError(f"cloud-init on the node ended in an error: {said}", hint="look at /var/log/cloud-init-output.log there")
    if answer.status == NOT_THERE:
        say("the image has no command cloud-init; whether it has finished cannot be told")
    elif answer.status:
        say(f"cloud-init finished with errors that it could get over: {said}")
    return ""
