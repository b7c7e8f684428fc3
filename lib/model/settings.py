"""ctl.toml as a type: read by the control plane and by every command of the operator, checked whole.

Room: model. Relative paths count from the file's directory, so that an installation can be moved as one. What the files hold is
judged where they are used.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from lib.base.config import Table, read_toml
from lib.model.identity import CLUSTER

CTL_FILE = "ctl.toml"
SERVER_URL = r"https://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}/?"
_LISTEN = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[0-9.]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class CtlSettings:
    """Everything ctl.toml says."""

    file: Path
    cluster: str
    listen: tuple[str, int]                # where `serve` listens
    server: str                            # where everybody else finds it
    state: Path                            # the SQLite file
    catalog: Path
    secret: Path                           # 32 bytes in hex that engine keys are derived from
    certificate: Path                      # the control plane's
    key: Path
    ca: Path
    operator_certificate: Path
    operator_key: Path
    authority: Path                        # the directory of the certificate authority


def read_ctl_settings(directory: Path) -> CtlSettings:
    """The settings in DIRECTORY/ctl.toml; ConfigError with every fault."""
    root = read_toml(directory / CTL_FILE)
    pki, operator = root.table("pki"), root.table("operator")
    settings = CtlSettings(
        file=directory / CTL_FILE,
        cluster=root.text("cluster", pattern=CLUSTER, expect="a cluster's name (a lower-case DNS label)"),
        listen=_listen(root), server=root.text("server", pattern=SERVER_URL, expect="a URL such as https://10.0.0.140:7443"),
        state=root.file_path("state"), catalog=root.file_path("catalog", "catalog.toml"),
        secret=root.file_path("secret", "secret"),
        certificate=pki.file_path("certificate", "pki/control-plane.pem"), key=pki.file_path("key", "pki/control-plane.key"),
        ca=pki.file_path("ca", "pki/ca.pem"),
        operator_certificate=operator.file_path("certificate", "pki/operator.pem"),
        operator_key=operator.file_path("key", "pki/operator.key"), authority=root.table("ca").file_path("directory", "ca"))
    root.settle()
    return settings


def _listen(root: Table) -> tuple[str, int]:
    text = root.text("listen", "0.0.0.0:7443")
    if (address := parse_listen(text)) is None:
        root.fault("listen", f"{text!r} is not an address and port", 'such as "0.0.0.0:7443" or "[::]:7443"')
        return "127.0.0.1", 0
    return address


def parse_listen(text: str) -> tuple[str, int] | None:
    """`ADDRESS:PORT` or `[ADDRESS]:PORT` as a pair; None for anything else."""
    match = _LISTEN.fullmatch(text)
    if not match or int(match["port"]) > 65535:
        return None
    return match["host"].strip("[]"), int(match["port"])
