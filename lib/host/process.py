"""Processes of this machine: who one is beyond its pid, who belongs together, and how to be rid of them for certain.

Room: host. A pid alone identifies nobody, because pids are used again: a process is (pid, start time, boot id). Everything is
read from /proc, and each read may fail because the process has just gone.
"""

import ctypes
import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ZOMBIE, DEAD = "Z", "X"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here. `start` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def alive(self) -> bool:
        return self.state not in (ZOMBIE, DEAD)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process and no other, ever."""

    pid: int
    start: int
    boot: str


def parse_stat(text: str) -> Stat:
    """One line of /proc/PID/stat. The name in it may hold blanks and parentheses, so the fields count from the last one."""
    pid, rest = text.split(" (", 1)
    fields = rest.rsplit(")", 1)[1].split()
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """The process with this pid at this moment, or None."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """A random id that the kernel makes at each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> ProcessId | None:
    """Who has this pid now, or None where nobody that is alive has it."""
    stat = read_stat(pid)
    return ProcessId(pid, stat.start, boot_id()) if stat and stat.alive else None


def is_same(pid: int, start: int, boot: str) -> bool:
    """Whether exactly this process is alive: same pid, same start time, same boot."""
    return pid > 0 and identify(pid) == ProcessId(pid, start, boot)


def argv_of(pid: int) -> list[str]:
    """The command line of a process; empty for one that has gone, and for the kernel's own."""
    with suppress(OSError):
        if line := Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace"):
            return line.rstrip("\0").split("\0")
    return []


def command_of(pid: int) -> str:
    """The command line of a process as one text, or its short name, or an empty string where it has gone."""
    if argv := argv_of(pid):
        return " ".join(argv)
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def all_processes() -> Iterator[Stat]:
    """Every process of the machine that could be read, zombies included."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))):
            yield stat


def subtree(root: int) -> set[int]:
    """The living descendants of `root`, without itself."""
    children: dict[int, list[Stat]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent, []).append(stat)
    found: set[int] = set()
    pending = [root]
    while pending:
        for stat in children.get(pending.pop(), ()):
            pending.append(stat.pid)
            if stat.alive:
                found.add(stat.pid)
    return found


def in_session(session: int) -> set[int]:
    """The living processes of a session."""
    return {stat.pid for stat in all_processes() if stat.session == session and stat.alive}


def marked(marker: str) -> set[int]:
    """The living processes whose environment holds exactly this `NAME=value` (as it was when they were started)."""
    entry = b"\0" + marker.encode() + b"\0"
    return {stat.pid for stat in all_processes() if stat.alive and entry in b"\0" + _environment(stat.pid)}


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:                        # gone, or another user's
        return b""


def kill_marked(marker: str, *, timeout_s: float = 5.0) -> tuple[int, ...]:
    """SIGKILL every process that carries `marker`, until none is left. The pids that would not die in `timeout_s`, else ()."""
    return kill_until_gone(lambda: marked(marker), timeout_s=timeout_s)


def kill_session(session: int, *, timeout_s: float = 5.0) -> tuple[int, ...]:
    """SIGKILL every process of a session, until none is left. The pids that would not die in `timeout_s`, else ()."""
    return kill_until_gone(lambda: in_session(session), timeout_s=timeout_s)


def kill_until_gone(find: Callable[[], Collection[int]], *, timeout_s: float) -> tuple[int, ...]:
    """SIGKILL what `find` finds, again and again (a tree may fork while it is being killed)."""
    deadline = time.monotonic() + timeout_s
    while left := find():
        if time.monotonic() > deadline:
            return tuple(sorted(left))
        send(left, signal.SIGKILL)
        time.sleep(0.02)
    return ()


def send(pids: Collection[int], signum: int) -> None:
    """A signal to each of `pids` that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


@contextmanager
def _handle(process: ProcessId) -> Iterator[int]:
    """A pidfd of exactly this process, or -1 where it has gone; its pid may be somebody else's by then."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        yield handle if identify(process.pid) == process else -1
    finally:
        os.close(handle)


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Wait until exactly this process has ended; False where it has not in `timeout_s`."""
    with _handle(process) as handle:
        if handle < 0:
            return True
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))


def signal_process(process: ProcessId, signum: int) -> bool:
    """A signal to exactly this process; False where it has gone. Never hits another that was given its pid."""
    with _handle(process) as handle, suppress(ProcessLookupError):
        if handle >= 0:
            signal.pidfd_send_signal(handle, signum)
            return True
    return False


def spawn_detached(argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> ProcessId:
    """Start a process that outlives this one: own session, no input, output appended to `log`, nothing else inherited."""
    try:
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            child = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd,
                                     env=dict(env), start_new_session=True)
    except OSError as err:
        raise LlmgwError(f"cannot start {argv[0]}: {err.strerror}") from err
    stat = read_stat(child.pid)            # ours and not yet waited for: the pid cannot belong to anybody else
    threading.Thread(target=child.wait, name=f"reaper of {child.pid}", daemon=True).start()
    return ProcessId(child.pid, stat.start if stat else 0, boot_id())


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process instead of init's, daemons included."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise LlmgwError(f"cannot become a child subreaper: {os.strerror(ctypes.get_errno())}")


def fork_bound(argv: Sequence[str], *, env: Mapping[str, str], output: int, cwd: Path, oom_score: int) -> int:
    """Start `argv` in its own session, bound to this process: the kernel kills it when the thread that calls this ends.

    Call it from the main thread of a process without other threads. OSError of the exec is raised here. Returns the pid,
    which the caller has to wait for.
    """
    parent = os.getpid()
    reader, writer = os.pipe()             # close-on-exec: end of file means that the exec has worked
    pid = os.fork()
    if pid == 0:
        _become(argv, env, output, cwd, oom_score, parent, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)), argv[0])
    return pid


def _become(argv: Sequence[str], env: Mapping[str, str], output: int, cwd: Path, oom_score: int, parent: int,
            writer: int) -> None:
    """The child's side of `fork_bound`: never returns."""
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:         # it died before the line above could bind us to it
            os._exit(126)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(oom_score))
        os.chdir(cwd)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        if writer != 3:
            writer = os.dup2(writer, 3, inheritable=False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        os.execve(argv[0], list(argv), dict(env))
    except OSError as err:
        os.write(writer, str(err.errno).encode())
    except ValueError:                     # a zero byte in a word, '=' in a variable's name
        os.write(writer, str(errno.EINVAL).encode())
    finally:
        os._exit(127)
