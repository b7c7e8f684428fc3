"""The control plane as a process: everything checked first, then the state file, then the listener, then the loop.

Room: control.
"""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from lib.base.errors import bad_config
from lib.base.files import read_text
from lib.control import operators, peers
from lib.control.api import Api
from lib.control.catalogs import CatalogFile
from lib.control.issuer import Issuer
from lib.control.own import OwnCertificate, own_context
from lib.control.plane import Plane
from lib.control.register import Register
from lib.model.identity import Role, read_identity
from lib.model.settings import CtlSettings
from lib.net.server import Server
from lib.store.db import Store

log = logging.getLogger(__name__)

SECRET_BYTES = 32


def serve(settings: CtlSettings) -> int:
    """Run until SIGTERM or SIGINT; 0 then. Whatever is wrong is told before anything listens."""
    me = read_identity(settings.certificate, Role.CONTROL_PLANE)
    if me.cluster != settings.cluster:
        raise bad_config(str(settings.certificate), f"is of cluster {me.cluster!r}, not of {settings.cluster!r}")
    secret = _read_secret(settings)
    context = own_context(settings)
    store = Store.open(settings.state)
    try:
        if store.state().cluster != settings.cluster:
            raise bad_config(str(settings.state),
                             f"is the state of cluster {store.state().cluster!r}, not of {settings.cluster!r}")
        plane = Plane(store, CatalogFile(settings.catalog, store.state(), _keep_in(store)), secret)
        issuer, register = Issuer(plane, settings.authority, settings.certificate_days), Register(plane)
        routes = [*operators.routes(plane), *peers.routes(plane, issuer.renew)]
        api = Api(settings.cluster, routes, register.refusal, register.note)
        with Server(settings.listen, context, api) as server, OwnCertificate(plane, settings, server):
            plane.cut = server.close_connections
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


def _keep_in(store: Store) -> Callable[[str, str], None]:
    def keep(text: str, file_digest: str) -> None:
        with store.change("", "catalog") as step:
            step.set_catalog(text, file_digest)
    return keep

