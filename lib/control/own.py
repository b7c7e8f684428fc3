"""The control plane's own certificate: kept in the register like all others, and read again when its files are replaced.

Room: control. Nothing renews it by itself: `ctl ca issue --role control-plane` makes another, and moving that in place is enough.
"""

import logging
import threading

from lib.base.errors import LlmgwError
from lib.base.files import read_text, stamp
from lib.control.plane import Plane
from lib.model.certificate import Certificate
from lib.model.identity import Role, read_identity
from lib.model.settings import CtlSettings
from lib.net.server import Server
from lib.net.tls import TlsContext, server_context

log = logging.getLogger(__name__)

LOOK_S = 1.0


def own_context(settings: CtlSettings) -> TlsContext:
    """What the control plane listens with. Dates are judged by `control.api`."""
    return server_context(settings.certificate, settings.key, settings.ca, ignore_dates=True)


class OwnCertificate:
    """Watches the files of one server, in a thread of its own, until `stop`."""

    def __init__(self, plane: Plane, settings: CtlSettings, server: Server) -> None:
        self._plane, self._settings, self._server = plane, settings, server
        self._ended = threading.Event()
        self._seen = self._stamp()

    def __enter__(self) -> "OwnCertificate":
        threading.Thread(target=self._watch, name="own certificate", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _stamp(self) -> tuple[int, ...]:
        return (*stamp(self._settings.certificate), *stamp(self._settings.key), *stamp(self._settings.ca))

    def _watch(self) -> None:
        try:
            self._note()
        except LlmgwError as err:
            log.warning("the own certificate is not kept: %s", err)
        while not self._ended.wait(LOOK_S):
            if (now := self._stamp()) != self._seen:
                self._seen = now
                self._read_again()

    def _read_again(self) -> None:
        try:
            self._server.context = own_context(self._settings)
            log.info("%s read again", self._settings.certificate)
            self._note()
        except LlmgwError as err:           # between two files of a pair; the second one is a change too
            log.warning("the old certificate stays in use: %s", err)

    def _note(self) -> None:
        from lib.pki.authority import read_certificate

        me = read_identity(self._settings.certificate, Role.CONTROL_PLANE)
        found = read_certificate(read_text(self._settings.certificate), str(self._settings.certificate))
        known = Certificate(found.serial, me.role, me.id, found.not_before.timestamp(), found.not_after.timestamp())
        self._plane.presented[me.role, me.id] = known
        if known.serial not in self._plane.store.state().certificates:
            with self._plane.store.change("", "certificate") as step:
                step.record(known)
