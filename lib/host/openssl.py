"""Keys made where they live, by the openssl command: a signing request travels, the key does not.

Room: host. The key is never in an argument, a pipe or a log; it goes from openssl straight into a file of its own.
"""

import re
import shutil
import ssl
import tempfile
from pathlib import Path

from lib.base.errors import LlmgwError, UsageError
from lib.base.files import move_durably
from lib.base.names import DNS_LABEL
from lib.host.run import run


def make_key_and_csr(key: Path, csr: Path, cn: str, *, openssl: str = "openssl") -> None:
    """A new P-256 key (0600) and a signing request of it. Both or none are there afterwards, unless the machine dies
    between two renames: so `key` must not be one in use."""
    if not re.fullmatch(DNS_LABEL, cn):
        raise UsageError(f"{cn!r} cannot be the common name of a certificate", hint="it is a node id: a DNS label")
    work = _beside(key)
    try:
        made_key, made_csr = work / "key", work / "csr"
        run([openssl, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", made_key])
        made_key.chmod(0o600)
        run([openssl, "req", "-new", "-key", made_key, "-subj", f"/CN={cn}", "-out", made_csr])
        made_csr.chmod(0o644)
        move_durably(made_key, key)
        move_durably(made_csr, csr)
    except OSError as err:
        raise LlmgwError(f"cannot write {err.filename}: {err.strerror}") from err
    finally:
        shutil.rmtree(work, ignore_errors=True)


def read_dates(certificate: Path, *, openssl: str = "openssl") -> tuple[float, float]:
    """notBefore and notAfter of a certificate in PEM, in Unix seconds."""
    return parse_dates(run([openssl, "x509", "-noout", "-dates", "-in", certificate]))


def parse_dates(text: str) -> tuple[float, float]:
    """What `openssl x509 -dates` says, in Unix seconds."""
    said = dict(line.partition("=")[::2] for line in text.splitlines())
    try:
        begins, ends = (float(ssl.cert_time_to_seconds(said[key])) for key in ("notBefore", "notAfter"))
    except (KeyError, ValueError):
        raise LlmgwError(f"openssl says no dates of a certificate: {text.strip()[:200]!r}") from None
    return begins, ends


def _beside(key: Path) -> Path:
    """A directory that nobody else can look into, on the same file system as the key."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{key.name}.", dir=key.parent))
    except OSError as err:
        raise LlmgwError(f"cannot write {key}: {err.strerror}", hint=f"does {key.parent} exist, and is it ours?") from err
