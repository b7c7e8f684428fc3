"""What the sim engine of rank 0 answers: OpenAI's routes at a set pace, its metrics, and the faults it was told to show.

Room: engines. Everything runs in one asyncio loop; a request whose client leaves is cancelled and gives its slot back at once.
"""

import array
import asyncio
import base64
import hmac
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

from lib.base.version import VERSION
from lib.engines import sim_text
from lib.engines.sim_asks import JSON, ApiError, Ask, model_of, parse_ask, parse_json, prompt_of, texts
from lib.engines.sim_flags import Settings
from lib.engines.sim_http import Connection, Request
from lib.engines.sim_metrics import Metrics

log = logging.getLogger("sim-engine")
OPEN = ("/health", "/ping", "/version", "/metrics")       # need no key, as with vLLM
ABORTED = 134                              # exit status of a process that called abort()
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}


class Phase(Enum):
    """How far the engine is."""

    LOADING, SERVING, STOPPING = auto(), auto(), auto()


class Service:
    """Answers requests. `key` is what clients must show; empty: nothing."""

    def __init__(self, settings: Settings, key: str) -> None:
        self.phase = Phase.LOADING
        self.crippled = False              # a worker is lost and this rank has not noticed: requests hang
        self._settings, self._key, self._faults = settings, key, settings.faults
        self._metrics = Metrics(settings.slots * settings.context)
        self._slots = asyncio.Semaphore(settings.slots)
        self._step = float(self._faults.get("slow", "1")) / settings.token_rate if settings.token_rate else 0.0
        self._routes: Mapping[tuple[str, str], Callable[[Request, Connection], Awaitable[None]]] = {
            ("GET", "/health"): self._health, ("GET", "/ping"): self._health, ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._show_metrics, ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._complete, ("POST", "/v1/completions"): self._complete,
            ("POST", "/v1/embeddings"): self._embed, ("POST", "/tokenize"): self._tokenize}

    async def answer(self, request: Request, connection: Connection) -> None:
        """One request, answered or refused."""
        try:
            route = self._admit(request)
            if delay := float(self._faults.get("first-byte-delay", "0")):
                await asyncio.sleep(delay)
            await route(request, connection)
        except ApiError as err:
            headers = {"Retry-After": "1"} if err.status == 503 else None
            await connection.send_json(err.status, LOADING if self.phase is Phase.LOADING else err.body, headers=headers)
        except asyncio.CancelledError:
            if connection.gone and "die-on-abort" in self._faults:
                log.error("a client went away: aborting")
                sys.stdout.flush()
                os._exit(ABORTED)
            raise

    def _admit(self, request: Request) -> Callable[[Request, Connection], Awaitable[None]]:
        """Who answers this request, unless it is refused."""
        if self.phase is Phase.LOADING and not ("health-lies" in self._faults and request.path in ("/health", "/v1/models")):
            raise ApiError(503, "unavailable_error", "Loading model")
        if request.path not in OPEN and self._key and not self._knows_key(request):
            raise ApiError(401, "AuthenticationError", "Unauthorized: the engine key is missing or wrong")
        if route := self._routes.get((request.method, request.path)):
            return route
        known = any(path == request.path for _, path in self._routes)
        raise ApiError(405, "MethodNotAllowed", f"{request.path} does not take {request.method}") if known else \
            ApiError(404, "NotFoundError", f"There is no {request.path} here.")

    def _knows_key(self, request: Request) -> bool:
        shown = request.headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(shown, f"Bearer {self._key}".encode())

    async def _health(self, _request: Request, connection: Connection) -> None:
        await connection.send(200, b"", "text/plain")

    async def _version(self, _request: Request, connection: Connection) -> None:
        await connection.send_json(200, {"version": VERSION})

    async def _show_metrics(self, _request: Request, connection: Connection) -> None:
        await connection.send(200, self._metrics.render(self._settings.names).encode(), "text/plain; version=0.0.4")

    async def _models(self, _request: Request, connection: Connection) -> None:
        names = self._settings.names if self.phase is Phase.SERVING else ()
        await connection.send_json(200, {"object": "list", "data": [
            {"id": name, "object": "model", "created": int(time.time()), "owned_by": "llmgw-sim", "root": names[0],
             "max_model_len": self._settings.context} for name in names]})

    async def _tokenize(self, request: Request, connection: Connection) -> None:
        body = parse_json(request.body)
        model_of(body, self._settings.names)
        prompt, _ = prompt_of(body, chat="messages" in body)
        ids = sim_text.token_ids(prompt)
        await connection.send_json(200, {"count": len(ids), "max_model_len": self._settings.context, "tokens": ids})

    async def _embed(self, request: Request, connection: Connection) -> None:
        body = parse_json(request.body)
        model, inputs = model_of(body, self._settings.names), texts(body, "input")
        size = body.get("dimensions") or self._settings.embedding_size
        if not isinstance(size, int) or not 1 <= size <= 65536:
            raise ApiError(400, "BadRequestError", "dimensions must be a whole number of at least 1", "dimensions")
        packed = body.get("encoding_format") == "base64"
        async with self._slot():
            vectors = [sim_text.embedding(text, size) for text in inputs]
            count = sum(len(sim_text.split(text)) for text in inputs)
            self._metrics.prompt_tokens += count
            self._metrics.finished["stop"] += 1
        await connection.send_json(200, {
            "object": "list", "model": model, "usage": {"prompt_tokens": count, "total_tokens": count},
            "data": [{"object": "embedding", "index": index, "embedding": pack(vector) if packed else vector}
                     for index, vector in enumerate(vectors)]})

    async def _complete(self, request: Request, connection: Connection) -> None:
        settings = self._settings
        ask = parse_ask(parse_json(request.body), chat=request.path.endswith("chat/completions"), names=settings.names,
                        context=settings.context, length=settings.answer_tokens)
        async with self._slot():
            if self._hangs():
                await asyncio.Event().wait()
            self._metrics.prompt_tokens += ask.prompt_tokens
            reply = Reply(ask, settings.group)
            await (self._stream if ask.stream else self._whole)(reply, connection)

    def _hangs(self) -> bool:
        self._metrics.begun += 1
        limit = self._faults.get("hang-after")
        return self.crippled or (limit is not None and self._metrics.begun > int(limit))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """One of the slots, once one is free; 503 where too many wait already."""
        metrics, limit = self._metrics, self._settings.max_queue
        if limit is not None and self._slots.locked() and metrics.waiting >= limit:
            raise ApiError(503, "ServiceUnavailableError", "The request queue is full.")
        metrics.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            metrics.waiting -= 1
        metrics.running += 1
        try:
            yield
        finally:
            metrics.running -= 1
            self._slots.release()

    async def _paced(self, ask: Ask) -> AsyncIterator[int]:
        """The steps of an answer, each at its time. Ends early where the engine is being stopped."""
        clock, metrics = asyncio.get_running_loop().time, self._metrics
        begun = clock()
        held = ask.prompt_tokens
        metrics.cached += held
        try:
            for step in range(ask.steps):
                due = begun + self._settings.first_token_delay + step * self._step
                if (ahead := due - clock()) > 0 or step % 16 == 0:
                    await asyncio.sleep(max(ahead, 0))
                if self.phase is Phase.STOPPING:
                    break
                if step == 0:
                    metrics.first_token.add(clock() - begun)
                made = sum(step < len(choice.tokens) for choice in ask.choices)
                metrics.generation_tokens += made
                metrics.cached += made
                held += made
                yield step
            metrics.whole_request.add(clock() - begun)
        finally:
            metrics.cached -= held

    async def _whole(self, reply: "Reply", connection: Connection) -> None:
        """An answer in one piece."""
        steps = 0
        async for _ in self._paced(reply.ask):
            steps += 1
        self._count_end(reply.ask, steps)
        if "error-chunk" in self._faults or "error-chunk-no-done" in self._faults:
            raise ApiError(500, "InternalServerError", "The engine had an error.")
        body = json.dumps(reply.whole(aborted=steps < reply.ask.steps)).encode()
        cut = len(body) // 2 if "truncate-after" in self._faults else None
        await connection.send(200, body, cut_at=cut)

    async def _stream(self, reply: "Reply", connection: Connection) -> None:
        """An answer token by token."""
        ask, steps = reply.ask, 0
        await connection.begin_events()
        async for step in self._paced(ask):
            if self._cut_here(step):
                return await connection.end_events(cut=True)
            if await self._failed_here(step, connection):
                return None
            for chunk in reply.chunks(step):
                await self._event(chunk, connection)
            steps += 1
        for chunk in reply.endings(steps):
            await self._event(chunk, connection)
        self._count_end(ask, steps)
        await connection.event("[DONE]")
        return await connection.end_events()

    async def _event(self, chunk: JSON, connection: Connection) -> None:
        if "comments" in self._faults:
            await connection.event("keep-alive", comment=True)
        await connection.event(json.dumps(chunk, ensure_ascii=False))

    def _cut_here(self, step: int) -> bool:
        return step >= int(self._faults.get("truncate-after", sys.maxsize))

    async def _failed_here(self, step: int, connection: Connection) -> bool:
        for name in ("error-chunk", "error-chunk-no-done"):
            if name in self._faults and step >= int(self._faults[name]):
                await connection.event(json.dumps(ApiError(500, "InternalServerError", "The engine had an error.").body))
                if name == "error-chunk":
                    await connection.event("[DONE]")
                await connection.end_events()
                return True
        return False

    def _count_end(self, ask: Ask, steps: int) -> None:
        for choice in ask.choices:
            self._metrics.finished["abort" if steps < len(choice.tokens) else choice.finish] += 1


class Reply:
    """The JSON of one completion, whole or in chunks."""

    def __init__(self, ask: Ask, group: str) -> None:
        self.ask = ask
        self._kind = "chat.completion" if ask.chat else "text_completion"
        self._head = {"id": f"{'chatcmpl' if ask.chat else 'cmpl'}-{uuid.uuid4().hex}", "created": int(time.time()),
                      "model": ask.model, "system_fingerprint": f"sim-{group}"}

    def whole(self, *, aborted: bool) -> JSON:
        return {**self._head, "object": self._kind, "usage": self._usage(self.ask.steps), "choices": [
            {"index": index, "finish_reason": "abort" if aborted else choice.finish, "logprobs": None,
             **({"message": {"role": "assistant", "content": choice.text}} if self.ask.chat else {"text": choice.text})}
            for index, choice in enumerate(self.ask.choices)]}

    def chunks(self, step: int) -> list[JSON]:
        """What step number `step` adds to each choice."""
        role = {"role": "assistant"} if step == 0 else {}
        return [self._chunk(index, choice.tokens[step], role, None)
                for index, choice in enumerate(self.ask.choices) if step < len(choice.tokens)]

    def endings(self, steps: int) -> list[JSON]:
        """Why each choice ended after `steps`, and the usage where it is wanted."""
        last = [self._chunk(index, "", {}, "abort" if steps < len(choice.tokens) else choice.finish)
                for index, choice in enumerate(self.ask.choices)]
        if self.ask.include_usage:
            last.append({**self._head, "object": self._chunk_kind, "choices": [], "usage": self._usage(steps)})
        return last

    @property
    def _chunk_kind(self) -> str:
        return f"{self._kind}.chunk" if self.ask.chat else self._kind

    def _chunk(self, index: int, text: str, role: Mapping[str, str], finish: str | None) -> JSON:
        piece: dict[str, Any] = {"text": text}
        if self.ask.chat:
            piece = {"delta": {**role, "content": text} if not finish else {}}
        return {**self._head, "object": self._chunk_kind,
                "choices": [{"index": index, **piece, "logprobs": None, "finish_reason": finish}]}

    def _usage(self, steps: int) -> JSON:
        made = sum(min(steps, len(choice.tokens)) for choice in self.ask.choices)
        return {"prompt_tokens": self.ask.prompt_tokens, "completion_tokens": made,
                "total_tokens": self.ask.prompt_tokens + made, "prompt_tokens_details": None}


def pack(vector: list[float]) -> str:
    """A vector as OpenAI's clients ask for it: 32-bit floats, little-endian, base64."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
