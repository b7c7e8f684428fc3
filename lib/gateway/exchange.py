"""One request on its way to a replica and its answer on the way back: attempts, relaying, and the one end it has.

Room: gateway. A request is sent again only while nothing can have been processed and nothing has reached the client. A stream
that breaks never looks complete: it ends with an error event where one can be put, and never with a last chunk.
"""

from typing import Protocol

from lib.gateway.answers import Refusal, no_model, stream_error
from lib.gateway.body import model_of, rename_model
from lib.gateway.cells import BYTES_OUT, DURATION, EJECTIONS, FAILURE, FAILURES, FIRST_BYTE, RETRIES, request_cell
from lib.gateway.desk import Desk
from lib.gateway.heads import Known, Reply
from lib.gateway.replica import Model, Replica
from lib.gateway.upstream import RECORD, Failure, Upstream
from lib.net.http1 import CHUNKED

ATTEMPT_LIMIT = 4
DONE = b"data: [DONE]\n\n\r\n"              # the end of a stream of OpenAI's, as the end of a chunk
DONE_GRACE_S = 2.0                         # after it, an engine that does not end its answer has it ended
_ATTEMPTS = tuple(b"x-llmgw-attempts: %d\r\n" % count for count in range(ATTEMPT_LIMIT + 1))
_STATUS = {Failure.CONNECT: 503, Failure.HANDSHAKE: 503, Failure.TIMEOUT: 504}


class Listener(Protocol):
    """The client's side of an exchange."""

    keep_alive: bool

    def write(self, data: bytes) -> None:
        """Send, now or when it can."""

    def blocked(self) -> bool:
        """Whether bytes wait to be taken by the client."""

    def done(self) -> None:
        """The answer is whole."""

    def broken(self, last_words: bytes) -> None:
        """The answer breaks off after these bytes."""

    def refuse(self, refusal: Refusal, attempts: int) -> None:
        """There is an error to send instead of an answer."""

    def forget_body(self) -> None:
        """The request's body will not be needed again."""


class Exchange:
    """A forwarded request. Its load on a replica is raised when that is chosen and lowered exactly once."""

    __slots__ = ("_attempts", "_began", "_begun", "_body", "_client", "_desk", "_fresh", "_known", "_model", "_name", "_replica",
                 "_status", "_tail", "_tried", "_upstream", "dechunk", "event_stream")

    def __init__(self, desk: Desk, client: Listener, known: Known, body: bytes | bytearray) -> None:
        """Sends it. Refusal where it cannot be: then there is no exchange."""
        self._desk, self._client, self._known, self._body = desk, client, known, body
        self._name = model_of(body, known.content_type)
        self._model = self._find_model()
        self._began = desk.loop.now
        self._attempts = 0
        self._begun = self._fresh = self.event_stream = False
        self.dechunk = not known.http_1_1
        self._tried: tuple[Replica, ...] = ()
        self._status = 0
        self._tail = b""
        replica = self._choose()
        if known.key is not None and known.key.limited:
            try:
                known.key.admit(self._began)
            except Refusal:
                replica.lower_load()
                raise
        desk.active += 1
        self._attempt(replica)

    def _find_model(self) -> Model:
        name, key = self._name, self._known.key
        model = self._desk.routes.models.get(name)
        if model is None or (key is not None and not key.may_use(model.name) and not key.may_use(name)):
            raise no_model(name)
        if not model.replicas:
            state = f" ({model.state})" if model.state else ""
            raise Refusal(503, f"The model {name!r} has no ready replica{state}.", code="model_not_ready", retry_after_s=5)
        return model

    def _choose(self) -> Replica:
        replica = self._model.choose(self._desk.loop.now, self._tried)
        if replica is None:
            raise Refusal(503, f"Every replica of {self._model.name!r} has as many requests as it may have.", code="overloaded",
                          retry_after_s=1)
        return replica

    def _attempt(self, replica: Replica) -> None:
        """Send it to a replica whose load has been raised for it."""
        desk = self._desk
        self._attempts += 1
        self._replica = replica
        upstream = None if self._fresh else replica.take_idle(desk.loop.now, desk.limits.upstream_idle_s)
        if not isinstance(upstream, Upstream):
            upstream = Upstream(replica, desk.dialling)
            upstream.dial()
        self._upstream = upstream
        body = self._body
        if self._name not in replica.served and replica.served and not self._known.content_type.startswith(b"multipart/"):
            body = rename_model(body, self._model.name)
        upstream.ask(self, b"%s%scontent-length: %d\r\n\r\n" % (self._known.upstream, replica.authorization, len(body)), body)

    def _attempt_again(self, replica: Replica) -> None:
        if self._attempts == 1:
            self._desk.retrying += 1
        self._desk.cells.mine[RETRIES] += 1
        self._attempt(replica)

    # -- what the upstream says --

    def started(self, upstream: Upstream, reply: Reply, length: int) -> bytes | None:
        """The head of the answer: what the client gets of it, or None where another replica is asked instead."""
        now, replica, client = self._desk.loop.now, self._replica, self._client
        if reply.status in (429, 503):
            replica.pause(now, reply.retry_after_s)
            if self._went_elsewhere(upstream):
                return None
        if reply.status < 500:
            replica.succeeded(now)
        elif replica.errored(now):
            self._desk.cells.mine[EJECTIONS] += 1
        self._begun, self._status, self.event_stream = True, reply.status, reply.event_stream
        if len(self._body) > RECORD:
            client.forget_body()
        self._body = b""
        self._desk.cells.observe(FIRST_BYTE, now - self._began)
        if length >= 0:
            framing = b"content-length: %d\r\n" % length
        elif length == CHUNKED and self._known.http_1_1:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            client.keep_alive = False
            framing = b""
        end = b"\r\n" if client.keep_alive else b"connection: close\r\n\r\n"
        return reply.head + framing + _ATTEMPTS[self._attempts] + end

    def relay(self, data: bytes) -> None:
        """Bytes of the answer, on to the client."""
        if self.event_stream:
            self._tail = data
        client = self._client
        client.write(data)
        self._desk.cells.mine[BYTES_OUT] += len(data)
        if client.blocked():
            self._upstream.pause()

    def finished(self) -> None:
        """The answer is whole."""
        self._over(self._status)
        self._client.done()

    def failed(self, failure: Failure, detail: str) -> None:
        """The attempt ended without a whole answer: again, an error, or a broken stream."""
        desk, replica = self._desk, self._replica
        now = desk.loop.now
        desk.cells.mine[FAILURE + FAILURES.index(_kind(failure))] += 1
        if failure is not Failure.STALE and replica.failed(now):
            desk.cells.mine[EJECTIONS] += 1
        if failure.retry and not self._begun and self._attempts < ATTEMPT_LIMIT and desk.may_retry():
            self._fresh = True
            again = replica if failure is Failure.STALE else None
            if again is None:
                self._tried = (*self._tried, replica)
                again = self._model.choose(now, self._tried)
                if again is not None:
                    replica.lower_load()
            if again is not None:
                self._attempt_again(again)
                return
        self._give_up(failure, detail)

    # -- what the client and the clock say --

    def abandon(self) -> None:
        """The client has gone: so has the wish for an answer."""
        self._upstream.abandon()
        self._over(499)

    def resume(self) -> None:
        """The client has taken what was waiting."""
        self._upstream.resume()

    def check(self, now: float) -> None:
        """End an exchange that has waited too long for its replica."""
        limits, waited = self._desk.limits, now - self._upstream.last
        if not self._begun:
            if now - self._began > limits.first_byte_s:
                self._time_out("did not begin to answer in time")
        elif waited > DONE_GRACE_S and self._tail.endswith(DONE) and not self._client.blocked():
            self._upstream.abandon()
            self._over(self._status)
            if not self.dechunk:
                self._client.write(b"0\r\n\r\n")
            self._client.done()
        elif waited > limits.inter_token_s and not self._client.blocked():
            self._time_out("fell silent in the middle of its answer")

    def cut(self) -> None:
        """The router is going away."""
        self._upstream.abandon()
        self._give_up(Failure.MID_STREAM if self._begun else Failure.BEFORE_RESPONSE, "the router is being stopped")

    def _time_out(self, detail: str) -> None:
        self._upstream.abandon()
        self.failed(Failure.TIMEOUT, detail)

    def _went_elsewhere(self, upstream: Upstream) -> bool:
        """Whether an engine's refusal (it has done nothing) could be answered by asking another replica."""
        if self._attempts >= ATTEMPT_LIMIT or not self._desk.may_retry():
            return False
        tried = (*self._tried, self._replica)
        other = self._model.choose(self._desk.loop.now, tried)
        if other is None:
            return False
        upstream.abandon()
        self._replica.lower_load()
        self._tried = tried
        self._attempt_again(other)
        return True

    def _give_up(self, failure: Failure, detail: str) -> None:
        if self._begun:
            self._over(502)
            self._client.broken(self._last_words())
            return
        status = _STATUS.get(failure, 502)
        self._over(status, answered=False)
        message = f"The model {self._model.name!r} could not answer: {detail}."
        self._client.refuse(Refusal(status, message, code=f"upstream_{_kind(failure)}", retry_after_s=5 if status == 503 else 0),
                            self._attempts)

    def _last_words(self) -> bytes:
        """An error event for a stream that breaks, where one fits between what was sent."""
        if not self.event_stream or not self._upstream.between_chunks:
            return b""
        event = stream_error("The answer broke off: the replica that was giving it failed.")
        if not self._tail.endswith((b"\n\n\r\n", b"\n\n")):
            event = b"\n\n" + event
        return event if self.dechunk else b"%x\r\n%s\r\n" % (len(event), event)

    def _over(self, status: int, *, answered: bool = True) -> None:
        """The one end: give back what it held, and count it."""
        desk, known, cells = self._desk, self._known, self._desk.cells
        self._replica.lower_load()
        desk.active -= 1
        if self._attempts > 1:
            desk.retrying -= 1
        if known.key is not None and known.key.limited:
            known.key.release()
        if answered:                       # a refusal is counted where it is sent
            cells.mine[request_cell(known.route.index, status)] += 1
        cells.observe(DURATION, desk.loop.now - self._began)


def _kind(failure: Failure) -> str:
    """The word for metrics and clients, to whom a dead connection that had been kept is one that broke before it answered."""
    return Failure.BEFORE_RESPONSE.value if failure is Failure.STALE else failure.value
