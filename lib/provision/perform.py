"""One run from beginning to end: look, refuse or make, compare, start, wait; and after a failure remove what it made.

Room: provision. The order is the promise: nothing is changed before everything was checked, nothing is removed that this run did
not make, and a machine that merely does not answer is kept, so that somebody can look at it.
"""

import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, Refused
from lib.provision.arrival import await_arrival
from lib.provision.checks import faults_of, notes_of
from lib.provision.facts import Facts, gather
from lib.provision.image import Image
from lib.provision.keys import Keys
from lib.provision.plan import CHANGE_S, CREATE_S, Ground, Mark, Plan, make_plan, render_onboarding, render_plan, start_timeout_s
from lib.provision.readback import differences, dump_differences
from lib.provision.undo import undo
from lib.provision.wish import Wish
from lib.remote import proxmox
from lib.remote.contact import Contact
from lib.remote.proxmox import CommandFailed

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what it is to make, what it found, how it will go about it."""

    wish: Wish
    facts: Facts
    keys: Keys
    image: Image
    mark: Mark
    directory: Path                        # its own, for the files that `qm` and `ssh` read
    plan: Plan

    @property
    def keys_file(self) -> Path:
        return self.directory / "keys"


class StepFailed(LlmgwError):
    """A step failed and what the run had made was dealt with; ends like the failure it reports."""

    def __init__(self, step: str, err: LlmgwError, undone: list[str]) -> None:
        super().__init__("\n".join([f"{step} failed: {err}", *undone]), hint=err.hint)
        self.exit_code = err.exit_code


def prepare(wish: Wish, keys_file: Path, say: Say) -> Run:
    """Look at everything; Refused with all that stands against it, before anything is touched."""
    facts = gather(wish, keys_file, say)
    faults = faults_of(wish, facts)
    if faults or isinstance(facts.keys, str) or isinstance(facts.image, str):
        raise Refused("\n".join(faults), hint="nothing was touched")
    for note in notes_of(wish, facts):
        say(f"note: {note}")
    say(f"public keys of {keys_file} that may log in to it as {wish.user}: {len(facts.keys.usable)}")
    mark = Mark(secrets.token_hex(16))
    directory = Path(os.environ.get("TMPDIR") or "/tmp") / f"llmgw-provision-{mark.run}"
    ground = Ground(facts.node, facts.release, facts.image_source, facts.image.size)
    return Run(wish, facts, facts.keys, facts.image, mark, directory, make_plan(wish, ground, mark, directory / "keys"))


def dry_run(run: Run) -> str:
    """The commands that `perform` would run, for a shell."""
    return render_plan(run.plan, run.keys_file, run.keys.usable)


def perform(run: Run, identity: str, timeout_s: float, say: Say) -> str:
    """Make the machine and wait for it; the command that comes next."""
    with _files(run):
        _make(run, say)
        wish = run.wish
        say(f"VM {wish.vmid} is as asked for and running; waiting up to {timeout_s:.0f} s for ssh at {wish.address}")
        contact = Contact(wish.user, wish.address, run.directory / "known_hosts", identity)
        try:
            host_key = await_arrival(contact, wish.name, timeout_s, say)
        except LlmgwError as err:
            raise StepFailed("waiting for the node", err, [_kept(wish)]) from None
        except KeyboardInterrupt:
            say(_kept(wish))
            raise
        say(f"{wish.name} is there" + (f"; its ssh host key, as seen from this host: {host_key}" if host_key else ""))
        return render_onboarding(wish, host_key)


def _kept(wish: Wish) -> str:
    vmid = wish.vmid
    return (f"VM {vmid} runs and was kept: qm terminal {vmid} shows its console, "
            f"qm stop {vmid} && qm destroy {vmid} --purge 1 removes it")


def _make(run: Run, say: Say) -> None:
    step, said = "creating the VM", ""
    try:
        say(f"creating VM {run.wish.vmid} ({run.wish.name}) from {run.facts.image_source}")
        said = proxmox.change(run.plan.create, timeout_s=CREATE_S)
        step = "growing the disk"
        if run.plan.resize:
            proxmox.change(run.plan.resize, timeout_s=CHANGE_S)
        step = "reading the configuration back"
        _compare(run)
        step = "starting the VM"
        say("starting it")
        proxmox.change(run.plan.start, timeout_s=start_timeout_s(run.wish))
    except LlmgwError as err:
        if isinstance(err, CommandFailed):
            said = said or err.output
        if not said.strip() and re.search(r"already exists", str(err)) and step == "creating the VM":
            raise Refused(f"{err}", hint="somebody was faster with this id; nothing of it was touched") from None
        raise StepFailed(step, err, _undone(run, said, say)) from None
    except KeyboardInterrupt:
        say(f"interrupted while {step}")
        for line in _undone(run, said, say):
            say(line)
        raise


def _compare(run: Run) -> None:
    """Read back what was stored and what the node will be told."""
    disk = max(run.wish.disk_mib << 20, run.image.size) if run.plan.resize else run.image.size
    config = proxmox.parse_config(proxmox.change(run.plan.read_back, timeout_s=CHANGE_S))
    wrong = differences(run.plan.create, config, run.keys, disk)
    wrong += dump_differences(proxmox.change(run.plan.dump, timeout_s=CHANGE_S), run.wish.name, run.keys)
    if wrong:
        raise LlmgwError("the VM is not what was asked for: " + "; ".join(wrong))


def _undone(run: Run, said: str, say: Say) -> list[str]:
    """Clean up, undisturbed by a second Ctrl-C."""
    before = {signum: signal.signal(signum, lambda *_: say("still cleaning up")) for signum in STOPPING}
    try:
        return undo(run.wish.vmid, run.facts.node, run.mark, run.wish.storage, run.facts.volumes, said)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _files(run: Run) -> Iterator[None]:
    """The run's directory with the keys in it, for as long as the run lasts. Whoever ends us by a signal interrupts us."""
    for signum in STOPPING:
        if signal.getsignal(signum) is not signal.SIG_IGN:          # under nohup a hang-up is nobody's wish
            signal.signal(signum, signal.default_int_handler)
    try:
        run.directory.mkdir(mode=0o700)
        run.keys_file.write_text(run.keys.text, encoding="ascii")
    except OSError as err:
        raise LlmgwError(f"cannot write {run.keys_file}: {err.strerror}", hint="TMPDIR names another place") from err
    try:
        yield
    finally:
        for name in ("keys", "known_hosts", "known_hosts.old"):
            with suppress(FileNotFoundError):
                (run.directory / name).unlink()
        with suppress(OSError):
            run.directory.rmdir()
