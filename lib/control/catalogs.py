"""The catalog the control plane works from: the file that people edit, the text last found good, and what is wrong with it now.

Room: control. A catalog that does not parse never replaces one that does; it is a sentence in `ctl status` and in the log.
Nor does a file without any profile, such as an editor leaves behind on a full disk: only `ctl catalog apply` empties a cluster.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from lib.base.errors import ConfigError, bad_config
from lib.base.files import read_text, stamp, write_atomic
from lib.engines import rules
from lib.model.catalog import Catalog, parse_catalog
from lib.model.committed import Committed

log = logging.getLogger(__name__)


class CatalogFile:
    """`keep(text, digest of the file)` commits a text that was found good, before anything is decided from it."""

    def __init__(self, path: Path, committed: Committed, keep: Callable[[str, str], None]) -> None:
        self._path, self._keep = path, keep
        self.current, self.text, self.fault = Catalog(), "", ""
        self._stamp: tuple[int, ...] = ()
        self._judged: tuple[int, ...] = ()
        self._lost = not self._recall(committed.catalog)
        if self.text and self.digest() == committed.catalog_file != _digest(self.text.encode()):
            self.take(self.current, self.text)      # an apply was committed, and we died before the file was written
        self._read(stamp(path))
        if self._lost and self.fault:       # an empty catalog in their place would stop whatever runs
            raise bad_config(str(path), "neither this file nor the state file holds a catalog that this build can use",
                             hint="mend the file, its faults are above; what runs goes on meanwhile")

    def poll(self) -> bool:
        """Look whether the file has changed; true where another catalog is current now.

        A file is read once it has stayed the same from one poll to the next: half of a file that somebody is writing may be
        a valid catalog with fewer models.
        """
        now = stamp(self._path)
        settled, self._stamp = now == self._stamp, now
        return settled and now != self._judged and self._read(now)

    def check(self, text: str, file: str) -> Catalog:
        """The catalog in `text`; ConfigError with every fault. Changes nothing."""
        return parse_catalog(text, file, rules())

    def take(self, catalog: Catalog, text: str) -> None:
        """Make a committed catalog the current one, and the content of the file."""
        self.current, self.text, self.fault = catalog, text, ""
        write_atomic(self._path, text, mode=0o644)
        self._judged = self._stamp = stamp(self._path)

    def digest(self) -> str:
        """Digest of what the file holds now; empty where it cannot be read."""
        try:
            return _digest(self._path.read_bytes())
        except OSError:
            return ""

    def _read(self, now: tuple[int, ...]) -> bool:
        try:
            text = read_text(self._path)
            if changed := self._lost or text != self.text:
                catalog = self.check(text, str(self._path))
                if not catalog.profiles and (self.current.profiles or self._lost):
                    raise bad_config(str(self._path), "no profile is left in it, and every replica would be stopped",
                                     hint="if that is meant: llmgw-ctl catalog apply FILE")
                self._keep(text, _digest(text.encode()))
                self.current, self.text, self._lost = catalog, text, False
                log.info("catalog %s taken: %d profiles", self._path, len(self.current.profiles))
        except ConfigError as err:
            changed, self._judged = False, now
            self.fault = str(err)
            log.error("the catalog stays as it was:\n%s", err)
        else:
            self.fault, self._judged = "", now
        return changed

    def _recall(self, text: str) -> bool:
        """Start from the text last found good; false where this build, unlike the one that took it, cannot use it."""
        try:
            self.current, self.text = self.check(text, "the catalog in the state file"), text
        except ConfigError as err:          # written by a build that knew engines or keys this one does not
            log.error("%s", err)
            return False
        return True


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
