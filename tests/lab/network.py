"""A switch and hosts on it, each a network namespace with one address of 10.0.0.0/24."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "10.0.0"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Host:
    """One host of the lab."""

    namespace: str
    address: str

    def words(self, argv: Sequence[str | Path]) -> list[str]:
        """The command line that runs `argv` in this host."""
        return ["ip", "netns", "exec", self.namespace, *map(str, argv)]

    def run(self, *argv: str | Path, env: Mapping[str, str] | None = None, text: str = "",
            timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `argv` in this host, to its end."""
        return subprocess.run(self.words(argv), input=text, text=True, capture_output=True, check=False, timeout=timeout,
                              env={**ENVIRONMENT, **(env or {})})


@dataclass(frozen=True)
class Network:
    """All hosts, by the last number of their address."""

    name: str
    hosts: Mapping[int, Host]

    def cable(self, number: int, *, plugged: bool) -> None:
        """Pull the cable of a host, or put it back."""
        _ip("-n", f"{self.name}-sw", "link", "set", f"p{number}", "up" if plugged else "down")


@contextmanager
def network(numbers: Sequence[int]) -> Iterator[Network]:
    """A network with these hosts, gone afterwards. Its names hold our pid: several may stand side by side."""
    name = f"lgw{os.getpid()}"
    made = Network(name, {number: Host(f"{name}-h{number}", f"{PREFIX}.{number}") for number in numbers})
    try:
        _build(made)
        yield made
    finally:
        for namespace in [*(host.namespace for host in made.hosts.values()), f"{name}-sw"]:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)


def _build(made: Network) -> None:
    switch = f"{made.name}-sw"
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "br0", "type", "bridge")
    _ip("-n", switch, "link", "set", "br0", "up")
    for number, host in made.hosts.items():
        _ip("netns", "add", host.namespace)
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.namespace, "link", "set", "eth0", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
