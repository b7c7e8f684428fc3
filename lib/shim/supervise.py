"""One shard's owner: starts the engine, watches it, and ends with it.

Room: shim. It outlives the agent and talks to it through files alone. One thread decides (the loop's, which is the main one: the
engine dies with the thread that forked it), and there is no other thread before the fork. Nothing is restarted here: a shard runs
once, and how it ended is written to exit.json after the last process of it has gone.
"""

import fcntl
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.base.errors import LlmgwError
from lib.host.process import become_subreaper, fork_bound, identify, in_session, marked, subtree
from lib.model.cause import Cause
from lib.model.fleet import FaultClass, ShardState
from lib.model.rundir import LOG, OLD_LOG, ExitRecord, GuardCounts, ShardSpec, StateRecord
from lib.net.epoll import IN, Loop
from lib.shim.guard import Guard
from lib.shim.logbook import LogBook, RotatedFile
from lib.shim.prober import Examiner, Health, Prober
from lib.shim.shutdown import Shutdown
from lib.shim.spec import StateWriter, claim, poke, read_spec, write_exit
from lib.shim.verdict import judge_exit, judge_start, oom_kills

log = logging.getLogger(__name__)
TICK_S = 1.0
OOM_SCORE = 300                            # rather the engine than its shim or the agent
PIPE_BYTES = 1024 * 1024
SHIM_LOG_BYTES = 4 * 1024 * 1024
LAST_WORDS_S, LOG_END_S = 0.2, 2.0
RETRY_S, RETRIES = 1.0, 3                  # to write exit.json onto a full disk; then the agent sees that we have gone
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def main(run_dir: Path) -> int:
    """Run the shard described in `run_dir` to its end: 0 where it ended on request, 1 where it failed.

    SIGTERM asks for the end and lets running requests finish first; SIGINT does not wait for them.
    """
    os.umask(0o077)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = read_spec(run_dir)
        me = identify(os.getpid())
        assert me
        claim(run_dir, me)
    except LlmgwError as err:
        log.error("%s", err)
        return err.exit_code
    return Supervisor(run_dir, spec).run()


class Supervisor:
    """The shim of one shard."""

    def __init__(self, run_dir: Path, spec: ShardSpec) -> None:
        self._run_dir, self._spec = run_dir, spec
        self._loop = Loop(on_bug=self._bug)
        self._guard = Guard(self._loop, spec, self._serving) if spec.guarded else None
        self._shutdown = Shutdown(self._loop, self._guard, self._tree, survivors=self._note_survivors, done=self._finish)
        self._book = LogBook(RotatedFile(run_dir / LOG, run_dir / OLD_LOG, spec.log_bytes))
        self._writer = StateWriter(run_dir, spec.notify, spec.name)
        self._prober: Prober | None = None
        self._health = Health()
        self._signals = _catch_signals()
        self._state, self._since, self._detail = ShardState.STARTING, time.monotonic(), ""
        self._engine_pid = self._engine_start = 0
        self._engine_since, self._oom_before = time.monotonic(), oom_kills()
        self._exit_code: int | None = None
        self._cause: Cause | None = None             # set once it has failed
        self._survivors: tuple[int, ...] = ()
        self._posted: StateRecord | None = None
        self._tries = 0

    def run(self) -> int:
        """From start to exit.json."""
        try:
            self._start()
        except (LlmgwError, OSError, ValueError) as err:
            self._cause = judge_start(err, self._spec.argv[0] if self._spec.argv else "a shard without a command")
            log.error("%s", self._cause.sentence)
            self._finish()
        else:
            self._loop.register(self._signals.fileno(), self._signalled, IN)
            self._tick()
        self._loop.run()
        return 1 if self._cause else 0

    # -- start ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Port, engine, threads: in this order, so that nothing is started where the port is taken."""
        become_subreaper()
        if self._guard:
            self._guard.open()
        output = self._fork_engine()
        engine = identify(self._engine_pid)
        self._engine_start, self._engine_since = engine.start if engine else 0, time.monotonic()
        log.info("engine started, pid %d", self._engine_pid)
        self._book.start(output)
        self._writer.start()
        if self._guard:
            self._guard.start()
        self._start_probing()

    def _fork_engine(self) -> int:
        """Start the engine; the end of the pipe that carries its output."""
        if not self._spec.argv:
            raise ValueError("no command")
        reader, writer = os.pipe()
        with suppress(OSError):            # more than the system lets us have: then the usual size does
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        name, _, value = self._spec.marker.partition("=")
        try:
            self._engine_pid = fork_bound(self._spec.argv, env={**self._spec.env, name: value}, output=writer,
                                          cwd=self._run_dir, oom_score=OOM_SCORE)
        finally:
            os.close(writer)
        return reader

    def _start_probing(self) -> None:
        order, probe = self._spec.order, self._spec.probe
        if not probe:
            self._enter(self._health.after(""))
            return
        examiner = Examiner(probe, self._spec.engine_host, order.port, order.engine_key, lambda: subtree(os.getpid()))
        self._prober = Prober(examiner, probe.interval_s,
                              lambda problem: self._loop.call_soon_threadsafe(lambda: self._probed(problem)))
        self._prober.start()

    # -- what happens -----------------------------------------------------------------------------------------------

    def _signalled(self, _events: int) -> None:
        try:
            caught = set(self._signals.recv(4096))
        except BlockingIOError:
            return
        if signal.SIGCHLD in caught:
            self._reap()
        if signal.SIGINT in caught:
            self._stop(drain=False)
        elif signal.SIGTERM in caught:
            self._stop(drain=True)

    def _reap(self) -> None:
        """Collect every child that has ended: the engine's orphans are ours too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._engine_pid:
                self._engine_ended(os.waitstatus_to_exitcode(status))

    def _engine_ended(self, code: int) -> None:
        self._exit_code = code
        log.info("engine ended: %d", code)
        if self._shutdown.begun:
            self._shutdown.hurry()         # there is nothing left to wait for
            return
        self._book.finish(LAST_WORDS_S)    # they usually say why; but a child that lives on may hold the pipe open
        out_of_memory = oom_kills() > self._oom_before
        self._cause = judge_exit(self._spec.order.engine, code, self._book.tail(), out_of_memory=out_of_memory)
        self._enter(ShardState.FAILED, self._cause.sentence)
        self._shutdown.begin(self._engine_pid, drain_s=0.0, grace_s=0.0, gently=False)

    def _probed(self, problem: str) -> None:
        if self._shutdown.begun:
            return
        state = self._health.after(problem)
        if state is ShardState.STARTING:
            self._enter(state, self._book.last_line() or problem)
        else:
            self._enter(state, problem if state is ShardState.DEGRADED else "")

    def _stop(self, *, drain: bool) -> None:
        """Somebody asked for the end. With `drain`, requests that run may finish, unless nothing can be running."""
        if self._shutdown.begun:
            if not drain:
                self._shutdown.hurry()
            return
        drain_s = self._spec.drain_s if drain and self._serving() else 0.0
        self._enter(ShardState.STOPPING)
        self._shutdown.begin(self._engine_pid, drain_s=drain_s, grace_s=self._spec.order.stop_grace_s, gently=True)

    def _serving(self) -> bool:
        return self._state in (ShardState.READY, ShardState.DEGRADED)

    def _tree(self) -> set[int]:
        """Every process of this shard: what descends from us (daemons too), the engine's session, whoever carries the marker."""
        return (subtree(os.getpid()) | in_session(self._engine_pid) | marked(self._spec.marker)) - {os.getpid()}

    def _note_survivors(self, pids: tuple[int, ...]) -> None:
        self._survivors = pids
        if pids:
            words = f"processes that SIGKILL does not end, so its GPUs are not free: {', '.join(map(str, pids))}"
            self._enter(self._state, f"{self._cause.sentence}; {words}" if self._cause else words)

    # -- what is told -----------------------------------------------------------------------------------------------

    def _enter(self, state: ShardState, detail: str = "") -> None:
        if state is not self._state:
            log.info("%s -> %s %s", self._state, state, detail)
            self._state, self._since = state, time.monotonic()
        self._detail = detail
        self._post()

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        self._post()
        _bound_own_log()

    def _post(self) -> None:
        record = StateRecord(self._state, self._since, self._engine_pid, self._engine_start, self._engine_since, self._detail,
                             self._guard.counts if self._guard else GuardCounts(), self._survivors)
        if record != self._posted:
            self._posted = record
            self._writer.post(record)

    def _finish(self) -> None:
        """Nobody is left: say how it ended, and end."""
        self._reap()
        if self._prober:
            self._prober.stop()
        self._book.finish(LOG_END_S)
        try:
            write_exit(self._run_dir, self._exit_record())
        except LlmgwError as err:
            self._try_again(err)
            return
        self._writer.close()
        poke(self._spec.notify, self._spec.name)
        self._loop.stop()

    def _try_again(self, err: LlmgwError) -> None:
        """The disk is probably full; the oldest log is worth less than the reason of the end."""
        log.error("%s", err)
        self._tries += 1
        with suppress(OSError):
            (self._run_dir / OLD_LOG).unlink()
        if self._tries > RETRIES:
            self._loop.stop()
        else:
            self._loop.call_later(RETRY_S, self._finish)

    def _exit_record(self) -> ExitRecord:
        cause = self._cause or Cause(FaultClass.UNKNOWN, "stopped on request")
        return ExitRecord(
            requested=self._cause is None, detail=cause.sentence, exit_code=self._exit_code, fault=cause.fault,
            out_of_memory=oom_kills() > self._oom_before, ran_s=round(time.monotonic() - self._engine_since, 3),
            ended_wall=time.time(), log_tail=self._book.tail())

    def _bug(self, fd: int, _callback: Callable[..., Any]) -> None:
        """A connection whose callback failed is left alone; signals must be heard for ever."""
        if fd >= 0 and fd != self._signals.fileno():
            self._loop.unregister(fd)


def _catch_signals() -> socket.socket:
    """Signals as bytes on a socket, so that the loop hears of them like of anything else."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    for signum in SIGNALS:
        signal.signal(signum, lambda _signum, _frame: None)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


def _bound_own_log() -> None:
    """What we say ourselves goes to a file that nobody rotates: empty it when it has grown too long."""
    found = os.fstat(sys.stderr.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size > SHIM_LOG_BYTES:
        os.ftruncate(sys.stderr.fileno(), 0)
