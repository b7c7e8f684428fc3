"""A certificate and its key that are renewed in good time, under the same two names, so that no crash leaves half of a pair.

Room: host. Both names become links into a directory beside the certificate, and one link in there is swapped: whoever reads the
two files gets a pair that belongs together, before, during and after. When to renew, and whom to ask, is the caller's.
"""

import hashlib
import logging
import os
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError
from lib.base.files import read_text, stamp, sync_directory, write_atomic
from lib.host.openssl import make_key_and_csr, read_dates

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "certificate.pem", "private.key"
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """When: both take notBefore and notAfter in Unix seconds, `due_at` also this certificate's place in the spread, in [0, 1)."""

    due_at: Callable[[float, float, float], float]
    retry_s: Callable[[float, float], float]


class PairFiles:
    """The two files as they are configured, wherever they really lie."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate, self.key = certificate, key
        self._home = certificate.with_name(f"{certificate.name}.d")
        self._current = self._home / "current"

    def stamp(self) -> tuple[int, ...]:
        """Something that differs once either file has been replaced, by us or by somebody else."""
        return (*stamp(self.certificate), *stamp(self.key))

    def draft(self) -> Path:
        """A new directory for a pair that is being made."""
        try:
            self._home.mkdir(mode=0o755, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix="pair-", dir=self._home))
            made.chmod(0o755)
        except OSError as err:
            raise LlmgwError(f"cannot write below {self._home}: {err.strerror}",
                             hint=f"to renew a certificate, this user must be able to write {self.certificate.parent}") from err
        return made

    def install(self, draft: Path) -> None:
        """Make the pair in `draft` the one that both names lead to."""
        try:
            self._take_over()
            before = self._current.resolve()
            self._point(self._current, draft)
            for old in self._home.glob("pair-*"):
                if old.resolve() not in (draft.resolve(), before):
                    shutil.rmtree(old, ignore_errors=True)
        except OSError as err:
            raise LlmgwError(f"cannot replace {self.certificate}: {err.strerror}") from err

    def _take_over(self) -> None:
        """Turn both names into links; a plain file that was put in place of one counts as the newest."""
        names = ((self.certificate, CERTIFICATE), (self.key, KEY))
        if all(path.is_symlink() and os.readlink(path) == self._relative(path, name) for path, name in names):
            return
        first = self.draft()
        write_atomic(first / CERTIFICATE, read_text(self.certificate), mode=0o644)
        write_atomic(first / KEY, read_text(self.key))
        self._point(self._current, first)
        for path, name in names:
            self._link(path, self._relative(path, name))

    def _relative(self, path: Path, name: str) -> str:
        return os.path.relpath(self._current / name, path.parent)

    def _point(self, link: Path, target: Path) -> None:
        sync_directory(target)
        self._link(link, target.name)

    @staticmethod
    def _link(link: Path, target: str) -> None:
        """Make `link` lead to `target`, replacing whatever has that name at one stroke."""
        beside = link.with_name(f".{link.name}.new")
        beside.unlink(missing_ok=True)
        os.symlink(target, beside)
        os.replace(beside, link)
        sync_directory(link.parent)


class Renewer:
    """Looks after one pair. `ask(csr) -> certificate`, both PEM; `id` is who it names."""

    def __init__(self, files: PairFiles, id: str, ask: Callable[[str], str], terms: Terms, *,
                 wall: Callable[[], float] = time.time) -> None:
        self._files, self._id, self._ask, self._terms, self._wall = files, id, ask, terms, wall
        self._stamp = files.stamp()
        self._judged: tuple[int, ...] = ()
        self._dates, self._fraction = (0.0, 0.0), 0.0
        self._not_before = 0.0             # monotonic: when the next try may be made
        self._trouble = ""

    def run(self, ended: threading.Event, changed: Callable[[], None]) -> None:
        """Until `ended`; `changed` is called after every replacement, so that new connections use the new pair."""
        while not ended.wait(LOOK_S):
            if self.look():
                changed()

    def look(self) -> bool:
        """Renew where it is time. True where the pair is another one than at the last look, whoever replaced it."""
        try:
            self._renew_if_due()
        except LlmgwError as err:
            self._say(err)
            self._not_before = time.monotonic() + self._terms.retry_s(*self._dates)
        before, self._stamp = self._stamp, self._files.stamp()
        return before != self._stamp

    def _renew_if_due(self) -> None:
        if time.monotonic() < self._not_before:
            return
        if self._judged != (now := self._files.stamp()):
            self._dates = read_dates(self._files.certificate)
            digest = hashlib.sha256(read_text(self._files.certificate).encode()).digest()
            self._judged, self._fraction = now, int.from_bytes(digest[:4], "big") / 2**32
        if self._wall() >= self._terms.due_at(*self._dates, self._fraction):
            self._renew()

    def _renew(self) -> None:
        draft = self._files.draft()
        try:
            make_key_and_csr(draft / KEY, draft / "request.csr", self._id)
            write_atomic(draft / CERTIFICATE, self._ask(read_text(draft / "request.csr")), mode=0o644)
            _try_out(draft)
            ends = read_dates(draft / CERTIFICATE)[1]
            self._files.install(draft)
        except LlmgwError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._trouble = ""
        log.info("certificate of %s renewed until %s", self._id, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ends)))

    def _say(self, err: LlmgwError) -> None:
        """Once for each reason."""
        if str(err) != self._trouble:
            end = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(self._dates[1]))
            log.warning("%s, which ends on %s, is not renewed: %s%s", self._files.certificate, end, err,
                        f" ({err.hint})" if err.hint else "")
        self._trouble = str(err)


def _try_out(draft: Path) -> None:
    """LlmgwError unless certificate and key belong together."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(draft / CERTIFICATE, draft / KEY)
    except ssl.SSLError as err:
        raise LlmgwError(f"the certificate that was answered does not fit the new key: {err.reason}") from err
