"""A JSON client over mutual TLS, whose failures say in one line what happened and whether it may have been done.

Room: net. Wraps `requests`, imported when a client is made. One `Client` per thread; it keeps its connection alive.
"""

import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lib.base.errors import LlmgwError, Unavailable, UnknownOutcome, UsageError
from lib.net.problem import parse_problem
from lib.net.tls import PeerCert, TlsContext, certificate_fault, handshake_fault, refused_certificate

CONNECT_S = 5.0
Query = Mapping[str, str | int | float]
E = TypeVar("E", bound=BaseException)


def _anyone(_: PeerCert) -> None:
    """The check of a client that has none: the authority and the host name say enough."""


class Client:
    """Speaks to one server. `check_peer` sees its certificate after every handshake and raises what it does not like."""

    def __init__(self, url: str, context: TlsContext, *, check_peer: Callable[[PeerCert], None] = _anyone,
                 connect_s: float = CONNECT_S) -> None:
        from lib.net.transport import Progress, session

        self.url, self._context, self._connect_s = _base(url), context, connect_s
        self._progress = Progress()
        self._session = session(context, check_peer, self._progress)

    def get(self, path: str, query: Query | None = None, *, headers: Mapping[str, str] | None = None,
            timeout_s: float = 30.0) -> Any:
        """The JSON answer to a GET. Unavailable when there is none; the server's own error otherwise."""
        return self._call("GET", path, None, query=query, headers=headers, timeout_s=timeout_s, idempotent=True)

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None,
             timeout_s: float = 30.0, idempotent: bool = False) -> Any:
        """The JSON answer to a POST. When the connection dies on the way: UnknownOutcome, or Unavailable if `idempotent`."""
        return self._call("POST", path, body, headers=headers, timeout_s=timeout_s, idempotent=idempotent)

    def delete(self, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> Any:
        """The JSON answer to a DELETE; failures as for `post`."""
        return self._call("DELETE", path, None, headers=headers, timeout_s=timeout_s, idempotent=False)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, path: str, body: Any, *, query: Query | None = None,
              headers: Mapping[str, str] | None, timeout_s: float, idempotent: bool) -> Any:
        raw = None if method == "GET" or body is None else json.dumps(body, separators=(",", ":")).encode()
        fields = {"accept": "application/json", "content-type": "application/json", **(headers or {})}
        send = _Send(method, self.url + path, raw, query, fields, (self._connect_s, timeout_s))
        status, answer = self._exchange(send, idempotent)
        value = self._parse(send, status, answer)
        if status >= 300:
            raise parse_problem(status, value, f"{method} {send.url}")
        return value

    def _exchange(self, send: "_Send", idempotent: bool) -> tuple[int, bytes]:
        """Status and body. A kept-alive connection that turns out to be dead is replaced once where that does no harm."""
        try:
            return self._once(send)
        except OSError as err:
            if not idempotent or self._progress.fresh or _cause(err, TimeoutError):
                raise self._translated(err, send, idempotent) from err
        try:
            return self._once(send)
        except OSError as err:
            raise self._translated(err, send, idempotent) from err

    def _once(self, send: "_Send") -> tuple[int, bytes]:
        self._progress.begin()
        answer = self._session.request(send.method, send.url, params=send.query, data=send.body, headers=send.headers,
                                       timeout=send.timeouts_s, allow_redirects=False)
        return answer.status_code, answer.content

    def _translated(self, err: OSError, send: "_Send", idempotent: bool) -> LlmgwError:
        if refusal := self._tls_refusal(err):
            return refusal
        if self._progress.connecting:
            return self._not_connected(err)
        timed_out = _cause(err, TimeoutError) is not None
        happened = f"did not answer within {send.timeouts_s[1]:g} s" if timed_out else "closed the connection before answering"
        if idempotent:
            return Unavailable(f"{self.url} {happened} ({send.method} {send.path})", hint="try again; its log may say why")
        return UnknownOutcome(f"{self.url} {happened}: {send.method} {send.path} may or may not have been done",
                              hint="look at the state before you repeat it")

    def _tls_refusal(self, err: OSError) -> Unavailable | None:
        """One side did not like the other's certificate. In TLS 1.3 the server's alert comes after our handshake has ended."""
        if bad := _cause(err, ssl.SSLCertVerificationError):
            return Unavailable(f"{self.url}: its certificate {certificate_fault(bad, self._context.ca)}",
                               hint="check the URL and the file that holds the authority")
        alert = refused_certificate(found) if (found := _cause(err, ssl.SSLError)) else ""
        if not alert:
            return None
        if not self._context.certificate:
            return Unavailable(f"{self.url} wants a certificate of ours: {alert}", hint="name a certificate and its key")
        return Unavailable(f"{self.url} refused our certificate ({self._context.certificate}): {alert}",
                           hint="have one issued by the server's authority; the server's log has the reason")

    def _not_connected(self, err: OSError) -> Unavailable:
        happened, hint = self._why_not_connected(err)
        return Unavailable(f"{self.url}: {happened}", hint=hint)

    def _why_not_connected(self, err: OSError) -> tuple[str, str]:
        if _cause(err, socket.gaierror):
            return f"the name {urlsplit(self.url).hostname} is not known", "check the URL and the name service"
        if _cause(err, ConnectionRefusedError):
            return "connection refused", "check that the server runs and listens on this address"
        if _cause(err, TimeoutError):
            return f"no connection within {self._connect_s:g} s", "check the address and the firewall"
        if found := _cause(err, ssl.SSLError) or _cause(err, ConnectionError):
            return f"the server {handshake_fault(found)}", "check the URL and the server's log"
        system = _cause(err, OSError)
        return (system and system.strerror) or str(err), "check the URL and the network"

    def _parse(self, send: "_Send", status: int, answer: bytes) -> Any:
        if not answer:
            return None
        with contextlib.suppress(ValueError):
            return json.loads(answer)
        raise Unavailable(f"{send.method} {send.url} answered {status} and no JSON",
                          hint="is this the address of the right server?")


class Line:
    """Where one thread gets its client from: the same one each time, and a new one after `redial`, which any thread may call."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._made = self._wanted = 0      # how often it was to be made anew

    def client(self) -> Client:
        """The client to use for the next request."""
        wanted = self._wanted              # first: a call of `redial` that comes now counts the next time
        if self._client is not None and self._made != wanted:
            self._client.close()
            self._client = None
        if self._client is None:
            self._client, self._made = self._connect(), wanted
        return self._client

    def redial(self) -> None:
        """Something that a connection is made from has changed: the next request makes a new one."""
        self._wanted += 1


@dataclass(frozen=True, slots=True)
class _Send:
    """One request, ready to be sent, twice if need be."""

    method: str
    url: str
    body: bytes | None
    query: Query | None
    headers: Mapping[str, str]
    timeouts_s: tuple[float, float]        # to connect, between two bytes of the answer

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


def _base(url: str) -> str:
    """Scheme, host and port of `url`; UsageError for anything that is not just that."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme == "https" and parts.hostname and parts.port != 0 and parts.path in ("", "/")
        fits = fits and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(f"{url!r} is not the URL of a server", hint="write https://HOST:PORT")
    return url.rstrip("/")


def _causes(err: BaseException) -> Iterator[BaseException]:
    """An exception and everything it was made from: requests and urllib3 wrap in arguments, reasons and causes."""
    queue, seen = [err], {id(err)}
    while queue:
        yield (current := queue.pop(0))
        inner = [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
        fresh = [item for item in inner if isinstance(item, BaseException) and id(item) not in seen]
        seen.update(map(id, fresh))
        queue += fresh


def _cause(err: BaseException, kind: type[E]) -> E | None:
    """The first `kind` behind an exception, wrappers of requests and urllib3 left out."""
    for cause in _causes(err):
        if isinstance(cause, kind) and not type(cause).__module__.startswith(("requests", "urllib3")):
            return cause
    return None
