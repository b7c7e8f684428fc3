"""Bad input to the built programs: one line that says what, where and what to do, a documented exit code, nothing half done."""

import os
import re
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.live.ctl import ctl, init, run, serving
from tests.programs import free_port, program

CONFIGURATION, LOCKED, USAGE, REFUSED, FAILED = 78, 73, 2, 4, 1


class Installation:
    """A control plane's files as `init` makes them, with a node's and a router's beside them."""

    def __init__(self, etc: Path) -> None:
        self.etc, self.state = etc, etc / "state" / "ctl.db"
        found = re.search(r"https://127\.0\.0\.1:(\d+)", (etc / "ctl.toml").read_text())
        assert found
        self.url, self.port = found[0], int(found[1])

    @classmethod
    def make(cls, etc: Path) -> "Installation":
        """A new one, with an authority of its own."""
        made = cls(init(etc))
        for role, name in (("node", "node01"), ("router", "router01")):
            issued = made.ctl("ca", "issue", "--role", role, "--name", name, "--address", "127.0.0.1", "--out", str(etc / role))
            assert issued.returncode == 0, issued.stderr
        (etc / "agent.toml").write_text(
            f'node = "node01"\nserver = "{made.url}"\naddress = "127.0.0.1"\nports = "20000-20099"\nstate_dir = "node-state"\n'
            f'[pki]\ncertificate = "node/node.pem"\nkey = "node/node.key"\nca = "node/ca.pem"\n')
        (etc / "router.toml").write_text(
            f'name = "router01"\nserver = "{made.url}"\nlisten = "127.0.0.1:{free_port()}"\nstate_dir = "router-state"\n'
            f'workers = 1\n[pki]\ncertificate = "router/router.pem"\nkey = "router/router.key"\nca = "router/ca.pem"\n')
        return made

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return ctl("--dir", self.etc, *words)

    def start(self, role: str) -> subprocess.CompletedProcess[str]:
        """Start a role that is expected to refuse."""
        if role == "ctl":
            return self.ctl("serve")
        return run(role, "run", "--config", self.etc / f"{role}.toml")

    def snapshot(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.etc.parent.rglob("*")) if path.is_file()
                and not path.name.startswith("lock") and ".db-" not in path.name and not path.name.endswith(".lock")}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation.make(tmp_path_factory.mktemp("pristine") / "etc")


@pytest.fixture
def installed(pristine: Installation, tmp_path: Path) -> Installation:
    """A copy that the test may spoil."""
    return Installation(shutil.copytree(pristine.etc, tmp_path / "etc"))


def is_clear(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The exit code, the words, no traceback, and few lines: the log's first line may stand before them."""
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(etc: Path) -> None:
        text = (etc / file).read_text()
        assert re.search(old, text), f"{old} is not in {file}"
        (etc / file).write_text(re.sub(old, new, text, count=1))
    return change


def halve(file: str) -> Callable[[Path], None]:
    """Half of a file; of a configuration, whose half may well be whole, one that ends within a value."""
    def change(etc: Path) -> None:
        raw = (etc / file).read_bytes()
        half = raw[:len(raw) // 2]
        (etc / file).write_bytes(half[:half.rindex(b'"')] if file.endswith(".toml") else half)
    return change


def binary(file: str) -> Callable[[Path], None]:
    return lambda etc: (etc / file).write_bytes(b"\xff\xfe\0\1") and None       # type: ignore[return-value]


def remove(file: str) -> Callable[[Path], None]:
    return lambda etc: (etc / file).unlink()


def loosen(file: str) -> Callable[[Path], None]:
    return lambda etc: (etc / file).chmod(0o644)


def swap(file: str, other: str) -> Callable[[Path], None]:
    return lambda etc: (etc / file).write_bytes((etc / other).read_bytes()) and None        # type: ignore[return-value]


CASES: list[tuple[str, Callable[[Path], None], tuple[str, ...]]] = [
    ("ctl", remove("ctl.toml"), ("ctl.toml", "is not there", "init")),
    ("ctl", halve("ctl.toml"), ("ctl.toml",)),
    ("ctl", binary("ctl.toml"), ("ctl.toml", "not UTF-8")),
    ("ctl", replace("ctl.toml", "listen", "lisen"), ("ctl.toml:", 'did you mean "listen"?')),
    ("ctl", replace("ctl.toml", 'cluster = "lab"', 'cluster = "other"'), ("control-plane.pem", "cluster", "lab", "other")),
    ("ctl", halve("secret"), ("secret", "32 bytes")),
    ("ctl", halve("pki/control-plane.pem"), ("control-plane.pem",)),
    ("ctl", remove("pki/control-plane.key"), ("control-plane.key",)),
    ("ctl", loosen("pki/control-plane.key"), ("control-plane.key", "0644", "chmod 600")),
    ("ctl", swap("pki/control-plane.key", "pki/operator.key"), ("control-plane.key", "is not the key of")),
    ("ctl", swap("pki/ca.pem", "secret"), ("ca.pem",)),
    ("agent", remove("agent.toml"), ("agent.toml", "No such file")),
    ("agent", halve("agent.toml"), ("agent.toml",)),
    ("agent", replace("agent.toml", "address", "adress"), ("agent.toml:3: adress", 'did you mean "address"?')),
    ("agent", replace("agent.toml", '"20000-20099"', '"lots"'), ("agent.toml:4: ports",)),
    ("agent", halve("node/node.key"), ("node.key",)),
    ("agent", swap("node/node.pem", "router/router.pem"), ("node.key", "is not the key of")),
    ("router", remove("router.toml"), ("router.toml", "No such file")),
    ("router", replace("router.toml", "workers = 1", "workers = -1"), ("router.toml:", "workers")),
    ("router", halve("router/ca.pem"), ("ca.pem",)),
]


@pytest.mark.parametrize("role, damage, words", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_damaged_file_stops_a_role_before_it_starts_and_stays_as_it_is(
        installed: Installation, role: str, damage: Callable[[Path], None], words: tuple[str, ...]) -> None:
    damage(installed.etc)
    before = installed.snapshot()
    is_clear(installed.start(role), CONFIGURATION, *words)
    assert installed.snapshot() == before


@pytest.mark.parametrize("damage, words", [
    (lambda path: path.write_bytes(b"not a database at all, but long enough to look at" * 100), "not a database"),
    (lambda path: os.truncate(path, path.stat().st_size // 2), "ctl.db"),
    (lambda path: path.unlink(), "ctl.db"),
    (lambda path: set_version(path, 999), "newer"),
])
def test_a_bad_state_file_is_refused_and_left_as_it_is(
        installed: Installation, damage: Callable[[Path], None], words: str) -> None:
    damage(installed.state)
    before = installed.state.read_bytes() if installed.state.exists() else None
    is_clear(installed.start("ctl"), CONFIGURATION, "ctl.db", words)
    assert before == (installed.state.read_bytes() if installed.state.exists() else None)


def set_version(path: Path, version: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()


def test_a_port_that_is_taken_is_named(installed: Installation) -> None:
    with socket.create_server(("127.0.0.1", installed.port)):
        is_clear(installed.start("ctl"), FAILED, f"127.0.0.1:{installed.port}", "in use")
    listen = re.search(r'listen = "127.0.0.1:(\d+)"', (installed.etc / "router.toml").read_text())
    assert listen
    with socket.create_server(("127.0.0.1", int(listen[1]))):
        is_clear(installed.start("router"), FAILED, listen[1], "in use")


@pytest.fixture
def served(installed: Installation) -> Iterator[Installation]:
    with serving(installed.etc):
        yield installed


def test_a_second_control_plane_names_the_first(served: Installation) -> None:
    is_clear(served.start("ctl"), LOCKED, "ctl.db", "process", "stop process")


def test_who_is_not_of_this_cluster_is_told_so_on_both_sides(served: Installation, tmp_path: Path) -> None:
    other = Installation.make(tmp_path / "other")
    server = served.url

    def ask(*flags: str) -> subprocess.CompletedProcess[str]:
        return served.ctl("nodes", "--server", server, *flags)
    pki, foreign = served.etc / "pki", other.etc / "pki"
    is_clear(ask("--ca", str(foreign / "ca.pem")), FAILED, server, f"is not signed by {foreign / 'ca.pem'}")
    is_clear(ask("--cert", str(foreign / "operator.pem"), "--key", str(foreign / "operator.key"), "--ca", str(pki / "ca.pem")),
             FAILED, server, "refused our certificate", "unknown ca")
    router = served.etc / "router"
    is_clear(ask("--cert", str(router / "router.pem"), "--key", str(router / "router.key"), "--ca", str(pki / "ca.pem")),
             CONFIGURATION, "router.pem", "role router, an operator's is wanted")


def test_a_control_plane_that_does_not_run_is_one_line(installed: Installation) -> None:
    is_clear(installed.ctl("nodes"), FAILED, f"https://127.0.0.1:{installed.port}", "connection refused")


@pytest.mark.parametrize("words, said", [
    (("statsu",), 'did you mean "status"?'), (("nodes", "--wach"), 'did you mean "--watch"?'),
    (("nodes", "--wat"), "unknown flag --wat"),
    (("node",), "NODE"), (("nodes", "too", "many"), "one word too many"), (("nodes", "-o", "xml"), "xml"), ((), ""),
])
def test_a_word_that_is_not_known_is_a_usage_error_with_a_suggestion(
        installed: Installation, words: tuple[str, ...], said: str) -> None:
    done = installed.ctl(*words)
    if words:
        is_clear(done, USAGE, said)
    else:
        assert done.returncode == USAGE


@pytest.mark.parametrize("text, said", [
    ("[models.m", "is not TOML"),
    ('[models.m]\n[profiles.p]\nmodel = "m"\nengine = "vlm"\n', "catalog.toml:4: profiles.p.engine"),
    ('[profiles.p]\nmodel = "m"\nengine = "sim"\nargs = ["--port", "1"]\n', "profiles.p.args"),
])
def test_a_bad_catalog_is_refused_with_its_lines_and_nothing_changes(
        served: Installation, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text(text)
    before = (served.etc / "catalog.toml").read_bytes()
    for verb in ("check", "diff", "apply"):
        is_clear(served.ctl("catalog", verb, str(file)), CONFIGURATION, said)
    assert (served.etc / "catalog.toml").read_bytes() == before


def test_init_touches_no_installation_that_is_there(installed: Installation) -> None:
    before = installed.snapshot()
    is_clear(installed.ctl("init", "--cluster", "lab", "--listen", "127.0.0.1:7443"), REFUSED, str(installed.etc))
    assert installed.snapshot() == before


def test_a_node_with_uncertain_fabrics_is_refused_with_what_was_found(installed: Installation) -> None:
    config = installed.etc / "agent.toml"
    text = config.read_text()
    for claims, said in (('["ib-a", "ib-b"]', "no adapter"), ('["ib-a:mlx5_0,mlx5_1", "ib-b:mlx5_1,mlx5_2"]', "mlx5_1")):
        config.write_text(f"fabrics = {claims}\n{text}")
        is_clear(installed.start("agent"), REFUSED, said)


def test_a_second_agent_on_one_state_directory_is_refused(served: Installation) -> None:
    first = subprocess.Popen([*program("agent"), "run", "--config", str(served.etc / "agent.toml")], stdin=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
        eventually((served.etc / "node-state" / "journal.json").exists, 20)
        is_clear(served.start("agent"), LOCKED, "another agent")
    finally:
        first.terminate()
        assert first.wait(20) == 0
