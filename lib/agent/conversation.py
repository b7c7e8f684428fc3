"""What the agent says to the control plane, and when it tries again.

Room: agent. Two callers share one session: one waits in a long poll for orders, the other posts at once when something
changed here. Both get the complete set of orders, so that losing either costs time and nothing else.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lib.base.errors import Blocked, LlmgwError
from lib.model.codec import decode, encode
from lib.model.fleet import Inventory
from lib.model.wire import Hello, Orders, Seen, ShardReport, Sync, Welcome
from lib.net.client import Client, Line

log = logging.getLogger(__name__)

HOLD_S = 5.0                                # how long the control plane may hold a poll without news
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the node runs after having acted on orders of `applied_rev`."""

    applied_rev: int = 0
    shards: tuple[ShardReport, ...] = ()
    inventory: Inventory | None = None


@dataclass(slots=True)
class _Session:
    """The open session, and the inventory that its last sync carried."""

    id: str = ""
    inventory: Inventory | None = None
    seq: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Conversation:
    """Hello and sync. `hello` is without session words; `take` receives each answer, from either thread."""

    def __init__(self, hello: Hello, connect: Callable[[], Client], seen: Callable[[], Seen],
                 take: Callable[[Orders], None]) -> None:
        self._hello, self._seen, self._take = hello, seen, take
        self._session, self._snapshot = _Session(), Snapshot()
        self._news, self._stopping = threading.Event(), threading.Event()
        self._reachable: bool | None = None
        self._lines = [Line(connect), Line(connect)]            # of the two threads

    def publish(self, snapshot: Snapshot) -> None:
        """Make `snapshot` what the next syncs say; the reporter posts it at once if shards or inventory differ."""
        before, self._snapshot = self._snapshot, snapshot
        if _essence(before) != _essence(snapshot):
            self._news.set()

    def start(self) -> None:
        """Begin to poll and to report, in two threads that end with `stop`."""
        for body, name in ((self._poll, "poll"), (self._report, "report")):
            threading.Thread(target=body, name=name, daemon=True).start()

    def redial(self) -> None:
        """Use the certificate that is in place now."""
        for line in self._lines:
            line.redial()

    def stop(self) -> None:
        """End both threads; an answer under way is not waited for."""
        self._stopping.set()
        self._news.set()

    def _poll(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._exchange(self._lines[0].client(), hold_s=HOLD_S)
                failures = 0
                self._tell_reachable("")
            except LlmgwError as err:
                self._tell_reachable(f"{err} ({err.hint})" if err.hint else str(err))
                failures = failures_after(failures, err)
                self._stopping.wait(random.uniform(0, longest_pause_s(failures)))

    def _report(self) -> None:
        while not self._stopping.is_set():
            self._news.wait()
            self._news.clear()
            if self._session.id and not self._stopping.is_set():
                try:
                    self._exchange(self._lines[1].client(), hold_s=0.0)
                except LlmgwError as err:
                    log.debug("report not delivered, the next poll carries it: %s", err)

    def _exchange(self, client: Client, hold_s: float) -> None:
        if not self._session.id:
            self._open(client)
        sync = self._next_sync(hold_s)
        try:
            answer = client.post("/agent/v1/sync", encode(sync), timeout_s=hold_s * 1.2 + 30, idempotent=True)
        except LlmgwError as err:
            self._session.inventory = None  # it may not have arrived: the next sync carries it again
            if isinstance(err, Blocked):    # 409: the control plane has restarted; say hello again
                self._session.id = ""
            raise
        self._take(decode(Orders, answer))

    def _open(self, client: Client) -> None:
        hello = replace(self._hello, seen=self._seen())
        welcome = decode(Welcome, client.post("/agent/v1/hello", encode(hello), timeout_s=30, idempotent=True))
        with self._session.lock:
            self._session.id, self._session.inventory = welcome.session, None
        log.info("control plane %s answers, run %d", client.url, welcome.cp_epoch)

    def _next_sync(self, hold_s: float) -> Sync:
        with self._session.lock:
            self._session.seq += 1
            now = self._snapshot
            inventory = None if now.inventory == self._session.inventory else now.inventory
            self._session.inventory = now.inventory
            return Sync(self._session.id, self._hello.agent_run, self._session.seq, now.applied_rev, now.shards, inventory,
                        hold_s, self._seen())

    def _tell_reachable(self, problem: str) -> None:
        reachable = not problem
        if reachable != self._reachable:
            log.log(logging.INFO if reachable else logging.WARNING,
                    "control plane reachable" if reachable else f"control plane not reachable, engines go on: {problem}")
        self._reachable = reachable


def failures_after(failures: int, err: LlmgwError) -> int:
    """How many failures in a row there are with this one. A control plane that says 409 has restarted and answers: the count
    begins anew, or it would be waited for again as if it were still gone, for half of its adoption window.
    """
    return 1 if isinstance(err, Blocked) else failures + 1


def longest_pause_s(failures: int) -> float:
    """Seconds that the next try may be put off; by chance less, so that a thousand agents do not come at once."""
    return min(LONGEST_PAUSE_S, 0.5 * 2.0**min(failures, 10))


def _essence(snapshot: Snapshot) -> object:
    """What is worth a report of its own: ages and log lines of a starting engine are not."""
    return snapshot.inventory, [(shard.key, shard.state, shard.pid) for shard in snapshot.shards], snapshot.applied_rev


def new_run() -> str:
    """A random id for this run of the agent."""
    return f"{time.time_ns():x}-{random.getrandbits(48):012x}"
