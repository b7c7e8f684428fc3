"""Whether rank 0's engine serves: what its probe asks, on loopback, of nobody but the engine's own processes.

Room: shim. A thread of its own, so that a slow answer stops nothing else; what it learns is handed to the loop.
"""

import http.client
import json
import threading
from collections.abc import Callable, Collection
from typing import Any

from lib.host.ports import listeners, read_sockets, sockets_of_all
from lib.model.fleet import ShardState
from lib.model.probe import Probe

FAILURES_TO_DEGRADE = 3
OWNER_EVERY = 10                           # probes between looks at who answers, once the engine serves
_BODY_LIMIT = 4 * 1024 * 1024


class Health:
    """The state that a row of probe results amounts to. Before the first success a failure only means that it still starts."""

    def __init__(self) -> None:
        self.state = ShardState.STARTING
        self._failures = 0

    def after(self, problem: str) -> ShardState:
        """The state after one more result; an empty problem is a success."""
        self._failures = self._failures + 1 if problem else 0
        if not problem:
            self.state = ShardState.READY
        elif self.state is ShardState.READY and self._failures >= FAILURES_TO_DEGRADE:
            self.state = ShardState.DEGRADED
        return self.state


class Examiner:
    """Asks one engine. `own_processes` finds the pids that may answer in its name."""

    def __init__(self, probe: Probe, host: str, port: int, engine_key: str, own_processes: Callable[[], Collection[int]]) -> None:
        self._probe, self._host, self._port = probe, host, port
        self._headers = {"Authorization": f"Bearer {engine_key}"} if engine_key else {}
        self._own_processes = own_processes

    def owner_problem(self) -> str:
        """Who else answers on the engine's port, or that nobody does; asked first, because the key goes to whoever answers."""
        answering = listeners(read_sockets(), self._host, self._port)
        if not answering:
            return f"nothing listens on {self._host}:{self._port} yet"
        if not answering <= sockets_of_all(self._own_processes()):
            return f"{self._host}:{self._port} is answered by a process that is not the engine's"
        return ""

    def health_problem(self) -> str:
        """What is wrong with the health path alone."""
        if not self._probe.path:
            return ""
        status, _ = self._ask("GET", self._probe.path, None, self._probe.timeout_s)
        return "" if status == 200 else _words(self._probe.path, status)

    def first_problem(self) -> str:
        """What is missing before the engine may be called ready: health, the model's name, a token."""
        return self.owner_problem() or self.health_problem() or self._name_problem() or self._canary_problem()

    def _name_problem(self) -> str:
        path, name = self._probe.models_path, self._probe.served_name
        if not path or not name:
            return ""
        status, body = self._ask("GET", path, None, self._probe.timeout_s)
        if status != 200:
            return _words(path, status)
        return "" if name in _served_names(body) else f"{path} does not list {name}"

    def _canary_problem(self) -> str:
        path = self._probe.canary_path
        if not self._probe.canary or not path:
            return ""
        question: dict[str, Any] = {"model": self._probe.served_name, "max_tokens": 1}
        if path.endswith("/chat/completions"):
            question["messages"] = [{"role": "user", "content": "Hello"}]
        else:
            question["prompt"] = "Hello"
        status, _ = self._ask("POST", path, question, self._probe.canary_timeout_s)
        return "" if status == 200 else _words(path, status)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        """Status and body; status 0 where there was no answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            text = json.dumps(body).encode() if body is not None else None
            connection.request(method, path, text, self._headers | ({"Content-Type": "application/json"} if text else {}))
            answer = connection.getresponse()
            return answer.status, answer.read(_BODY_LIMIT)
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def _words(path: str, status: int) -> str:
    return f"{path} answers {status}" if status else f"{path} does not answer"


def _served_names(body: bytes) -> list[str]:
    try:
        return [str(row["id"]) for row in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return []


class Prober:
    """The thread: asks everything until it succeeds once, from then on the health path; `report` gets each problem or ""."""

    def __init__(self, examiner: Examiner, interval_s: float, report: Callable[[str], None]) -> None:
        self._examiner, self._interval_s, self._report = examiner, interval_s, report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prober", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask nothing more. Does not wait for an answer that is under way."""
        self._stop.set()

    def _work(self) -> None:
        served, asked = False, 0
        while not self._stop.is_set():
            asked += 1
            if not served:
                problem = self._examiner.first_problem()
                served = not problem
            else:
                problem = self._examiner.health_problem() or (self._examiner.owner_problem() if asked % OWNER_EVERY == 0 else "")
            if not self._stop.is_set():
                self._report(problem)
            self._stop.wait(self._interval_s)
