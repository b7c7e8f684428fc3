"""The process that talks to the control plane: follows the router table, keeps it on disk, and posts reports.

Room: gateway. Alone in its own process, so that the parent stays without threads and may fork. Serving never waits for it:
while the control plane is away it keeps asking, and the workers keep the table they have.
"""

import json
import logging
import os
import random
import signal
import socket
import threading
import time
from typing import Any

from lib.base.errors import LlmgwError, UsageError
from lib.base.files import read_json, write_json
from lib.gateway.settings import RouterSettings
from lib.gateway.table import check_table, is_older
from lib.host.renewal import PairFiles, Renewer, Terms
from lib.model.codec import decode, encode
from lib.model.identity import Role, expect
from lib.model.wire import RouterTable
from lib.net.client import Client, Line
from lib.net.tls import client_context
from lib.rules import renewal

HOLD_S = 20.0
BACKOFF_LIMIT_S = 30.0
QUICK_S = 0.5                              # an answer without news that came faster was not held: do not ask at once again

log = logging.getLogger(__name__)


def read_cached(settings: RouterSettings, cluster: str) -> RouterTable | None:
    """The table kept on disk; None where there is none that can be used, which is logged."""
    if not settings.table_file.exists():
        return None
    try:
        table = decode(RouterTable, read_json(settings.table_file))
        check_table(table, cluster)
    except LlmgwError as err:
        log.warning("the router table kept on disk is not used: %s", err)
        return None
    return table


class Follower:
    """Follows one control plane. `table` is the last good one."""

    def __init__(self, settings: RouterSettings, cluster: str, table: RouterTable | None, parent: socket.socket) -> None:
        self._settings, self._cluster, self._table, self._parent = settings, cluster, table, parent
        self._trouble = ""
        self._polling, self._posting = Line(self._client), Line(self._client)
        self._saying = threading.Lock()    # two threads tell the parent something
        self._renewer = Renewer(PairFiles(settings.certificate, settings.key), settings.name, self._ask_renewal,
                                Terms(renewal.due_at, renewal.retry_s))

    def run(self) -> int:
        """Until the parent is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=self._post_reports, name="reports", daemon=True).start()
        threading.Thread(target=self._renewer.run, args=(threading.Event(), self._renewed), name="renew", daemon=True).start()
        failures = 0
        while True:
            began = time.monotonic()
            try:
                news = self._ask(self._polling.client())
                self._say("")
                failures = 0
            except LlmgwError as err:
                self._say(f"{err} ({err.hint})" if err.hint else str(err))
                failures += 1
                time.sleep(random.uniform(0, min(BACKOFF_LIMIT_S, 0.5 * 2 ** min(failures, 8))))
                continue
            if not news and time.monotonic() - began < QUICK_S:
                time.sleep(QUICK_S)

    def _client(self) -> Client:
        settings = self._settings
        return Client(settings.server, client_context(settings.certificate, settings.key, settings.ca),
                      check_peer=expect(self._cluster, Role.CONTROL_PLANE))

    def _ask(self, client: Client) -> bool:
        """One long poll. True where it brought a newer table, which has then been kept and passed on."""
        have = self._table
        query = {"rev": have.rev if have else 0, "cp_epoch": have.cp_epoch if have else 0, "hold": int(HOLD_S)}
        answer = client.get("/router/v1/table", query, timeout_s=HOLD_S + 15)
        if not answer:
            return False
        table = decode(RouterTable, answer)
        check_table(table, self._cluster)
        if is_older(table, have) and have is not None:
            raise UsageError(f"{self._settings.server} sent rev {table.rev} of epoch {table.cp_epoch}, older than "
                             f"{have.rev} of {have.cp_epoch}: ignored")
        if table == have:
            return False
        self._table = table
        self._keep(table)
        self._tell({"table": encode(table)})
        return True

    def _ask_renewal(self, csr: str) -> str:
        with self._client() as client:
            return str(client.post("/router/v1/renew", {"csr": csr})["certificate"])

    def _renewed(self) -> None:
        """Another certificate is in place: new connections use it, ours and those of the workers."""
        self._polling.redial()
        self._posting.redial()
        self._tell({"renewed": True})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._saying:
            self._parent.sendall(json.dumps(message).encode() + b"\n")

    def _keep(self, table: RouterTable) -> None:
        try:
            write_json(self._settings.table_file, encode(table))
        except LlmgwError as err:          # it serves all the same; only a restart would miss it
            log.warning("the router table is not kept: %s", err)

    def _say(self, trouble: str) -> None:
        """Log what is wrong once, and that it is over once."""
        if trouble and trouble != self._trouble:
            log.warning("control plane: %s", trouble)
        elif self._trouble and not trouble:
            log.info("control plane: in contact again")
        self._trouble = trouble

    def _post_reports(self) -> None:
        """Post what the parent hands over, the newest only; end the process when the parent has gone."""
        lines = b""
        while True:
            data = self._parent.recv(1 << 20)
            if not data:
                os._exit(0)
            *whole, lines = (lines + data).split(b"\n")
            if whole:
                self._post(json.loads(whole[-1]))

    def _post(self, report: dict[str, Any]) -> None:
        try:
            self._posting.client().post("/router/v1/report", report, timeout_s=10, idempotent=True)
        except LlmgwError as err:
            log.debug("report: %s", err)   # the table poll tells of the same trouble, once

