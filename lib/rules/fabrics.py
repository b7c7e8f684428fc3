"""Which adapters belong to which of a node's declared fabrics.

Room: rules. A fabric is what the operator declares. Nothing is guessed from a subnet prefix: every fabric has the same one
unless somebody changed it. Where the assignment is not certain, the agent refuses and says what it found.
"""

import re
from collections.abc import Mapping, Sequence

from lib.base.errors import Refused
from lib.base.names import SHORT_LABEL, natural
from lib.model.fleet import Adapter

PER_FABRIC = 2                             # adapters of a fabric whose claim names none


def assign(claims: Sequence[str], adapters: Sequence[Adapter]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(fabric, its adapter names) for claims such as "ib-a" or "ib-b:mlx5_2,mlx5_3", in the order of the claims.

    Refused, listing the adapters found, where one is claimed twice, is not there, is no InfiniBand, or where fabrics without
    names do not get exactly two each.
    """
    parsed = [_parse(claim) for claim in claims]
    _check_claims([name for name, _ in parsed], [adapter for _, named in parsed for adapter in named], adapters)
    unnamed = [name for name, named in parsed if not named]
    taken = {adapter for _, named in parsed for adapter in named}
    free = [adapter for adapter in _infiniband(adapters) if adapter not in taken]
    if unnamed and len(free) != PER_FABRIC * len(unnamed):
        raise _refused(f"{', '.join(unnamed)} would need exactly {PER_FABRIC * len(unnamed)} InfiniBand adapters "
                       f"({PER_FABRIC} each), and {len(free)} are free to take", adapters)
    shares = {name: tuple(free[PER_FABRIC * turn: PER_FABRIC * (turn + 1)]) for turn, name in enumerate(unnamed)}
    return tuple((name, named or shares[name]) for name, named in parsed)


def _parse(claim: str) -> tuple[str, tuple[str, ...]]:
    name, colon, rest = claim.partition(":")
    named = tuple(part.strip() for part in rest.split(",") if part.strip())
    if not re.fullmatch(SHORT_LABEL, name) or (colon and not named):
        raise Refused(f"{claim!r} does not declare a fabric", hint='write "ib-a", or "ib-a:mlx5_0,mlx5_1" to name its adapters')
    return name, named


def _infiniband(adapters: Sequence[Adapter]) -> list[str]:
    return sorted({adapter.name for adapter in adapters if adapter.is_infiniband}, key=natural)


def _check_claims(names: Sequence[str], named: Sequence[str], adapters: Sequence[Adapter]) -> None:
    kinds: Mapping[str, bool] = {adapter.name: adapter.is_infiniband for adapter in
                                 sorted(adapters, key=lambda adapter: adapter.is_infiniband)}
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"fabric {name} is declared twice", hint="declare each fabric once, with all its adapters")
    for adapter in named:
        if named.count(adapter) > 1:
            raise _refused(f"adapter {adapter} is under two fabrics, or twice under one", adapters)
        if adapter not in kinds:
            raise _refused(f"there is no adapter {adapter}", adapters)
        if not kinds[adapter]:
            raise _refused(f"adapter {adapter} is Ethernet (RoCE), and a fabric is InfiniBand", adapters)


def _refused(problem: str, adapters: Sequence[Adapter]) -> Refused:
    found = ", ".join(describe(adapter) for adapter in sorted(adapters, key=lambda one: (natural(one.name), one.port)))
    return Refused(f"{problem}; found: {found or 'no adapter'}",
                   hint='name the adapters of each fabric, as in fabrics = ["ib-a:mlx5_0,mlx5_1"]')


def describe(adapter: Adapter) -> str:
    """An adapter in a few words: "mlx5_2 (InfiniBand, ACTIVE)"."""
    port = f" port {adapter.port}" if adapter.port != 1 else ""
    words = [adapter.link_layer or "link layer unknown", adapter.state]
    return f"{adapter.name}{port} ({', '.join(word for word in words if word)})"
