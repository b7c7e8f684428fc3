"""What may be a name, so that one string can be a host name, a certificate name and a file name alike.

Room: base.
"""

import re

from lib.base.errors import UsageError

DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"      # ids of nodes, routers and operators, names of clusters
SHORT_LABEL = r"[a-z0-9]([a-z0-9-]{0,39}[a-z0-9])?"    # profiles and fabrics: "-<number>" of a replica still fits behind
_PARTS = re.compile(r"[0-9]+|[^0-9]+")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that reads digits as numbers: mlx5_2 before mlx5_10."""
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in _PARTS.findall(name))


def check_node_id(text: str) -> str:
    """`text` if it can be a node id (a DNS label, not all digits); UsageError otherwise."""
    if not re.fullmatch(DNS_LABEL, text) or text.isdigit():
        raise UsageError(f"{text!r} cannot be a node id",
                         hint="use lower-case letters, digits and '-', at most 63, no '-' at either end, not digits alone")
    return text
