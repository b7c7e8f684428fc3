"""The control plane as a process: everything checked first, then the state file, then the listener, then the loop.

Room: control.
"""

import logging
import signal
import sqlite3
import threading
from collections.abc import Callable
from types import FrameType

from lib.base.errors import LlmgwError, bad_config
from lib.base.files import read_text
from lib.control import operators, peers
from lib.control.api import Api
from lib.control.catalogs import CatalogFile
from lib.control.plane import Plane
from lib.model.identity import Identity, Role, own_identity
from lib.model.settings import CtlSettings
from lib.net.server import Server
from lib.net.tls import server_context
from lib.store.db import Store

log = logging.getLogger(__name__)

OLDEST_SQLITE = (3, 37)                     # STRICT tables
SECRET_BYTES = 32


def serve(settings: CtlSettings) -> int:
    """Run until SIGTERM or SIGINT; 0 then. Whatever is wrong is told before anything listens."""
    _check_sqlite()
    me = own_identity(read_text(settings.certificate), str(settings.certificate))
    if (me.cluster, me.role) != (settings.cluster, Role.CONTROL_PLANE):
        raise bad_config(str(settings.certificate),
                         f"is of {me} in cluster {me.cluster}, not of a control plane of {settings.cluster}")
    secret = _read_secret(settings)
    context = server_context(settings.certificate, settings.key, settings.ca, ignore_dates=True)
    store = Store.open(settings.state)
    try:
        if store.state().cluster != settings.cluster:
            raise bad_config(str(settings.state),
                             f"is the state of cluster {store.state().cluster!r}, not of {settings.cluster!r}")
        plane = Plane(store, CatalogFile(settings.catalog, store.state().catalog, _keep_in(store)), secret)
        api = Api(settings.cluster, [*operators.routes(plane), *peers.routes(plane)], lambda caller: _revoked(plane, caller))
        with Server(settings.listen, context, api) as server:
            log.info("control plane of %s listens on %s:%d, start %d", settings.cluster, *server.address, store.state().cp_epoch)
            _until_told(plane)
    finally:
        store.close()
    return 0


def _until_told(plane: Plane) -> None:
    def told(_signum: int, _frame: FrameType | None) -> None:
        threading.Thread(target=plane.stop, name="stop").start()     # not here: the lock may be held by the thread we interrupt
    before = {signum: signal.signal(signum, told) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        plane.run()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise LlmgwError(f"SQLite {sqlite3.sqlite_version} is too old, 3.37 is needed", hint="run it on a newer system")


def _read_secret(settings: CtlSettings) -> bytes:
    text = read_text(settings.secret).strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise bad_config(str(settings.secret), f"does not hold {SECRET_BYTES} bytes in hex",
                         hint="put the file back from a backup: running engines know keys that were made from it")
    return secret


def _keep_in(store: Store) -> Callable[[str], None]:
    def keep(text: str) -> None:
        with store.change("", "catalog") as step:
            step.set_catalog(text)
    return keep


def _revoked(plane: Plane, caller: Identity) -> str:
    return "its certificate has been revoked" if caller.serial in plane.store.state().revoked else ""
