"""The start-up cache: private, whole or not there, never believed when somebody else could have written it, and never needed."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.live.pyz import PYTHON, run, start
from tests.programs import ROOT

ROLE = "probe"
PROBE = """
import os, sys
def main() -> int:
    print(os.path.dirname(__file__), flush=True)
    if sys.argv[1:]:
        sys.stdin.readline()
        from lib import late
        print(late.WORD)
    return 9
"""


def archive(path: Path, role: str, text: str) -> Path:
    """A program with the real start-up code around a role of a few lines: one that tells where it runs from."""
    main = (ROOT / "packaging" / "main_template.py").read_text().replace("@ROLE@", role).replace("@DIGEST@", "1")
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"__main__.py": main, "llmgw_boot.py": (ROOT / "packaging" / "boot.py").read_text(),
                              f"{role}.py": text, "lib/__init__.py": "", "lib/late.py": "WORD = 'still here'"}.items():
            file.writestr(name, content)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return archive(tmp_path / "bin" / "probe.pyz", ROLE, PROBE)


def runs_from(program: Path, **env: str) -> str:
    """The directory (or archive) that a start of the program imports its role from."""
    done = run(program, env=env)
    assert (done.stderr, done.returncode) == ("", 9)
    return done.stdout.strip()


def homes(top: Path) -> list[Path]:
    return sorted(path for path in top.glob(f"{ROLE}-*") if path.is_dir())


def test_the_first_start_compiles_into_a_private_directory_and_later_ones_run_from_it(program: Path, tmp_path: Path) -> None:
    homed = runs_from(program, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    [home] = homes(tmp_path / "xdg" / "llmgw")
    assert homed == str(home)
    assert [path.stat().st_mode & 0o777 for path in (home, home.parent)] == [0o700, 0o700]
    stamp = (home / "sizes").stat().st_mtime_ns
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path / "xdg")) == str(home)
    assert (home / "sizes").stat().st_mtime_ns == stamp


def test_home_and_systemd_say_where_the_cache_is(program: Path, tmp_path: Path) -> None:
    assert runs_from(program, HOME=str(tmp_path / "home")).startswith(str(tmp_path / "home/.cache/llmgw/"))
    service = tmp_path / "service"
    assert runs_from(program, HOME=str(tmp_path / "home"), CACHE_DIRECTORY=f"{service}:/other").startswith(f"{service}/{ROLE}-")


def test_where_no_cache_can_be_written_it_runs_from_the_archive(program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("/proc/nothing", str(tmp_path / "file")):
        assert runs_from(program, XDG_CACHE_HOME=place) == str(program)


def test_a_link_in_place_of_the_cache_is_not_followed(program: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "llmgw").symlink_to(elsewhere)
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(program)
    assert list(elsewhere.iterdir()) == []


def test_a_cache_that_others_may_write_is_not_believed(program: Path, tmp_path: Path) -> None:
    (tmp_path / "llmgw").mkdir()
    (tmp_path / "llmgw").chmod(0o777)
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(program)
    assert list((tmp_path / "llmgw").iterdir()) == []


def test_a_directory_that_somebody_else_put_there_is_not_believed(program: Path, tmp_path: Path) -> None:
    runs_from(program, XDG_CACHE_HOME=str(tmp_path))
    [home] = homes(tmp_path / "llmgw")
    home.chmod(0o755)
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(program)
    home.chmod(0o700)
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(home)
    if os.geteuid() == 0:
        os.chown(home, 65534, 65534)
        assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(program)
    parent = home.rename(tmp_path / "kept").parent
    (parent / "llmgw" / home.name).symlink_to(tmp_path / "kept")
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(program)


def test_a_cache_below_a_directory_that_others_may_write_is_not_used(program: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert runs_from(program, XDG_CACHE_HOME=str(shared)) == str(program)
    shared.chmod(0o1777)            # sticky, like /tmp: others cannot replace what is ours
    assert runs_from(program, XDG_CACHE_HOME=str(shared)).startswith(str(shared / "llmgw"))


def test_many_first_starts_at_once_all_work_and_leave_one_cache(dist: Path, tmp_path: Path) -> None:
    processes = [start(dist / "llmgw-onboard-node.pyz", "version", env={"XDG_CACHE_HOME": str(tmp_path)}) for _ in range(6)]
    results = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert {code for _, code in results} == {0}
    [home] = (tmp_path / "llmgw").glob("llmgw_onboard-*")
    assert {path.name for path in (tmp_path / "llmgw").iterdir()} == {home.name, "lock"}


@pytest.mark.parametrize("victim", ["probe.py", "__pycache__/probe.cpython-*.pyc", "sizes"])
@pytest.mark.parametrize("harm", ["emptied", "gone"])
def test_a_damaged_cache_is_made_anew(victim: str, harm: str, program: Path, tmp_path: Path) -> None:
    runs_from(program, XDG_CACHE_HOME=str(tmp_path))
    [home] = homes(tmp_path / "llmgw")
    file = next(home.glob(victim))
    size = file.stat().st_size
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(b"")
    assert runs_from(program, XDG_CACHE_HOME=str(tmp_path)) == str(home)
    assert next(home.glob(victim)).stat().st_size == size
    assert {path.name for path in (tmp_path / "llmgw").iterdir()} == {home.name, "lock"}


def test_a_first_start_that_was_killed_leaves_nothing_that_lasts(program: Path, tmp_path: Path) -> None:
    (tmp_path / "llmgw").mkdir(mode=0o700)
    (tmp_path / "llmgw" / ".new-killed").mkdir()
    runs_from(program, XDG_CACHE_HOME=str(tmp_path))
    assert {path.name for path in (tmp_path / "llmgw").iterdir()} == {homes(tmp_path / "llmgw")[0].name, "lock"}


def test_old_versions_go_but_for_the_last_three_and_those_in_use(program: Path, tmp_path: Path) -> None:
    top = tmp_path / "llmgw"
    top.mkdir(mode=0o700)
    for age in range(6):
        (top / f"{ROLE}-{age}").mkdir(mode=0o700)
        os.utime(top / f"{ROLE}-{age}", (time.time() - 1000 * age - 1000,) * 2)
    (top / "llmgw_agent-1").mkdir(mode=0o700)
    in_use = os.open(top / f"{ROLE}-5", os.O_RDONLY)
    fcntl.flock(in_use, fcntl.LOCK_SH)
    home = runs_from(program, XDG_CACHE_HOME=str(tmp_path))
    os.close(in_use)
    kept = {path.name for path in top.iterdir()}
    assert kept == {Path(home).name, "lock", "llmgw_agent-1", *(f"{ROLE}-{age}" for age in (0, 1, 2, 5))}


def test_replacing_a_program_under_a_running_process_does_not_break_it(program: Path, tmp_path: Path) -> None:
    with start(program, "late", env={"XDG_CACHE_HOME": str(tmp_path)}) as process:
        assert process.stdout
        assert process.stdout.readline().startswith(str(tmp_path / "llmgw" / "probe-1-"))
        program.write_bytes(b"something else entirely")
        out, err = process.communicate("\n", timeout=30)
    assert (out, err, process.returncode) == ("still here\n", "", 9)


def test_a_running_process_keeps_its_cache_from_being_pruned(program: Path, tmp_path: Path) -> None:
    with start(program, "late", env={"XDG_CACHE_HOME": str(tmp_path)}) as process:
        [home] = eventually(lambda: list((tmp_path / "llmgw").glob("probe-1-*")))
        handle = os.open(home, os.O_RDONLY)

        def locked() -> bool:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(handle, fcntl.LOCK_UN)
            return False

        assert eventually(locked)
        process.communicate("\n", timeout=30)
        assert not locked()
        os.close(handle)


def test_the_authority_uses_the_wheels_it_carries_from_the_archive_and_from_the_cache(dist: Path, tmp_path: Path) -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from lib.pki.native import provide; provide(); provide()\n"
            "from cryptography.hazmat.primitives.asymmetric import ec; ec.generate_private_key(ec.SECP256R1())\n"
            "import cryptography; print(cryptography.__file__)")
    program = dist / "llmgw-ctl.pyz"
    done = run("-c", code, program, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "llmgw-native-"))
    assert not list(tmp_path.glob("llmgw-native-*")), "what was unpacked for one run goes with it"

    run(program, "version", env={"XDG_CACHE_HOME": str(tmp_path)})
    [home] = (tmp_path / "llmgw").glob("llmgw_ctl-*")
    for harm in (False, True):
        if harm:
            next(home.glob("carried/native-*/cryptography/__init__.py")).write_text("")
        done = run("-c", code, home)
        assert done.stdout.startswith(str(home / "carried" / "native-")), done.stderr
    shutil.rmtree(home)


def test_a_python_without_fitting_wheels_is_told_so(dist: Path) -> None:
    code = ("import sys, platform; sys.path.insert(0, sys.argv[1]); platform.machine = lambda: 'riscv64'\n"
            "from lib.pki.native import provide; provide()")
    done = run("-c", code, dist / "llmgw-ctl.pyz")
    assert "this file carries no cryptography for cpython" in done.stderr
    assert "riscv64" in done.stderr


def test_packages_of_the_machine_are_not_found_however_it_is_started(tmp_path: Path) -> None:
    role = "import sys\ndef main() -> int:\n    print(*sys.path[1:], sep='\\n')\n    return 0\n"
    program, env = archive(tmp_path / "paths.pyz", "paths", role), {"XDG_CACHE_HOME": str(tmp_path)}
    for words in ([PYTHON], [PYTHON, "-IS"]):
        done = subprocess.run([*words, program], env=env, capture_output=True, text=True, check=True)
        assert not [line for line in done.stdout.splitlines() if "-packages" in line or line == str(program)]


def test_the_shebang_starts_it(dist: Path, tmp_path: Path) -> None:
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([dist / "llmgw-provision-node.pyz", "version"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
