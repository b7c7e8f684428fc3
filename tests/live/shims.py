"""Real shims around small engines, for tests: started as an agent starts them, and gone when the test is."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lib.base.files import write_json
from lib.host.process import ProcessId, kill_marked, kill_session, signal_process, spawn_detached, wait_gone
from lib.model.codec import decode, encode
from lib.model.fleet import ShardState
from lib.model.probe import Probe
from lib.model.rundir import EXIT, LOG, SHIM_LOG, SPEC, STATE, ExitRecord, ShardSpec, StateRecord
from lib.model.wire import ShardOrder
from tests.certificates import Certificates
from tests.eventually import eventually
from tests.programs import RUN, bare_environment, program

SERVER = Path(__file__).with_name("small_engine.py")
GUARD, ENGINE = "127.0.0.11", "127.0.0.1"
NONCE, KEY = os.environ[RUN][:16], "a-secret-key"       # by the nonce a shard is told from one of another run of the tests


def free_pair() -> int:
    """A port that is free for a guard and for an engine."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((GUARD, 0))
            port: int = first.getsockname()[1]
            with suppress(OSError):
                second.bind((ENGINE, port))
                return port


def make_order(port: int = 0, *, rank: int = 0, grace_s: float = 5.0, engine: str = "none") -> ShardOrder:
    return ShardOrder(
        replica="r1", counter=7, nonce=NONCE, rank=rank, shard_count=1, may_start=True, profile="p", model="m", engine=engine,
        source="", served_names=("m",), addr=GUARD, port=port, engine_key=KEY, stop_grace_s=grace_s)


class Shim:
    """One running shim, seen from outside: by its files, its pid and its port."""

    def __init__(self, run_dir: Path, spec: ShardSpec, process: ProcessId) -> None:
        self.run_dir, self.spec, self.process = run_dir, spec, process
        self.port = spec.order.port

    @property
    def state(self) -> StateRecord | None:
        file = self.run_dir / STATE
        return decode(StateRecord, json.loads(file.read_text())) if file.exists() else None

    def wait_for(self, state: ShardState, timeout_s: float = 10.0) -> StateRecord:
        return self.wait_until(lambda record: record.state is state, timeout_s)

    def wait_until(self, fits: Callable[[StateRecord], bool], timeout_s: float = 10.0) -> StateRecord:
        """The first state.json that fits."""
        found: list[StateRecord] = []

        def there() -> bool:
            now = self.state
            if now and fits(now):
                found.append(now)
            return bool(found)
        eventually(there, timeout_s)
        return found[0]

    def wait_exit(self, timeout_s: float = 15.0) -> ExitRecord:
        """exit.json, once the shim has gone too."""
        eventually((self.run_dir / EXIT).exists, timeout_s)
        assert wait_gone(self.process, timeout_s), "the shim has written exit.json and lives on"
        return decode(ExitRecord, json.loads((self.run_dir / EXIT).read_text()))

    def signal(self, signum: int = signal.SIGTERM) -> None:
        assert signal_process(self.process, signum)

    @property
    def log(self) -> str:
        return (self.run_dir / LOG).read_text(errors="replace") if (self.run_dir / LOG).exists() else ""

    @property
    def own_log(self) -> str:
        return (self.run_dir / SHIM_LOG).read_text(errors="replace")


@contextmanager
def running(run_dir: Path, argv: list[str], **more: Any) -> Iterator[Shim]:
    """A shim that runs `argv`; afterwards it and everything it started are gone."""
    run_dir.mkdir(mode=0o700, exist_ok=True)
    more.setdefault("order", make_order())
    env = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"} | more.pop("env", {})
    spec = ShardSpec(node="llmgw-node01", cluster="demo", argv=tuple(argv), env=env, engine_host=ENGINE, **more)
    write_json(run_dir / SPEC, encode(spec))
    process = spawn_shim(run_dir, run_dir / SHIM_LOG)
    try:
        yield Shim(run_dir, spec, process)
    finally:
        signal_process(process, signal.SIGKILL)
        wait_gone(process, 5)
        assert not kill_marked(spec.marker)
        assert not kill_session(process.pid)


def spawn_shim(run_dir: Path, log: Path) -> ProcessId:
    """`llmgw-agent.pyz shim --run-dir RUN_DIR`, as an agent starts it."""
    return spawn_detached([*program("agent"), "shim", "--run-dir", str(run_dir)], log=log, cwd=Path("/"), env=bare_environment())


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def pki_of(certificates: Certificates) -> dict[str, str]:
    node = certificates.node()
    return {"certificate": str(node.cert), "key": str(node.key), "ca": str(certificates.ca)}


def server_argv(port: int, **flags: str) -> list[str]:
    return [sys.executable, str(SERVER), ENGINE, str(port), KEY, json.dumps(flags)]


def make_probe(**more: Any) -> Probe:
    values: Mapping[str, Any] = {"served_name": "m", "interval_s": 0.05, "timeout_s": 1.0, **more}
    return Probe(**values)
