"""router.toml as a type, checked whole before anything starts.

Room: gateway. Reading only.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from lib.base.address import host_port
from lib.base.config import Table, read_toml
from lib.base.names import DNS_LABEL
from lib.model.settings import listen_address, pki_files, server_url

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times; every one of them can be set in router.toml."""

    body: int = 64 * MIB                   # bytes of one request body
    body_memory: int = 512 * MIB           # bytes of all request bodies held at once, by all workers together
    connections: int = 16384               # client connections per worker
    handshake_s: float = 10.0              # connecting to a guard, TLS included
    head_s: float = 10.0                   # from the first byte of a request head to its last
    idle_s: float = 75.0                   # a kept-alive connection between requests
    body_idle_s: float = 30.0              # between two reads of a request body
    first_byte_s: float = 3600.0           # from the request sent upstream to the first byte of the answer
    inter_token_s: float = 300.0           # between two reads of the answer
    write_stall_s: float = 60.0            # a client that does not take what it asked for
    upstream_idle_s: float = 4.0           # a kept-alive connection to an engine, which closes it after 5
    settle_s: float = 1.0                  # at SIGTERM: still accepting, /ready already says no
    stop_s: float = 120.0                  # at SIGTERM: how long streams may go on


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Everything router.toml says."""

    file: Path
    name: str
    server: str
    host: str
    port: int
    state_dir: Path
    workers: int
    certificate: Path
    key: Path
    ca: Path
    limits: Limits = Limits()

    @property
    def table_file(self) -> Path:
        return self.state_dir / "table.json"

    @property
    def listen(self) -> str:
        return host_port(self.host, self.port)


def read_settings(path: Path) -> RouterSettings:
    """The settings in the file at `path`; ConfigError with every fault."""
    root = read_toml(path)
    host, port = listen_address(root, "0.0.0.0:8080")
    certificate, key, ca = pki_files(root, "/etc/llmgw/pki", "router")
    settings = RouterSettings(
        file=path, name=root.text("name", pattern=DNS_LABEL, expect="a router's id (a lower-case DNS label)"),
        server=server_url(root), host=host, port=port, state_dir=root.file_path("state_dir", "/var/lib/llmgw-router"),
        workers=root.integer("workers", os.cpu_count() or 1, low=1, high=256),
        certificate=certificate, key=key, ca=ca, limits=_limits(root))
    root.settle()
    return settings


def _limits(root: Table) -> Limits:
    sizes, times, std = root.table("limits"), root.table("timeouts"), Limits()

    def seconds(key: str, default: float) -> float:
        return times.number(key, default, low=0.05, high=86400)

    return Limits(
        body=sizes.integer("body_mib", std.body // MIB, low=1, high=4096) * MIB,
        body_memory=sizes.integer("body_memory_mib", std.body_memory // MIB, low=1, high=2**20) * MIB,
        connections=sizes.integer("connections", std.connections, low=1, high=10**6),
        handshake_s=seconds("handshake", std.handshake_s), head_s=seconds("head", std.head_s),
        idle_s=seconds("idle", std.idle_s), body_idle_s=seconds("body_idle", std.body_idle_s),
        first_byte_s=seconds("first_byte", std.first_byte_s), inter_token_s=seconds("inter_token", std.inter_token_s),
        write_stall_s=seconds("write_stall", std.write_stall_s),
        upstream_idle_s=seconds("upstream_idle", std.upstream_idle_s),
        settle_s=times.number("settle", std.settle_s, high=3600), stop_s=times.number("stop", std.stop_s, high=86400))
