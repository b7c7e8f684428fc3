"""A real router process in front of stub guards, and raw clients for it."""

import hashlib
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lib.model.codec import encode
from lib.model.wire import Endpoint, KeyEntry, KeyLimits, ModelRoute, RouterTable
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.programs import free_port, program

KEY = "llmgw_test_key"


def make_table(models: Mapping[str, ModelRoute], *, limits: KeyLimits | None = None, rev: int = 5, cp_epoch: int = 2,
               **more: Any) -> RouterTable:
    """A table with the key KEY."""
    key = KeyEntry("k1", hashlib.sha256(KEY.encode()).hexdigest(), limits or KeyLimits())
    return RouterTable(rev, "demo", models, (key,), cp_epoch=cp_epoch, lineage="l1", **more)


def route(*endpoints: Endpoint, **more: Any) -> ModelRoute:
    return ModelRoute(replicas=endpoints, **more)


class Router:
    """One running router, seen from outside."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, directory: Path) -> None:
        self.process, self.port, self.directory = process, port, directory
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        return (self.directory / "router.log").read_text()

    def workers(self) -> list[int]:
        """Pids of its children: workers and, last, the follower."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.settimeout(20)
        return sock

    def send(self, *pieces: bytes) -> bytes:
        """Send the pieces, then read until the router closes."""
        with self.connect() as sock:
            for piece in pieces:
                sock.sendall(piece)
            return read_all(sock)

    def ask(self, path: str = "/v1/chat/completions", body: Any = None, *, key: str = KEY, method: str = "",
            headers: Mapping[str, str] | None = None) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON (or text) and fields of the answer to one request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        fields = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        request = urllib.request.Request(self.url + path, data, fields, method=method or None)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, _parsed(answer.read()), {k.lower(): v for k, v in answer.headers.items()}
        except urllib.error.HTTPError as err:
            with err:
                return err.code, _parsed(err.read()), {k.lower(): v for k, v in err.headers.items()}

    def metric(self, name: str) -> float:
        """The sum of all series of that name, or of exactly that series."""
        _, text, _ = self.ask("/metrics", key="")
        rows = [line.rpartition(" ") for line in str(text).splitlines() if not line.startswith("#")]
        return sum(float(value) for series, _, value in rows if series == name or series.startswith(name + "{"))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes, even by a reset."""
    data = b""
    try:
        while more := sock.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Bytes until `end` has come."""
    data = b""
    while end not in data:
        more = sock.recv(65536)
        assert more, f"closed after {data!r}"
        data += more
    return data


def write_config(directory: Path, certificates: Certificates, *, port: int, server: str = "https://127.0.0.1:9",
                 workers: int = 1, more: str = "") -> Path:
    pair = certificates.router()
    config = directory / "router.toml"
    config.write_text(f'name = "llmgw-router01"\nserver = "{server}"\nlisten = "127.0.0.1:{port}"\nstate_dir = "state"\n'
                      f'workers = {workers}\n{more}\n[pki]\ncertificate = "{pair.cert}"\nkey = "{pair.key}"\nca = "{pair.ca}"\n')
    return config


@contextmanager
def running(directory: Path, certificates: Certificates, table: RouterTable | None, *, server: str = "https://127.0.0.1:9",
            workers: int = 1, more: str = "", limit_files: int = 0) -> Iterator[Router]:
    """A router whose control plane is down, unless `server` says where it is, with `table` on its disk."""
    directory.mkdir(exist_ok=True)
    port = free_port()
    config = write_config(directory, certificates, port=port, server=server, workers=workers, more=more)
    if table is not None:
        (directory / "state").mkdir(exist_ok=True)
        (directory / "state" / "table.json").write_text(json.dumps(encode(table)))
    router = Router(start(config, limit_files=limit_files), port, directory)
    try:
        eventually(lambda: router.ask("/health", key="")[0] == 200)
        if table is not None:
            eventually(lambda: router.metric("llmgw_router_table_rev") == table.rev)
        yield router
    finally:
        stop(router.process)
    assert "Traceback" not in router.log, router.log


def start(config: Path, *, limit_files: int = 0) -> "subprocess.Popen[str]":
    """`llmgw-router.pyz run --config CONFIG`, its log beside the configuration."""
    command = [*program("router"), "run", "--config", str(config)]
    if limit_files:
        command = ["prlimit", f"--nofile={limit_files}:{limit_files}", *command]
    with open(config.parent / "router.log", "a") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)


def stop(process: "subprocess.Popen[str]") -> None:
    """End it at once: a second signal means no grace."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                continue
    process.kill()
    process.wait()


def with_replicas(table: RouterTable, model: str, *endpoints: Endpoint, rev: int) -> RouterTable:
    """The table one revision on, with these replicas for a model."""
    return replace(table, rev=rev, models={**table.models, model: replace(table.models[model], replicas=endpoints)})
