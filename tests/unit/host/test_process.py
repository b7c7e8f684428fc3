"""Who a process is, who belongs to it, and that it is gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lib.base.errors import LlmgwError
from lib.host import process
from tests.eventually import eventually


@contextmanager
def child(code: str, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={**os.environ, **env}) as started:
        try:
            yield started
        finally:
            started.kill()


def test_a_name_with_blanks_and_parentheses_does_not_shift_the_fields() -> None:
    line = "4242 (a) R (b) S 1 4242 4240 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0"
    assert process.parse_stat(line) == process.Stat(4242, "S", 1, 4242, 4240, 987654)


def test_a_process_is_the_same_only_with_its_pid_its_start_and_its_boot() -> None:
    me = process.identify(os.getpid())
    assert me
    assert process.is_same(me.pid, me.start, me.boot)
    assert not process.is_same(me.pid, me.start + 1, me.boot)
    assert not process.is_same(me.pid, me.start, "another boot")
    assert not process.is_same(0, 0, me.boot)


def test_a_zombie_is_nobody() -> None:
    with child("pass") as started:
        eventually(lambda: (stat := process.read_stat(started.pid)) and not stat.alive)
        assert process.identify(started.pid) is None


def test_marked_processes_are_found_by_the_whole_marker_and_killed() -> None:
    sleeper = "import time; time.sleep(600)"
    with child(sleeper, LLMGW_SHARD="r9.1.0") as first, child(sleeper, LLMGW_SHARD="r9.1.01") as other:
        eventually(lambda: process.marked("LLMGW_SHARD=r9.1.0") == {first.pid})
        assert process.kill_marked("LLMGW_SHARD=r9.1.0") == ()
        assert first.wait(5) == -signal.SIGKILL
        assert other.poll() is None


def test_a_session_dies_as_a_whole_even_while_it_forks() -> None:
    with child("import os, time\nwhile True:\n os.fork() if len(os.listdir('/proc')) < 1 else time.sleep(0.01)") as started:
        eventually(lambda: process.in_session(started.pid) == {started.pid})
        assert process.kill_session(started.pid) == ()
        assert process.in_session(started.pid) == set()


def test_a_signal_reaches_only_the_process_that_was_meant() -> None:
    with child("import time; time.sleep(600)") as started:
        me = process.identify(started.pid)
        assert me
        assert not process.signal_process(process.ProcessId(me.pid, me.start - 1, me.boot), signal.SIGKILL)
        assert not process.wait_gone(me, 0.05)
        assert process.signal_process(me, signal.SIGKILL)
        assert process.wait_gone(me, 5)
        started.wait(5)
        assert not process.signal_process(me, signal.SIGKILL)
        assert process.wait_gone(me, 0)


def test_what_was_spawned_is_detached_and_is_reaped_when_it_ends(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid(), sorted(os.environ)[:1], sys.stdin.read(), flush=True)"
    with open(tmp_path / "inherited", "w") as file:
        os.set_inheritable(file.fileno(), True)
        spawned = process.spawn_detached([sys.executable, "-c", code + f"\nos.fstat({file.fileno()})"], env={"A": "1"},
                                         log=tmp_path / "log", cwd=tmp_path)
        assert process.wait_gone(spawned, 10)
    eventually(lambda: process.read_stat(spawned.pid) is None)
    said = (tmp_path / "log").read_text()
    assert said.startswith("True ['A'] \n")
    assert "Bad file descriptor" in said
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_program_that_cannot_be_spawned_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match="cannot start /no/such/program: No such file"):
        process.spawn_detached(["/no/such/program"], env={}, log=tmp_path / "log", cwd=tmp_path)


def test_descendants_are_found_through_all_generations() -> None:
    sleeper = "import time; time.sleep(600)"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {sleeper!r}])\n{sleeper}"
    with child(code) as started:
        grandchildren = eventually(lambda: process.subtree(started.pid))
        assert grandchildren <= process.subtree(os.getpid())
        assert started.pid in process.subtree(os.getpid())
        assert process.kill_until_gone(lambda: process.subtree(started.pid), timeout_s=5) == ()


def test_who_does_not_die_is_named() -> None:
    began = time.monotonic()
    assert process.kill_until_gone(lambda: [2**22 - 1], timeout_s=0.1) == (2**22 - 1,)
    assert time.monotonic() - began < 2
