"""Runs the sim engine as real processes for tests, and ends them."""

import http.client
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.host.process import kill_marked
from tests.eventually import eventually
from tests.programs import bare_environment, program

KEY = "engine-key-of-the-test"
_COUNTER = itertools.count(1)


class SimProcess:
    """One shard. Its output is collected in a file."""

    def __init__(self, log: Path, *flags: str, key: str = KEY) -> None:
        self.log, self.flags, self.port = log, flags, 0
        self.marker = f"LLMGW_SHARD=test-{os.getpid()}.{next(_COUNTER)}.0"
        name, _, value = self.marker.partition("=")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*program("agent"), "sim-engine", *flags], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**bare_environment(), "LLMGW_ENGINE_KEY": key, name: value}, start_new_session=True)
        self.pid = self._process.pid

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def serving(self) -> "SimProcess":
        """Back once it says where it serves."""
        ports = eventually(lambda: re.findall(r"serving .* on [\d.]+:(\d+)", self.text), 20)
        self.port = int(ports[0])
        return self

    def says(self, words: str, timeout_s: float = 20) -> None:
        """Back once its log holds these words."""
        assert eventually(lambda: words in self.text, timeout_s)

    def ended(self, timeout_s: float = 20) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(timeout_s)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill_all(self) -> None:
        """End it and all that it left behind."""
        kill_marked(self.marker)
        self._process.wait(10)

    @contextmanager
    def asked(self, method: str, path: str, body: Any = None, *, key: str = KEY) -> Iterator[http.client.HTTPResponse]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Authorization": f"Bearer {key}"})
            yield connection.getresponse()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None, *, key: str = KEY) -> tuple[int, Any]:
        """Status and parsed body of one request."""
        with self.asked(method, path, body, key=key) as response:
            raw = response.read()
            return response.status, json.loads(raw) if raw else None

    def metric(self, name: str) -> float:
        """The value of one metric of /metrics."""
        with self.asked("GET", "/metrics") as response:
            found = re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", response.read().decode(), re.M)
        assert found, name
        return float(found[1])

    def events(self, path: str, body: Any) -> list[str]:
        """All lines of a streamed answer that are not empty; the connection may end before the stream does."""
        with self.asked("POST", path, {**body, "stream": True}) as response:
            assert response.status == 200
            try:
                raw = response.read()
            except http.client.IncompleteRead as err:
                raw = err.partial + b"\nCUT"
        return [line for line in raw.decode().splitlines() if line]
