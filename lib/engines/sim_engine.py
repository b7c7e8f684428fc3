"""The sim engine's process: the order of rendezvous, loading and serving, and how it ends.

Room: engines. Rank 0 binds the rendezvous and serves only once every worker has joined and loaded; workers bind nothing and
serve nothing. It is what true launch order, lost shards and bad engines are tested with, without a GPU.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from lib.base.errors import LlmgwError
from lib.engines.sim_flags import KEY_VARIABLE, Settings, parse_settings
from lib.engines.sim_http import Connection, HttpServer, Request
from lib.engines.sim_rendezvous import Meeting, join
from lib.engines.sim_service import Phase, Service
from lib.net.listen import bind

log = logging.getLogger("sim-engine")
IDLE_S = 5.0                               # all three real engines close an idle connection then
STOP_PATIENCE_S = 2.0
ORPHAN_S = 600.0                           # what a fault leaves behind shall not stay for ever


def main(argv: Sequence[str]) -> int:
    """Be one shard until told to stop; the exit code."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    try:
        settings = parse_settings(argv)
        orphan = _leave_behind(settings) if "orphan" in settings.faults else 0
        code = asyncio.run(Shard(settings, os.environ.get(KEY_VARIABLE, "")).live())
        if orphan:
            os.kill(orphan, signal.SIGKILL)
    except LlmgwError as err:
        log.error("%s%s", err, f" ({err.hint})" if err.hint else "")
        return err.exit_code
    except KeyboardInterrupt:
        return 130
    return code


class Shard:
    """One process of the engine."""

    def __init__(self, settings: Settings, key: str) -> None:
        self._settings, self._key, self._faults = settings, key, settings.faults
        self._stop = asyncio.Event()
        self._service: Service | None = None
        self._server: HttpServer | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def live(self) -> int:
        """From start to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        log.info("shard %d of %d, group %s", self._settings.rank, self._settings.shards, self._settings.group)
        life = loop.create_task(self._lead() if self._settings.serves else self._follow())
        stopped = loop.create_task(self._stop.wait())
        await asyncio.wait({life, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            return life.result()
        log.info("stopping")
        await self._wind_down()
        life.cancel()
        return 0

    def _told_to_stop(self, number: int) -> None:
        if "ignore-term" in self._faults and number == signal.SIGTERM:
            log.info("SIGTERM ignored, as told")
        else:
            self._stop.set()

    async def _wind_down(self) -> None:
        """Running streams end with finish_reason "abort", as vLLM's do; a worker has none."""
        if self._service and self._server:
            self._service.phase = Phase.STOPPING
            await self._server.close(STOP_PATIENCE_S)

    async def _lead(self) -> int:
        """Rank 0."""
        settings = self._settings
        service = self._service = Service(settings, self._key)
        server = self._server = HttpServer(service.answer, float(self._faults.get("idle-close", IDLE_S)))
        early = {"loading-503", "health-lies"} & set(self._faults)
        sock = bind((settings.host, settings.port)) if early or "bind-then-listen" in self._faults else None
        if sock and early:
            await server.listen(sock)
        meeting = await self._meet() if settings.shards > 1 else None
        await self._load()
        if meeting:
            await meeting.all_loaded()
            self._in_background(self._mind_workers(meeting))
        sock = sock or bind((settings.host, settings.port))
        service.phase = Phase.SERVING
        if not early:
            await server.listen(sock)
        log.info("serving %s on %s:%d", ", ".join(settings.names), *sock.getsockname()[:2])
        return await self._be_up()

    async def _meet(self) -> Meeting:
        meeting = Meeting(self._settings.group, self._settings.shards, self._key)
        await meeting.open(bind(self._settings.rendezvous))
        log.info("rendezvous: waiting at %s:%d", *self._settings.rendezvous)
        await meeting.all_joined(self._settings.join_timeout)
        return meeting

    async def _mind_workers(self, meeting: Meeting) -> None:
        """Die of a lost worker, after a while or never; until then requests hang as they do in a broken collective."""
        await meeting.lost.wait()
        if self._service:
            self._service.crippled = True
        if self._settings.worker_loss is not None:
            await asyncio.sleep(self._settings.worker_loss)
            _die(1, "a worker is lost")

    async def _follow(self) -> int:
        """A worker."""
        settings = self._settings
        if "follower-200" in self._faults:
            await HttpServer(_always_well, IDLE_S).listen(bind((settings.host, settings.port)))
        if "no-join" in self._faults:
            log.info("not joining, as told")
            await asyncio.Event().wait()
        member = await join(settings.rendezvous, settings.group, settings.rank, self._key, settings.join_timeout)
        log.info("rendezvous: joined")
        await self._load()
        await member.loaded()
        self._in_background(self._mind_leader(member.lost()))
        return await self._be_up()

    async def _mind_leader(self, lost: Coroutine[Any, Any, None]) -> None:
        await lost
        log.error("rank 0 is gone")
        if self._settings.leader_loss is not None:
            await asyncio.sleep(self._settings.leader_loss)
            _die(1, "rank 0 is lost")

    async def _load(self) -> None:
        log.info("loading for %g s", self._settings.load_time)
        await asyncio.sleep(self._settings.load_time)
        if "load-exit" in self._faults:
            _die(int(self._faults["load-exit"]), "loading failed, as told")

    async def _be_up(self) -> int:
        """Until it is killed or a fault strikes."""
        log.info("ready")
        if "exit-0-after" in self._faults:
            await asyncio.sleep(float(self._faults["exit-0-after"]))
            _die(0, "the engine is dead, as told")
        if "exit" in self._faults:
            code, _, seconds = self._faults["exit"].partition("@")
            await asyncio.sleep(float(seconds))
            _die(int(code), "the engine is dead, as told")
        await asyncio.Event().wait()
        return 0

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _always_well(request: Request, connection: Connection) -> None:
    """What a follower says that knows nothing of its engine."""
    await connection.send(200 if request.path == "/health" else 404, b"", "text/plain")


def _die(code: int, why: str) -> None:
    """As engines die: at once, closing nothing."""
    log.error("%s", why)
    sys.stdout.flush()
    os._exit(code)


def _leave_behind(settings: Settings) -> int:
    """A child that outlives a killed parent, as vLLM's engine core does; its pid. An orderly end takes it along."""
    pid = os.fork()
    if pid:
        return pid
    if settings.faults["orphan"] == "detached":
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(ORPHAN_S)
    os._exit(0)
