"""The catalog the control plane works from: the file that people edit, the text last found good, and what is wrong with it now.

Room: control. A catalog that does not parse never replaces one that does; it is a sentence in `ctl status` and in the log.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from lib.base.errors import ConfigError, LlmgwError
from lib.base.files import read_text, write_atomic
from lib.engines import rules
from lib.model.catalog import Catalog, parse_catalog

log = logging.getLogger(__name__)


class CatalogFile:
    """`keep(text)` commits a text that was found good, before anything is decided from it."""

    def __init__(self, path: Path, last_good: str, keep: Callable[[str], None]) -> None:
        self._path, self._keep = path, keep
        self.current = self._parse(last_good) if last_good else Catalog()
        self.text, self.fault = last_good, ""
        self._stamp: tuple[int, ...] = ()
        self._judged: tuple[int, ...] = ()
        self._read(_stamp(path))

    def poll(self) -> bool:
        """Look whether the file has changed; true where another catalog is current now.

        A file is read once it has stayed the same from one poll to the next: half of a file that somebody is writing may be
        a valid catalog with fewer models.
        """
        stamp = _stamp(self._path)
        settled, self._stamp = stamp == self._stamp, stamp
        return settled and stamp != self._judged and self._read(stamp)

    def check(self, text: str, file: str) -> Catalog:
        """The catalog in `text`; ConfigError with every fault. Changes nothing."""
        return parse_catalog(text, file, rules())

    def take(self, catalog: Catalog, text: str) -> None:
        """Make a committed catalog the current one, and the content of the file."""
        self.current, self.text, self.fault = catalog, text, ""
        write_atomic(self._path, text, mode=0o644)
        self._judged = self._stamp = _stamp(self._path)

    def _read(self, stamp: tuple[int, ...]) -> bool:
        try:
            text = read_text(self._path)
            if changed := text != self.text:
                catalog = self.check(text, str(self._path))
                self._keep(text)
                self.current, self.text = catalog, text
                log.info("catalog %s taken: %d profiles", self._path, len(self.current.profiles))
        except ConfigError as err:
            changed, self._judged = False, stamp
            self.fault = str(err)
            log.error("the catalog stays as it was:\n%s", err)
        else:
            self.fault, self._judged = "", stamp
        return changed

    def _parse(self, text: str) -> Catalog:
        try:
            return self.check(text, "the catalog in the state file")
        except LlmgwError as err:           # written by a build that knew engines or keys this one does not
            log.error("%s", err)
            return Catalog()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
