"""The shards of this node as their run directories prove them: found, started, stopped, forgotten.

Room: agent. Decides nothing: `rules.node` says what to do, this does it. Everything known about a shard lies in its run
directory, so an agent that has just started knows as much as one that has run for a year.
"""

import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lib.base.errors import ConfigError, LlmgwError, UsageError
from lib.base.files import read_json, sync_directory, write_json
from lib.host.process import ProcessId, is_same, kill_marked, signal_process, spawn_detached
from lib.host.run import base_environment
from lib.model.cause import Cause
from lib.model.codec import decode, encode
from lib.model.fleet import FaultClass, ShardKey, ShardState
from lib.model.rundir import EXIT, SHIM, SHIM_LOG, SPEC, STATE, ExitRecord, ShardSpec, ShimRecord, StateRecord
from lib.model.wire import ShardReport

log = logging.getLogger(__name__)

ORPHANED = "its shim died, and the engine with it"
FAILED_KEPT = 20                            # run directories of failed shards kept for people, in `ended/` of the state directory
SHIM_START_S = 15.0                         # how long a new shim may take to write shim.json

CACHE_NAMES = ("HOME", "CACHE_DIRECTORY", "XDG_CACHE_HOME")    # where a .pyz may unpack itself (docs/build.md)


@dataclass(frozen=True, slots=True)
class Shard:
    """One run directory, read. Exactly one of three: ended (`exit`), alive (`shim` is), or orphaned (neither)."""

    directory: Path
    spec: ShardSpec
    shim: ProcessId | None                  # alive, exactly that process
    state: StateRecord | None
    exit: ExitRecord | None
    young: bool                             # its shim may still be on its way up

    @property
    def key(self) -> ShardKey:
        return self.spec.order.key

    @property
    def orphaned(self) -> bool:
        return self.exit is None and self.shim is None and not self.young

    @property
    def gone(self) -> bool:
        """It ended because somebody asked for it: nothing is left to tell."""
        return self.exit is not None and self.exit.requested

    def report(self, now_mono: float) -> ShardReport:
        """What the control plane is told of it."""
        order = self.spec.order
        blank = ShardReport(order.replica, order.counter, order.nonce, order.rank, ShardState.STARTING, port=order.port)
        if self.exit:
            return replace(blank, state=ShardState.FAILED, detail=self.exit.detail, fault=self.exit.fault,
                           exit_code=self.exit.exit_code, log_tail=self.exit.log_tail)
        if self.orphaned:
            return replace(blank, state=ShardState.FAILED, detail=ORPHANED, fault=FaultClass.TRANSIENT)
        if self.state is None:
            return blank
        age = now_mono - self.state.engine_since_mono if self.state.engine_pid else 0.0
        return replace(blank, state=self.state.state, pid=self.state.engine_pid, age_s=round(age, 1), detail=self.state.detail)


class Shards:
    """The directory of run directories. `shim` is the command that becomes a shim when a run directory is appended to it."""

    def __init__(self, directory: Path, shim: Sequence[str]) -> None:
        self._directory, self._shim, self._ended = directory, list(shim), directory.parent / "ended"
        self._broken: set[Path] = set()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def look(self) -> tuple[Shard, ...]:
        """Every shard that has a run directory here."""
        return tuple(self._read_all())

    def _read_all(self) -> Iterator[Shard]:
        for directory in sorted(self._directory.iterdir()):
            try:
                if (directory / SPEC).exists():
                    yield read_shard(directory)
            except (ConfigError, UsageError) as err:
                if directory not in self._broken:           # once; it stays until a person has looked at it
                    log.error("%s is damaged and left alone: %s", directory, err)
                self._broken.add(directory)

    def start(self, spec: ShardSpec) -> None:
        """Make the run directory and start the shim. The caller has journalled the start."""
        directory = self._directory / spec.name
        directory.mkdir(mode=0o700)
        write_json(directory / SPEC, encode(spec))
        sync_directory(self._directory)
        environment = base_environment() | {name: os.environ[name] for name in CACHE_NAMES if name in os.environ}
        spawn_detached([*self._shim, str(directory)], env=environment, log=directory / SHIM_LOG, cwd=directory)

    def fail(self, spec: ShardSpec, cause: Cause) -> None:
        """Leave a run directory that tells why the shard could not be started at all."""
        directory = self._directory / spec.name
        directory.mkdir(mode=0o700, exist_ok=True)
        write_json(directory / EXIT, encode(ExitRecord(False, cause.sentence, fault=cause.fault, ended_wall=time.time())))
        write_json(directory / SPEC, encode(spec))

    def stop(self, shard: Shard, drain_s: float) -> None:
        """Ask the shim to end its shard, its running requests first if there is time; it says so in exit.json when it has."""
        if shard.shim:
            signal_process(shard.shim, signal.SIGTERM if drain_s > 0 else signal.SIGINT)

    def clear(self, shard: Shard) -> None:
        """Kill what a dead shim left behind, and write down that it is over, if the disk lets us: it is reported either way."""
        if survivors := kill_marked(shard.spec.marker):
            log.error("%s: pids %s survive SIGKILL: its GPUs are not free", shard.spec.name, survivors)
            return
        record = ExitRecord(False, ORPHANED, fault=FaultClass.TRANSIENT, ended_wall=time.time())
        try:
            write_json(shard.directory / EXIT, encode(record))
        except LlmgwError as err:           # looked at again in the next turn
            log.error("%s", err)

    def forget(self, shard: Shard) -> None:
        """Remove the run directory of a shard that has ended; one that failed is kept among the last few, for its log."""
        try:
            if shard.gone:
                shutil.rmtree(shard.directory)
            else:
                self._ended.mkdir(exist_ok=True, mode=0o700)
                os.rename(shard.directory, self._ended / shard.directory.name)
                for old in sorted(self._ended.iterdir(), key=lambda kept: kept.stat().st_mtime)[:-FAILED_KEPT]:
                    shutil.rmtree(old)
        except OSError as err:
            raise LlmgwError(f"cannot remove {shard.directory}: {err.strerror}") from err


def read_shard(directory: Path) -> Shard:
    """The shard in a run directory; ConfigError or UsageError where a file in it is damaged."""
    spec = decode(ShardSpec, read_json(directory / SPEC))
    shim = _alive(decode(ShimRecord, read_json(directory / SHIM))) if (directory / SHIM).exists() else None
    young = not (directory / SHIM).exists() and time.time() - (directory / SPEC).stat().st_mtime < SHIM_START_S
    state = decode(StateRecord, read_json(directory / STATE)) if (directory / STATE).exists() else None
    ended = decode(ExitRecord, read_json(directory / EXIT)) if (directory / EXIT).exists() else None
    return Shard(directory, spec, shim, state, ended, young)


def _alive(record: ShimRecord) -> ProcessId | None:
    return ProcessId(record.pid, record.start, record.boot) if is_same(record.pid, record.start, record.boot) else None

