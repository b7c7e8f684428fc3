"""ctl.toml as a type, read by the control plane and by the operator's commands; and the keys that every role's file has.

Room: model. Relative paths count from the file's directory, so that an installation can be moved as one. What the files hold is
judged where they are used.
"""

from dataclasses import dataclass
from pathlib import Path

from lib.base.address import parse_host_port
from lib.base.config import Table, read_toml
from lib.base.names import DNS_LABEL

CTL_FILE = "ctl.toml"
RENEWED_DAYS = 90.0                        # unless ctl.toml says otherwise
_SERVER_URL = r"https://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}/?"


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
    certificate_days: float                # how long the certificates live that nodes and routers get when they renew


def read_ctl_settings(directory: Path) -> CtlSettings:
    """The settings in DIRECTORY/ctl.toml; ConfigError with every fault."""
    root = read_toml(directory / CTL_FILE)
    certificate, key, ca = pki_files(root, "pki", "control-plane")
    operator, authority = root.table("operator"), root.table("ca")
    settings = CtlSettings(
        file=directory / CTL_FILE,
        cluster=root.text("cluster", pattern=DNS_LABEL, expect="a cluster's name (a lower-case DNS label)"),
        listen=listen_address(root, "0.0.0.0:7443"), server=server_url(root),
        state=root.file_path("state"), catalog=root.file_path("catalog", "catalog.toml"),
        secret=root.file_path("secret", "secret"),
        certificate=certificate, key=key, ca=ca,
        operator_certificate=operator.file_path("certificate", "pki/operator.pem"),
        operator_key=operator.file_path("key", "pki/operator.key"), authority=authority.file_path("directory", "ca"),
        certificate_days=authority.number("certificate_days", RENEWED_DAYS, low=1e-4, high=3652))
    root.settle()
    return settings


def server_url(root: Table) -> str:
    """`server`: where the control plane is found."""
    return root.text("server", pattern=_SERVER_URL, expect="a URL such as https://10.0.0.140:7443")


def listen_address(root: Table, default: str) -> tuple[str, int]:
    """`listen`: an address and port of this machine."""
    text = root.text("listen", default)
    if (address := parse_host_port(text)) is None:
        port = default.rpartition(":")[2]
        root.fault("listen", f"{text!r} is not an address and port", f'such as "0.0.0.0:{port}" or "[::]:{port}"')
        return "127.0.0.1", 0
    return address


def pki_files(root: Table, directory: str, role: str) -> tuple[Path, Path, Path]:
    """`certificate`, `key` and `ca` of [pki]; unless given DIRECTORY/ROLE.pem, DIRECTORY/ROLE.key and DIRECTORY/ca.pem."""
    pki = root.table("pki")
    return (pki.file_path("certificate", f"{directory}/{role}.pem"), pki.file_path("key", f"{directory}/{role}.key"),
            pki.file_path("ca", f"{directory}/ca.pem"))
