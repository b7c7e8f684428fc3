"""Taking a TCP address to listen on, and saying in one line why it cannot be had.

Room: net.
"""

import socket

from lib.base.address import host_port
from lib.base.errors import LlmgwError


def listen(address: tuple[str, int], backlog: int) -> socket.socket:
    """A socket that listens on (host, port); port 0 means any free one. LlmgwError where it cannot."""
    sock = bind(address, "listen on")
    try:
        sock.listen(backlog)               # two sockets may be bound to one address: listening shows the clash
    except OSError as err:
        sock.close()
        raise _refusal("listen on", address, err) from err
    return sock


def bind(address: tuple[str, int], purpose: str = "bind") -> socket.socket:
    """A socket bound to (host, port) that does not listen yet; `purpose` is what the LlmgwError says that cannot be done."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as err:
        sock.close()
        raise _refusal(purpose, address, err) from err
    return sock


def _refusal(purpose: str, address: tuple[str, int], err: OSError) -> LlmgwError:
    return LlmgwError(f"cannot {purpose} {host_port(*address)}: {err.strerror or err}",
                      hint=f"choose another address, or see who holds it: ss -ltnp 'sport = :{address[1]}'")
