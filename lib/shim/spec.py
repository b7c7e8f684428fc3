"""The run directory on disk, from the shim's side (`model.rundir` says what the files hold).

Room: shim.
"""

import logging
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lib.base.errors import LlmgwError, Refused
from lib.base.files import create_atomic, read_json, render_json, write_json
from lib.base.version import VERSION
from lib.host.process import ProcessId
from lib.model.codec import decode, encode
from lib.model.rundir import EXIT, SHIM, SPEC, STATE, ExitRecord, GuardCounts, ShardSpec, ShimRecord, StateRecord

log = logging.getLogger(__name__)
RETRY_S = 2.0


def read_spec(run_dir: Path) -> ShardSpec:
    """What this shim has to run. ConfigError or UsageError where the file is not a whole specification."""
    return decode(ShardSpec, read_json(run_dir / SPEC), str(run_dir / SPEC))


def claim(run_dir: Path, me: ProcessId) -> None:
    """Write shim.json, or raise Refused where there is one already: a shard is started once, ever."""
    record = ShimRecord(me.pid, me.start, me.boot, VERSION)
    try:
        create_atomic(run_dir / SHIM, render_json(encode(record)))
    except FileExistsError:
        raise Refused(f"{run_dir}: this shard was started before", hint="a shard is never started twice") from None


def write_exit(run_dir: Path, record: ExitRecord) -> None:
    """The last thing that a shim writes."""
    write_json(run_dir / EXIT, encode(record))


def poke(notify: str, name: str) -> None:
    """Tell the agent that there is news of shard `name`. Nobody there is no matter: it reads the files when it comes."""
    if notify:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(name.encode(), notify)


class StateWriter:
    """A thread that writes state.json, so that no token waits for a disk. Only the newest state counts."""

    def __init__(self, run_dir: Path, notify: str, name: str) -> None:
        self._file, self._notify, self._name = run_dir / STATE, notify, name
        self._wake = threading.Condition()
        self._next: StateRecord | None = None
        self._told: StateRecord | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, record: StateRecord) -> None:
        """Have `record` written and the agent told."""
        with self._wake:
            self._next = record
            self._wake.notify()

    def close(self) -> None:
        """Write what is waiting, then end."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(RETRY_S)

    def _work(self) -> None:
        while record := self._take():
            try:
                write_json(self._file, encode(record))
            except LlmgwError as err:
                log.warning("%s", err)
                self._put_back(record)
            else:
                self._tell(record)

    def _tell(self, record: StateRecord) -> None:
        news = replace(record, guard=GuardCounts())      # its counters alone are no news
        if news != self._told:
            self._told = news
            poke(self._notify, self._name)

    def _take(self) -> StateRecord | None:
        with self._wake:
            while self._next is None and not self._closing:
                self._wake.wait()
            record, self._next = self._next, None
            return record

    def _put_back(self, record: StateRecord) -> None:
        with self._wake:
            if not self._closing:
                self._wake.wait(RETRY_S)
                self._next = self._next or record
