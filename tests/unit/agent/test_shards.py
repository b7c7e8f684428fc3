"""Run directories: what they prove of a shard, whoever wrote them and whenever."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from lib.agent.shards import FAILED_KEPT, Shards, read_shard
from lib.base.files import write_json
from lib.host.process import boot_id, identify, marked
from lib.model.codec import encode
from lib.model.fleet import FaultClass, ShardState
from lib.model.rundir import EXIT, SHIM, SPEC, STATE, ExitRecord, ShardSpec, ShimRecord, StateRecord
from lib.model.wire import ShardOrder
from tests.eventually import eventually
from tests.programs import RUN

NONCE = os.environ[RUN][:16]                # by it a shard is told from one of another run of the tests


def spec(replica: str = "chat-1", counter: int = 3) -> ShardSpec:
    order = ShardOrder(replica, counter, NONCE, 0, 1, True, "chat", "m", "sim", "", ("m",), port=20001)
    return ShardSpec(order, "node01", "demo", ("/bin/true",))


def run_directory(parent: Path, *, shim: int = 0, state: StateRecord | None = None, ended: ExitRecord | None = None,
                  of: ShardSpec | None = None) -> Path:
    of = of or spec()
    directory = parent / of.name
    directory.mkdir()
    write_json(directory / SPEC, encode(of))
    if shim:
        found = identify(shim)
        write_json(directory / SHIM, encode(ShimRecord(shim, found.start if found else 1, boot_id())))
    if state:
        write_json(directory / STATE, encode(state))
    if ended:
        write_json(directory / EXIT, encode(ended))
    return directory


def test_a_shard_with_a_live_shim_is_as_its_state_says(tmp_path: Path) -> None:
    state = StateRecord(ShardState.READY, 0.0, engine_pid=77, engine_since_mono=time.monotonic() - 5)
    shard = read_shard(run_directory(tmp_path, shim=os.getpid(), state=state))
    report = shard.report(time.monotonic())
    assert not shard.orphaned
    assert (report.state, report.pid, report.port) == (ShardState.READY, 77, 20001)
    assert 4.5 < report.age_s < 30


def test_a_pid_that_was_given_to_another_process_is_not_our_shim(tmp_path: Path) -> None:
    directory = run_directory(tmp_path, shim=os.getpid(), state=StateRecord(ShardState.READY, 0.0))
    record = json.loads((directory / SHIM).read_text())
    write_json(directory / SHIM, record | {"start": record["start"] - 1})
    shard = read_shard(directory)
    assert shard.orphaned
    assert shard.report(0.0).state is ShardState.FAILED


def test_a_failure_is_reported_with_its_reason_and_a_requested_end_is_not(tmp_path: Path) -> None:
    failed = ExitRecord(False, "exit status 1: no such file", 1, FaultClass.CONFIGURATION, log_tail=("no such file",))
    report = read_shard(run_directory(tmp_path, ended=failed)).report(0.0)
    assert (report.state, report.fault, report.exit_code) == (ShardState.FAILED, FaultClass.CONFIGURATION, 1)
    assert report.log_tail == ("no such file",)
    asked = read_shard(run_directory(tmp_path, ended=ExitRecord(True, "stopped"), of=spec(counter=4)))
    assert asked.gone


def test_a_shim_that_is_just_starting_is_not_yet_an_orphan(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    assert read_shard(directory).young
    long_ago = time.time() - 3600
    os.utime(directory / SPEC, (long_ago, long_ago))
    assert read_shard(directory).orphaned


def test_a_damaged_run_directory_is_left_alone_and_does_not_hide_the_others(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = Shards(tmp_path, ["unused"])
    (run_directory(tmp_path) / SPEC).write_text("{")
    good = run_directory(tmp_path, of=spec("other-1"), shim=os.getpid())
    assert [shard.directory for shard in shards.look()] == [good]
    shards.look()
    assert caplog.text.count("damaged and left alone") == 1


def test_what_a_dead_shim_left_behind_is_killed_and_written_down(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "shards", [sys.executable, "-c", "pass"])
    directory = run_directory(tmp_path / "shards", shim=0)
    write_json(directory / SHIM, encode(ShimRecord(1, 1, boot_id())))
    name, _, value = spec().marker.partition("=")
    left = os.spawnvpe(os.P_NOWAIT, "sleep", ["sleep", "600"], {**os.environ, name: value})
    eventually(lambda: marked(spec().marker) == {left})         # between fork and exec it has another's environment
    shards.clear(read_shard(directory))
    assert os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]) == -9
    assert "its shim died" in read_shard(directory).report(0.0).detail


def test_a_start_makes_the_run_directory_and_then_the_shim(tmp_path: Path) -> None:
    script = "import os, sys; open(os.path.join(sys.argv[1], 'seen'), 'w').write(str(os.listdir(sys.argv[1])))"
    Shards(tmp_path / "shards", [sys.executable, "-c", script]).start(spec())
    directory = tmp_path / "shards" / spec().name
    assert SPEC in eventually(lambda: (directory / "seen").read_text())
    assert directory.stat().st_mode & 0o777 == 0o700


def test_run_directories_of_failed_shards_are_kept_for_a_while(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "shards", ["unused"])
    for counter in range(FAILED_KEPT + 3):
        shards.forget(read_shard(run_directory(tmp_path / "shards", of=spec(counter=counter), ended=ExitRecord(False, "died"))))
    shards.forget(read_shard(run_directory(tmp_path / "shards", of=spec(counter=99), ended=ExitRecord(True, "stopped"))))
    assert len(list((tmp_path / "ended").iterdir())) == FAILED_KEPT
    assert not list((tmp_path / "shards").iterdir())
    assert not (tmp_path / "ended" / spec(counter=99).name).exists()
