"""What makes `requests` ours: our TLS context and no other, a look at the peer after each handshake, and progress.

Room: net. Imported by `net.client` alone, and only when a client is made: `requests` costs much of a command's start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPSConnection

from lib.net.tls import PeerCert, TlsContext


@dataclass(slots=True)
class Progress:
    """How far the request under way has come: what its failure means depends on that."""

    fresh: bool = False                    # it opened its connection itself, none was reused
    connecting: bool = False               # before the end of the handshake: nothing of it has been sent

    def begin(self) -> None:
        """A new request."""
        self.fresh = self.connecting = False


class _Connection(HTTPSConnection):
    check_peer: Callable[[PeerCert], None]
    progress: Progress

    def connect(self) -> None:
        self.progress.fresh = self.progress.connecting = True
        super().connect()
        self.check_peer(self.sock.getpeercert() or {})  # type: ignore[union-attr]
        self.progress.connecting = False


class _Pool(HTTPSConnectionPool):
    ConnectionCls = _Connection

    def __init__(self, adapter: "_Adapter", *args: Any, **more: Any) -> None:
        self._adapter = adapter
        super().__init__(*args, **more)

    def _new_conn(self) -> Any:
        connection: Any = super()._new_conn()
        connection.check_peer, connection.progress = self._adapter.check_peer, self._adapter.progress
        return connection


class _Adapter(HTTPAdapter):
    def __init__(self, context: TlsContext, check_peer: Callable[[PeerCert], None], progress: Progress) -> None:
        self._context, self.check_peer, self.progress = context, check_peer, progress
        super().__init__(pool_connections=1, pool_maxsize=4, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
        """Every connection comes from our pool and takes our context."""
        self.poolmanager = PoolManager(connections, maxsize=maxsize, block=block, ssl_context=self._context, **more)
        self.poolmanager.pool_classes_by_scheme = {"https": lambda *args, **more: _Pool(self, *args, **more)}

    def close(self) -> None:
        """Close the connections now: urllib3 leaves that to the garbage collector."""
        pools = self.poolmanager.pools
        for key in pools.keys():  # noqa: SIM118 - this mapping refuses to be iterated
            pools[key].close()
        super().close()

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Nothing: the original would add certifi's authorities to the context."""


def session(context: TlsContext, check_peer: Callable[[PeerCert], None], progress: Progress) -> requests.Session:
    """A session that dials with `context`, asks no environment variable and knows no plain HTTP."""
    made = requests.Session()
    made.trust_env = False
    made.adapters.clear()
    made.mount("https://", _Adapter(context, check_peer, progress))
    return made
