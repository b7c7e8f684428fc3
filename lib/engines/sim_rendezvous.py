"""All ranks of a sim engine meeting at rank 0 before it serves, over one line of JSON each way and a connection that is kept.

Room: engines. A worker proves with the engine key that it belongs to the same group (replica and epoch); whoever does not is
sent away and takes nobody's place. A kept connection that ends is a lost peer.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import socket
from contextlib import suppress
from typing import Any

from lib.base.errors import TimedOut

log = logging.getLogger("sim-engine")
HELLO_S, RETRY_S = 5.0, 0.2


class Meeting:
    """Rank 0's side."""

    def __init__(self, group: str, shards: int, key: str) -> None:
        self._group, self._key = group, key
        self._expected = set(range(1, shards))
        self._here: set[int] = set()
        self._loaded: set[int] = set()
        self._complete = False             # all have been here at once: from then on nobody may leave
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self.lost = asyncio.Event()        # a worker has left after all had joined

    async def open(self, sock: socket.socket) -> None:
        """Let workers come."""
        self._server = await asyncio.start_server(self._arrive, sock=sock)

    async def all_joined(self, timeout_s: float) -> None:
        """Back when every worker is connected; TimedOut naming those that are not."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._here == self._expected)
        except TimeoutError:
            missing = sorted(self._expected - self._here)
            raise TimedOut(f"rendezvous: ranks {missing} did not join within {timeout_s:g} s") from None

    async def all_loaded(self) -> None:
        """Back when every worker has said that it has loaded, or when one was lost."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._loaded == self._expected or self.lost.is_set())

    async def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = -1
        try:
            async with asyncio.timeout(HELLO_S):
                rank, refusal = self._judge(await reader.readline())
            await _say(writer, {"refused": refusal} if refusal else {"welcome": rank})
            if refusal:
                log.warning("rendezvous: turned away %s: %s", writer.get_extra_info("peername"), refusal)
            else:
                await self._stay(rank, reader)
        except (TimeoutError, ConnectionError, ValueError):
            log.warning("rendezvous: %s did not say who it is", writer.get_extra_info("peername"))
        finally:
            writer.close()

    def _judge(self, line: bytes) -> tuple[int, str]:
        """The rank of a worker that may join, or why it may not."""
        hello = json.loads(line)
        if not isinstance(hello, dict) or not isinstance(hello.get("rank"), int):
            return -1, "not a worker of the sim engine"
        rank, group = hello["rank"], str(hello.get("group"))
        if group != self._group:
            return rank, f"this is group {self._group}, not {group}"
        if not hmac.compare_digest(str(hello.get("proof")), proof(self._key, group, rank)):
            return rank, "it does not know the engine key"
        if rank not in self._expected:
            return rank, f"there is no rank {rank} here"
        return rank, f"rank {rank} is here already" if rank in self._here else ""

    async def _stay(self, rank: int, reader: asyncio.StreamReader) -> None:
        """Hold on to a worker until its connection ends."""
        async with self._changed:
            self._here.add(rank)
            self._complete = self._complete or self._here == self._expected
            self._changed.notify_all()
        log.info("rendezvous: rank %d has joined, %d of %d", rank, len(self._here), len(self._expected))
        try:
            while await reader.readline():
                async with self._changed:
                    self._loaded.add(rank)
                    self._changed.notify_all()
        except ConnectionError:
            pass
        finally:
            self._here.discard(rank)
            self._loaded.discard(rank)
        log.error("rendezvous: rank %d is gone", rank)
        async with self._changed:
            if self._complete:
                self.lost.set()
            self._changed.notify_all()


class Membership:
    """A worker's side: joined, until `lost`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def loaded(self) -> None:
        """Tell rank 0 that this worker has loaded."""
        with suppress(ConnectionError):
            await _say(self._writer, {"loaded": True})

    async def lost(self) -> None:
        """Back when rank 0 is gone."""
        with suppress(ConnectionError):
            while await self._reader.readline():
                pass


async def join(address: tuple[str, int], group: str, rank: int, key: str, timeout_s: float) -> Membership:
    """Come to rank 0, again and again until it says welcome; TimedOut with the last obstacle."""
    obstacle = "nobody is there"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                member, said = await _knock(address, {"group": group, "rank": rank, "proof": proof(key, group, rank)})
                if member:
                    return member
                if said != obstacle:
                    log.info("rendezvous: %s", said)
                obstacle = said
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise TimedOut(f"rendezvous: rank {rank} could not join {address[0]}:{address[1]} "
                       f"within {timeout_s:g} s: {obstacle}") from None


async def _knock(address: tuple[str, int], hello: dict[str, Any]) -> tuple[Membership | None, str]:
    writer = None
    try:
        async with asyncio.timeout(HELLO_S):
            reader, writer = await asyncio.open_connection(*address)
            _keep_alive(writer.get_extra_info("socket"))
            await _say(writer, hello)
            reply = json.loads(await reader.readline())
            if "welcome" in reply:
                return Membership(reader, writer), ""
            obstacle = f"refused: {reply.get('refused')}"
    except (OSError, ValueError, TimeoutError) as err:
        obstacle = str(err) or "no answer"
    if writer:
        writer.close()
    return None, obstacle


async def _say(writer: asyncio.StreamWriter, words: dict[str, Any]) -> None:
    writer.write(json.dumps(words).encode() + b"\n")
    await writer.drain()


def proof(key: str, group: str, rank: int) -> str:
    """What a worker shows instead of the key."""
    return hmac.new(key.encode(), f"{group}|{rank}".encode(), hashlib.sha256).hexdigest()


def _keep_alive(sock: socket.socket) -> None:
    """So that a peer whose machine vanished is noticed too."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
