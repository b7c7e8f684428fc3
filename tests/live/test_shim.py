"""A shim owns its engine: nothing of it survives an end that was not meant to, and nothing is lost of why it ended."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib.host.process import command_of, identify, kill_marked, marked, send, subtree, wait_gone
from lib.model.fleet import FaultClass, ShardState
from lib.model.rundir import EXIT, SHIM, SHIM_LOG
from tests.eventually import eventually
from tests.live.shims import make_order, python, running, spawn_shim

SLEEPER = "import time; print('here', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
WORKERS = f"""
import subprocess, sys, time
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
print("front here", flush=True)
time.sleep(600)
"""
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
print("daemon is away", flush=True)
time.sleep(600)
"""


def test_a_worker_is_ready_while_its_process_lives_and_ends_on_request(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(SLEEPER), order=make_order(rank=1)) as shim:
        state = shim.wait_for(ShardState.READY)
        assert identify(state.engine_pid)
        assert os.getsid(state.engine_pid) == state.engine_pid
        shim.signal()
        ended = shim.wait_exit()
        assert ended.requested
        assert ended.exit_code == -signal.SIGTERM
        assert not identify(state.engine_pid)


def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace_and_not_before(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(DEAF), order=make_order(rank=1, grace_s=0.6)) as shim:
        eventually(lambda: "here" in shim.log)
        began = time.monotonic()
        shim.signal()
        ended = shim.wait_exit()
        assert 0.6 <= time.monotonic() - began < 5
        assert ended.requested
        assert ended.exit_code == -signal.SIGKILL


def test_workers_of_a_killed_front_process_are_killed_too_and_it_counts_as_a_failure(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(WORKERS), order=make_order(rank=1)) as shim:
        front = shim.wait_for(ShardState.READY).engine_pid
        eventually(lambda: len(subtree(front)) == 2)
        assert len(marked(shim.spec.marker)) == 3
        os.kill(front, signal.SIGKILL)
        ended = shim.wait_exit()
        assert not marked(shim.spec.marker)
        assert not ended.requested
        assert ended.exit_code == -signal.SIGKILL
        assert ended.fault is FaultClass.TRANSIENT


def test_a_wrapper_script_that_does_not_exec_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "engine.sh"
    (tmp_path / "engine.py").write_text(SLEEPER)
    script.write_text(f"#!/bin/sh\n{sys.executable} {tmp_path}/engine.py\necho the engine returned\n")
    script.chmod(0o755)
    with running(tmp_path / "s", [str(script)], order=make_order(rank=1)) as shim:
        shell = shim.wait_for(ShardState.READY).engine_pid
        (engine,) = eventually(lambda: subtree(shell))
        eventually(lambda: "here" in shim.log)
        shim.signal()
        assert shim.wait_exit().requested
        assert not identify(engine)
        assert not identify(shell)


def test_a_daemon_that_left_session_and_environment_behind_is_found_and_killed(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(DAEMON), order=make_order(rank=1)) as shim:
        shim.wait_for(ShardState.READY)
        eventually(lambda: "away" in shim.log)
        (daemon,) = eventually(lambda: [pid for pid in subtree(shim.process.pid) if command_of(pid).endswith("sleep(600)")
                                        and not marked(shim.spec.marker) & {pid}])
        shim.signal()
        shim.wait_exit()
        assert not identify(daemon)


def test_a_killed_shim_takes_its_engine_along_and_the_marker_finds_the_rest(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(WORKERS), order=make_order(rank=1)) as shim:
        front = shim.wait_for(ShardState.READY).engine_pid
        eventually(lambda: shim.log.count("here") == 3)        # two processes may write into the same line
        workers = subtree(front)
        shim.signal(signal.SIGKILL)
        eventually(lambda: not identify(front))
        assert marked(shim.spec.marker) == workers
        assert kill_marked(shim.spec.marker) == ()
        assert not any(identify(pid) for pid in workers)
        assert not (shim.run_dir / EXIT).exists()


def test_an_exit_with_status_0_that_nobody_asked_for_is_a_failure(tmp_path: Path) -> None:
    with running(tmp_path / "s", python("print('done, bye')"), order=make_order(rank=1)) as shim:
        ended = shim.wait_exit()
        assert not ended.requested
        assert ended.exit_code == 0
        assert ended.log_tail == ("done, bye",)
        assert "done, bye" in ended.detail
        assert shim.state
        assert shim.state.state is ShardState.FAILED


@pytest.mark.parametrize("code, exit_code, words", [
    ("import sys; print('usage: wrong flag', file=sys.stderr); sys.exit(3)", 3, "wrong flag"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, "SIGSEGV"),
    ("import os; os.abort()", -signal.SIGABRT, "SIGABRT"),
])
def test_the_reason_of_an_end_is_kept(tmp_path: Path, code: str, exit_code: int, words: str) -> None:
    with running(tmp_path / "s", python(code), order=make_order(rank=1)) as shim:
        ended = shim.wait_exit()
        assert ended.exit_code == exit_code
        assert words in ended.detail


def test_a_program_that_cannot_be_started_is_a_configuration_failure_with_its_reason(tmp_path: Path) -> None:
    plain = tmp_path / "not-executable"
    plain.write_text("text")
    for number, (program, reason) in enumerate([("/no/such/engine", "No such file"), (str(plain), "Permission denied")]):
        with running(tmp_path / str(number), [program], order=make_order(rank=1)) as shim:
            ended = shim.wait_exit()
            assert ended.fault is FaultClass.CONFIGURATION
            assert ended.exit_code is None
            assert reason in ended.detail
            assert program in ended.detail


def test_a_shard_is_never_started_twice_in_one_run_directory(tmp_path: Path) -> None:
    with running(tmp_path / "s", python(SLEEPER), order=make_order(rank=1)) as shim:
        before = shim.wait_for(ShardState.READY)
        record = (shim.run_dir / SHIM).read_text()
        second = spawn_shim(shim.run_dir, tmp_path / "second.log")
        assert wait_gone(second, 10)
        assert "started before" in (tmp_path / "second.log").read_text()
        assert (shim.run_dir / SHIM).read_text() == record
        assert identify(before.engine_pid)
        assert len(marked(shim.spec.marker)) == 1


def test_the_shim_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """An agent is killed; its shim and its engine go on and can be stopped by whoever comes next."""
    with running(tmp_path / "s", python(SLEEPER), order=make_order(rank=1)) as outer:
        outer.wait_for(ShardState.READY)
        assert os.getsid(outer.process.pid) == outer.process.pid != os.getsid(0)
    starter = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {os.getcwd()!r})
from tests.live.shims import *
with running(Path({str(tmp_path / 'inner')!r}), python({SLEEPER!r}), order=make_order(rank=1)) as shim:
    shim.wait_for(ShardState.READY)
    print(shim.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -9, done.stderr
    shim = identify(int(done.stdout))
    assert shim
    (engine,) = marked(outer.spec.marker)
    send({shim.pid}, signal.SIGTERM)
    assert wait_gone(shim, 10)
    assert not identify(engine)
    assert (tmp_path / "inner" / EXIT).exists()


def test_the_engine_inherits_nothing_but_what_the_specification_names(tmp_path: Path) -> None:
    code = "import os, time; print(sorted(os.environ), os.listdir('/proc/self/fd'), os.read(0, 9), flush=True); time.sleep(600)"
    env = {"ONLY": "this", "LC_ALL": "C.UTF-8"}
    with running(tmp_path / "s", python(code), order=make_order(rank=1), env=env) as shim:
        said = eventually(lambda: shim.log)
        # the fourth descriptor is the one that lists the directory
        assert said == "['LC_ALL', 'LLMGW_SHARD', 'ONLY', 'PATH', 'PYTHONUNBUFFERED'] ['0', '1', '2', '3'] b''\n"


def test_each_change_of_state_is_told_to_the_agent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "notify"))
        agent.settimeout(10)
        with running(tmp_path / "s", python(SLEEPER), order=make_order(rank=1), notify=str(tmp_path / "notify")) as shim:
            assert agent.recv(100) == b"r1.7.1"
            assert shim.state
            shim.signal()
            shim.wait_exit()
            assert agent.recv(100) == b"r1.7.1"


def test_an_engine_that_prints_50_mb_leaves_a_bounded_private_log_and_is_never_stopped_by_it(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(50): sys.stdout.write(('x' * 99 + '\\n') * 10000)\nprint('the end'); sys.exit(4)"
    with running(tmp_path / "s", python(code), order=make_order(rank=1), log_bytes=1_000_000) as shim:
        ended = shim.wait_exit(30)
        assert ended.exit_code == 4
        assert ended.log_tail[-1] == "the end"
        sizes = {name: (shim.run_dir / name).stat() for name in ("log", "log.1")}
        assert all(0 < entry.st_size <= 1_000_000 for entry in sizes.values())
        assert all(entry.st_mode & 0o777 == 0o600 for entry in sizes.values())


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a small file system")
def test_a_full_disk_stops_neither_the_engine_nor_its_end(tmp_path: Path) -> None:
    run_dir = tmp_path / "small"
    run_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(run_dir)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a tmpfs here")
    flag = tmp_path / "finished"
    code = "import sys, time\nfor i in range(20): sys.stdout.write(('x' * 99 + '\\n') * 10000)\n" \
           f"open({str(flag)!r}, 'w'); time.sleep(600)"
    try:
        with running(run_dir, python(code), order=make_order(rank=1), log_bytes=10_000_000) as shim:
            eventually(flag.exists, 20)
            assert "No space left" in shim.own_log or not shim.own_log      # its own log lies on the same disk
            (run_dir / "log").unlink()
            shim.signal()
            assert shim.wait_exit().requested
    finally:
        subprocess.run(["umount", "-l", str(run_dir)], check=True)


def test_a_specification_that_cannot_be_read_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"half":')
    process = spawn_shim(tmp_path, tmp_path / SHIM_LOG)
    assert wait_gone(process, 10)
    assert "spec.json:1: is not JSON" in (tmp_path / SHIM_LOG).read_text()
    assert not (tmp_path / SHIM).exists()
