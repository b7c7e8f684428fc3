"""ADDRESS:PORT as text, both ways.

Room: base. Addresses are numbers, never names: what a name means may change under a configuration that was checked.
"""

import ipaddress
import re

_FORM = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[0-9.]+):(?P<port>[0-9]{1,5})")


def host_port(host: str, port: int) -> str:
    """ADDRESS:PORT; an IPv6 address goes into brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_port(text: str) -> tuple[str, int] | None:
    """ADDRESS:PORT or [ADDRESS]:PORT as a pair; None for anything else."""
    match = _FORM.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        return None
    host = match["host"].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return host, int(match["port"])


def address_fault(text: str) -> str:
    """Why other machines cannot use this address to reach the node, or an empty string."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return f"{text!r} is not an IP address"
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        return f"{text} is not an address that other nodes can reach"
    return ""
