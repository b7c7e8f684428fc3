"""TCP ports of this machine: whether one can be bound, and which process has it otherwise.

Room: host. What the kernel tells in /proc/net; a process of another user may hold a port without being nameable.
"""

import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lib.host.process import all_processes, command_of

LISTEN = 0x0A
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Socket:
    """One line of /proc/net/tcp or tcp6."""

    address: str
    port: int
    state: int
    inode: int

    @property
    def listening(self) -> bool:
        return self.state == LISTEN


def engine_host(addr: str) -> str:
    """Where the engine behind a guard at `addr` listens, with the same port number: a loopback address that is not `addr`."""
    return "127.0.0.2" if addr == "127.0.0.1" else "127.0.0.1"


def parse_sockets(text: str) -> tuple[Socket, ...]:
    """The sockets in the text of /proc/net/tcp or /proc/net/tcp6; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        cells = line.split()
        if len(cells) > 9 and re.fullmatch(r"[0-9A-F]{8,32}:[0-9A-F]{4}", cells[1]):
            address, port = cells[1].split(":")
            found.append(Socket(_address(address), int(port, 16), int(cells[3], 16), int(cells[9])))
    return tuple(found)


def _address(digits: str) -> str:
    """The kernel prints addresses as words of 32 bits in its own byte order; IPv4 in IPv6 is told as IPv4."""
    raw = b"".join(int(digits[i:i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(digits), 8))
    address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)


def read_sockets() -> tuple[Socket, ...]:
    """Every TCP socket of this network namespace."""
    found: list[Socket] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            found += parse_sockets(Path(f"/proc/net/{name}").read_text(encoding="ascii"))
    return tuple(found)


def listeners(sockets: Collection[Socket], host: str, port: int) -> frozenset[int]:
    """The inodes of the sockets that answer a connection to (host, port): the exact address goes before a wildcard."""
    listening = [entry for entry in sockets if entry.port == port and entry.listening]
    exact = {entry.inode for entry in listening if entry.address == host}
    return frozenset(exact or {entry.inode for entry in listening if entry.address in ("0.0.0.0", "::")})


def sockets_of(pid: int) -> frozenset[int]:
    """The inodes of the sockets that a process has open; empty where it has gone or belongs to another user."""
    return frozenset(_sockets_of(pid))


def _sockets_of(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if match := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}")):
                    yield int(match[1])


def listener_pids(host: str, port: int) -> frozenset[int]:
    """The processes that answer a connection to (host, port), as far as they can be seen."""
    return _holders(listeners(read_sockets(), host, port))


def sockets_of_all(pids: Collection[int]) -> frozenset[int]:
    """The inodes of the sockets that any of these processes has open."""
    return frozenset().union(*(sockets_of(pid) for pid in pids))


def _holders(inodes: Collection[int]) -> frozenset[int]:
    if not inodes:
        return frozenset()
    return frozenset(stat.pid for stat in all_processes() if not sockets_of(stat.pid).isdisjoint(inodes))


def free(addr: str, port: int) -> str:
    """An empty string where (addr, port) can be bound and listened on now, else a sentence that says who has it."""
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)    # as a server does: TIME_WAIT is no hindrance
            probe.bind((addr, port))
            probe.listen(1)            # two sockets may be bound to one address; listening shows the clash
            return ""
    except OSError as err:
        if err.errno == errno.EADDRINUSE:
            return f"port {port} on {addr} is taken by {_holder_words(addr, port)}"
        if err.errno == errno.EADDRNOTAVAIL:
            return f"{addr} is not an address of this machine"
        return f"port {port} on {addr} cannot be bound: {err.strerror}"


def _holder_words(addr: str, port: int) -> str:
    wildcards = ("0.0.0.0", "::")
    using = [entry for entry in read_sockets() if entry.port == port and entry.inode
             and (addr in wildcards or entry.address in (addr, *wildcards))]
    using = [entry for entry in using if entry.listening] or using
    pids = sorted(_holders({entry.inode for entry in using}))
    if pids:
        return ", ".join(f"process {pid} ({command_of(pid)[:80]})" for pid in pids[:3])
    return "a process of another user" if using else "a process that has bound it without listening"
