"""Running a command: what it said, why it failed, and never longer than allowed."""

import time
from pathlib import Path

import pytest

from lib.base.errors import LlmgwError, NotFound
from lib.host.run import Overdue, attempt, run
from tests.eventually import eventually


def test_the_output_is_returned_and_the_input_was_given() -> None:
    assert run(["cat"], text="hello") == "hello"
    assert run(["sh", "-c", "cat >/dev/null; echo done"], text="x" * 1_000_000) == "done\n"


def test_nothing_is_inherited_but_the_path() -> None:
    assert sorted(line.split("=")[0] for line in run(["env"], env={"MORE": "1"}).splitlines()) == ["LANG", "MORE", "PATH"]
    assert run(["cat"]) == ""              # standard input is empty, not ours


def test_a_failure_names_the_command_its_status_and_what_it_said() -> None:
    with pytest.raises(LlmgwError, match=r"sh -c 'echo wrong >&2; exit 3': exit 3: wrong"):
        run(["sh", "-c", "echo wrong >&2; exit 3"])
    done = attempt(["sh", "-c", "echo out; kill -9 $$"])
    assert (done.status, done.stdout) == (-9, "out\n")


def test_a_missing_program_is_not_found_and_one_that_may_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="/no/such/program not found"):
        run(["/no/such/program"])
    (tmp_path / "plain").write_text("text")
    with pytest.raises(LlmgwError, match="Permission denied"):
        run([tmp_path / "plain"])


def test_a_program_past_its_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Overdue, match=r"still running after 0\.3 s") as err:
        run(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; wait"], timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert not err.value.still_there()
    eventually(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists())


def test_a_daemon_that_keeps_the_output_open_does_not_hold_us_for_longer_than_the_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(Overdue):
        run(["sh", "-c", "sleep 3 & echo said"], timeout_s=0.3)
    assert time.monotonic() - began < 2


def test_endless_output_is_cut_off() -> None:
    with pytest.raises(LlmgwError, match="printed more than"):
        run(["yes"], timeout_s=30)


def test_a_program_with_a_grace_is_asked_to_end_and_heard_out(tmp_path: Path) -> None:
    tidy = f"trap 'sleep 0.2; echo tidy > {tmp_path}/done; exit 1' TERM; sleep 30 & wait"
    with pytest.raises(Overdue) as err:
        attempt(["sh", "-c", tidy], timeout_s=0.3, grace_s=10)
    assert (tmp_path / "done").read_text() == "tidy\n"
    assert not err.value.still_there()


def test_a_program_with_a_grace_is_never_killed(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; sleep 1.5; echo end > {tmp_path}/done"
    with pytest.raises(Overdue) as err:
        attempt(["sh", "-c", stubborn], timeout_s=0.2, grace_s=0.2)
    assert err.value.still_there()
    eventually(lambda: not err.value.still_there())
    assert (tmp_path / "done").read_text() == "end\n"
