"""The sim engine's HTTP/1.1: requests read, answers and event streams written, a client that leaves noticed at once.

Room: engines. One asyncio task a connection; when the peer closes, the task is cancelled wherever it waits.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

log = logging.getLogger("sim-engine")
HEAD_LIMIT, BODY_LIMIT = 64 * 1024, 64 * 1024 * 1024


class BadHttp(Exception):
    """Bytes that are not a request; the connection is closed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """What an answer is written to. `gone` once the peer has closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.gone = False
        self.keep = True                   # whether another request may follow on it

    async def read(self) -> Request | None:
        """The next request, or None where the peer has closed between requests."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as err:
            if err.partial:
                raise BadHttp("cut within a head") from None
            return None
        except asyncio.LimitOverrunError:
            raise BadHttp("head too large") from None
        method, target, headers = parse_head(head)
        self.keep = headers.get("connection", "").lower() != "close"
        if headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, target.partition("?")[0], headers, await self._body(headers))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunked()
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_LIMIT:
            raise BadHttp("body too large")
        return await self._reader.readexactly(int(length))

    async def _chunked(self) -> bytes:
        body = b""
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
            if len(body) > BODY_LIMIT:
                raise BadHttp("body too large")
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return body

    async def send(self, status: int, body: bytes, kind: str = "application/json", *, headers: Mapping[str, str] | None = None,
                   cut_at: int | None = None) -> None:
        """One whole answer; with `cut_at` only so many bytes of its body, and then the end of the connection."""
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})})
        self._writer.write(body[:cut_at])
        if cut_at is not None:
            self.keep = False
        await self._writer.drain()

    async def send_json(self, status: int, value: Any, *, headers: Mapping[str, str] | None = None) -> None:
        await self.send(status, json.dumps(value).encode(), headers=headers)

    async def begin_events(self) -> None:
        """Head of an event stream."""
        self._head(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"})
        await self._writer.drain()

    async def event(self, data: str, *, comment: bool = False) -> None:
        """One event, or one comment line."""
        text = f": {data}\n\n" if comment else f"data: {data}\n\n"
        raw = text.encode()
        self._writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        await self._writer.drain()

    async def end_events(self, *, cut: bool = False) -> None:
        """The end of a stream; `cut` leaves out the last chunk, as an engine does that dies."""
        if cut:
            self.keep = False
        else:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        fields = {**headers, "Server": "sim-engine", "Connection": "keep-alive" if self.keep else "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode())


Answer = Callable[[Request, Connection], Awaitable[None]]


class HttpServer:
    """Answers every request by `answer`. Connections idle for `idle_s` are closed."""

    def __init__(self, answer: Answer, idle_s: float) -> None:
        self._answer, self._idle_s = answer, idle_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Take connections on a bound socket."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Protocol(self._converse, self._tasks),
                                                                      sock=sock, backlog=512)

    async def close(self, patience_s: float) -> None:
        """Take no more connections; those at work get `patience_s` to end by themselves."""
        if self._server:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    async def _converse(self, connection: Connection) -> None:
        with suppress(ConnectionError):
            while connection.keep and (request := await self._next(connection)):
                await self._answer(request, connection)

    async def _next(self, connection: Connection) -> Request | None:
        """The next request; None where nothing comes, or nothing that is one."""
        try:
            async with asyncio.timeout(self._idle_s):
                return await connection.read()
        except TimeoutError:
            return None
        except (BadHttp, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as err:
            connection.keep = False
            log.info("not a request: %s", err)
            error = {"message": str(err), "type": "BadRequestError", "param": None, "code": 400}
            await connection.send_json(400, {"error": error})
            return None


class _Protocol(asyncio.StreamReaderProtocol):
    """Runs a conversation, and cancels it as soon as the peer closes its side or the connection breaks."""

    def __init__(self, converse: Callable[[Connection], Awaitable[None]], tasks: set[asyncio.Task[None]]) -> None:
        super().__init__(asyncio.StreamReader(limit=HEAD_LIMIT), self._begin)
        self._converse, self._tasks = converse, tasks
        self._connection: Connection | None = None
        self._mine: asyncio.Task[None] | None = None

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = Connection(reader, writer)
        self._mine = asyncio.get_running_loop().create_task(self._run(self._connection, writer))
        self._tasks.add(self._mine)
        self._mine.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.CancelledError):
                await self._converse(connection)
        finally:
            writer.close()

    def eof_received(self) -> bool | None:
        self._end()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        if self._connection and self._mine and not self._mine.done():
            self._connection.gone = True
            self._mine.cancel()


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target and fields of a request head."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadHttp("not a request line")
    fields = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadHttp("not a header field")
        fields[name.lower()] = value.strip()
    return words[0], words[1], fields
