"""When a certificate is to be renewed, and what is said of one that was not.

Room: rules. Times are Unix seconds: certificates are the one thing that is judged by the wall clock.
"""

from collections.abc import Mapping

from lib.model.certificate import Certificate, render_time
from lib.model.committed import Committed
from lib.model.identity import Role

BACKDATED_S = 300.0                        # certificates begin this long before they were issued
RENEWED_AT, SPREAD = 2.0 / 3.0, 0.05       # of the life, so that a cluster set up in one go does not renew in one go
LATE_S = 7 * 86400.0                       # an expired certificate may still be exchanged for a new one
RETRY_S, RETRY_MOST_S = 2.0, 3600.0
Holder = tuple[Role, str]


def life_s(not_before: float, not_after: float) -> float:
    """How long a certificate was to live when it was issued."""
    return max(1.0, not_after - not_before - BACKDATED_S)


def due_at(not_before: float, not_after: float, fraction: float) -> float:
    """When to renew; `fraction` in [0, 1) says where in the spread this holder has its place."""
    life = life_s(not_before, not_after)
    return not_after - life * (1.0 - RENEWED_AT + SPREAD * (1.0 - 2.0 * fraction))


def retry_s(not_before: float, not_after: float) -> float:
    """How long to wait after a renewal that failed: long enough to be no burden, short enough to be tried many times."""
    return min(RETRY_MOST_S, max(RETRY_S, life_s(not_before, not_after) / 100.0))


def present(committed: Committed, presented: Mapping[Holder, Certificate], holder: Holder) -> Certificate | None:
    """The certificate that somebody has: the one last shown, else the newest that is known of and not revoked."""
    if holder in presented:
        return presented[holder]
    theirs = [known for known in committed.certificates.values() if (known.role, known.id) == holder]
    good = [known for known in theirs if known.serial not in committed.revoked]
    return max(good, key=lambda known: known.not_after, default=None)


def warning(known: Certificate | None, wall: float) -> str:
    """What an operator should know of this certificate's end; empty while renewal is not overdue."""
    if known is None:
        return ""
    day = render_time(known.not_after)[:10]
    if wall > known.not_after:
        return f"its certificate expired on {day}"
    overdue = wall > due_at(known.not_before, known.not_after, 1.0)
    return f"its certificate ends on {day} and has not been renewed" if overdue else ""


def overdue(committed: Committed, presented: Mapping[Holder, Certificate], wall: float) -> list[str]:
    """A sentence for each holder whose certificate ends soon or has ended; nodes have theirs among their conditions."""
    holders = {(known.role, known.id) for known in committed.certificates.values() if known.role is not Role.NODE}
    found = {holder: present(committed, presented, holder) for holder in sorted({*holders, *presented})}
    return [f"{known.role} {known.id}: {words}" for known in found.values()
            if known and known.role is not Role.NODE and (words := warning(known, wall))]
