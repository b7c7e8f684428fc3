"""The router table as a worker uses it: names to models, key hashes to keys.

Room: gateway. Pure. A table is checked whole and swapped whole; replicas of an epoch that stays keep their load and
their connections.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lib.base.errors import UsageError
from lib.base.names import DNS_LABEL
from lib.gateway.cells import Cells
from lib.gateway.limits import Key
from lib.gateway.replica import Model, Replica
from lib.model.wire import Endpoint, RouterTable

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-f]{1,64}")
_SECRET = re.compile(r"[!-~]{1,512}")      # goes into a header field: nothing that could end one
_NODE = re.compile(DNS_LABEL)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A table with the numbers that the parent gave its replicas and keys (`gateway.cells`)."""

    table: RouterTable
    replicas: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Routes:
    """What a worker routes by."""

    rev: int = -1
    cp_epoch: int = 0
    cluster: str = ""
    models: Mapping[str, Model] = field(default_factory=dict)         # by name and by alias
    keys: Mapping[str, Key] = field(default_factory=dict)             # by SHA-256, hex
    replicas: Mapping[str, Replica] = field(default_factory=dict)     # by epoch_name
    owners: Mapping[str, str] = field(default_factory=dict)           # epoch_name -> model
    revoked: frozenset[str] = frozenset()                             # serials of certificates

    @property
    def loaded(self) -> bool:
        return self.rev >= 0


def epoch_name(endpoint: Endpoint) -> str:
    """A replica's epoch as one word."""
    return f"{endpoint.id}.{endpoint.counter}-{endpoint.nonce}"


def endpoints(table: RouterTable) -> Iterator[tuple[str, Endpoint]]:
    """Every replica of a table with its model's name."""
    for name, route in table.models.items():
        for endpoint in route.replicas:
            yield name, endpoint


def check_table(table: RouterTable, cluster: str) -> None:
    """UsageError naming the first thing that cannot be routed by, in this cluster."""
    if table.cluster != cluster:
        raise UsageError(f"router table: of cluster {table.cluster!r}, this router belongs to {cluster!r}")
    taken: dict[str, str] = {}
    for name, route in table.models.items():
        for word in (name, *route.aliases):
            if not word or taken.setdefault(word, name) != name:
                raise UsageError(f"router table: the name {word!r} stands for two models")
    for name, endpoint in endpoints(table):
        if problem := _endpoint_fault(endpoint):
            raise UsageError(f"router table: replica {endpoint.id!r} of {name!r}: {problem}")
    for entry in table.keys:
        if not _SHA256.fullmatch(entry.sha256):
            raise UsageError(f"router table: key {entry.id!r} has no SHA-256")


def _endpoint_fault(endpoint: Endpoint) -> str:
    try:
        ipaddress.ip_address(endpoint.addr)
    except ValueError:
        return f"{endpoint.addr!r} is not an address"
    checks = {f"port {endpoint.port}": 1 <= endpoint.port <= 65535, f"node {endpoint.node!r}": _NODE.fullmatch(endpoint.node),
              f"nonce {endpoint.nonce!r}": _NONCE.fullmatch(endpoint.nonce), f"counter {endpoint.counter}": endpoint.counter >= 0,
              "the form of its engine key": _SECRET.fullmatch(endpoint.engine_key)}
    return next((problem for problem, fits in checks.items() if not fits), "")


def is_older(table: RouterTable, than: RouterTable | None) -> bool:
    """Whether `table` is a step back within the same lineage."""
    if than is None or table.lineage != than.lineage:
        return False
    return (table.cp_epoch, table.rev) < (than.cp_epoch, than.rev)


def build_routes(numbered: Numbered, cells: Cells, old: Routes) -> Routes:
    """A checked table, ready for use. Replicas of `old` that are not in it any more are marked as gone."""
    table = numbered.table
    replicas: dict[str, Replica] = {}
    owners, models = {}, {}
    for name, route in table.models.items():
        members = []
        for endpoint in route.replicas:
            word = epoch_name(endpoint)
            kept = replicas.get(word) or _kept(old.replicas.get(word), endpoint)
            replica = kept or Replica(endpoint, numbered.replicas.get(word, 0), cells)
            replicas[word], owners[word] = replica, name
            members.append(replica)
        model = Model(name, route.aliases, tuple(members), route.max_inflight, route.state)
        models.update(dict.fromkeys((name, *route.aliases), model))
    staying = set(replicas.values())
    for replica in old.replicas.values():
        replica.gone = replica not in staying
    keys = {entry.sha256: Key(entry, numbered.keys.get(entry.id, 0), max(1, table.routers), cells) for entry in table.keys}
    return Routes(table.rev, table.cp_epoch, table.cluster, models, keys, replicas, owners, frozenset(table.revoked))


def _kept(replica: Replica | None, endpoint: Endpoint) -> Replica | None:
    """The replica itself where only its state changed; an epoch that moved or got another key would be a new one."""
    if replica is None or (replica.endpoint.addr, replica.endpoint.port, replica.endpoint.node, replica.endpoint.engine_key) != (
            endpoint.addr, endpoint.port, endpoint.node, endpoint.engine_key):
        return None
    replica.degraded = endpoint.state != "ready"
    return replica
