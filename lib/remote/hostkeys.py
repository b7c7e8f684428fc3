"""Which host key is the right one: pinned by fingerprint or as a whole, and written down for the next time.

Room: remote.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, Refused, UsageError
from lib.base.files import write_atomic
from lib.host.run import attempt

KINDS = r"ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com"
_FINGERPRINT = re.compile(r"(SHA256:)?(?P<digest>[A-Za-z0-9+/]{43})=?")
_KEY = re.compile(rf"(?P<kind>{KINDS}) (?P<blob>[A-Za-z0-9+/]{{16,}}={{0,2}})( .*)?")


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host's public key as ssh writes it."""

    kind: str
    blob: str

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


@dataclass(frozen=True, slots=True)
class Pin:
    """What was said of the right key: the key itself, or its fingerprint."""

    fingerprint: str
    key: HostKey | None = None


def parse_pin(text: str) -> Pin:
    """`SHA256:…`, or a public key line such as `ssh-ed25519 AAAA…`; UsageError for anything else."""
    if match := _KEY.fullmatch(text.strip()):
        try:
            key = HostKey(match["kind"], match["blob"])
            return Pin(key.fingerprint, key)
        except binascii.Error:
            pass
    elif match := _FINGERPRINT.fullmatch(text.strip()):
        return Pin(f"SHA256:{match['digest']}")
    raise UsageError(f"--host-key {text!r} is neither a fingerprint nor a public key",
                     hint="write SHA256:… as ssh-keygen -lf prints it, or the whole line ssh-ed25519 AAAA…")


def place(host: str, port: int) -> str:
    """How known_hosts names a host."""
    return host if port == 22 else f"[{host}]:{port}"


def parse_scan(text: str) -> list[HostKey]:
    """The keys in what ssh-keyscan prints."""
    found = []
    for line in text.splitlines():
        _, _, rest = line.partition(" ")
        if not line.startswith("#") and (match := _KEY.fullmatch(rest)):
            found.append(HostKey(match["kind"], match["blob"]))
    return found


def find(pin: Pin, host: str, port: int) -> HostKey:
    """The key that fits the pin. A fingerprint alone needs a look at the keys that the host shows; Refused where none fits."""
    if pin.key:
        return pin.key
    done = attempt(["ssh-keyscan", "-T", "10", "-p", str(port), "-t", "ed25519,ecdsa,rsa", "--", host], timeout_s=30)
    shown = parse_scan(done.stdout)
    if not shown:
        raise LlmgwError(f"{host}: no ssh server shows a host key on port {port}",
                         hint="check the address, and that sshd runs there")
    for key in shown:
        if key.fingerprint == pin.fingerprint:
            return key
    raise Refused(f"{host} shows other host keys than {pin.fingerprint}: {', '.join(key.fingerprint for key in shown)}",
                  hint="this may be another machine: compare on its console, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")


def with_key(text: str, host: str, port: int, key: HostKey) -> str:
    """A known_hosts file in which this is the one key of this host."""
    others = [line for line in text.splitlines() if line.split(" ")[0] != place(host, port)]
    return "\n".join([*others, f"{place(host, port)} {key.kind} {key.blob}"]) + "\n"


def record(file: Path, host: str, port: int, key: HostKey) -> None:
    """Write the key down, in the place of any other of this host."""
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as err:
        raise LlmgwError(f"{file} cannot be read: {err}",
                         hint="it holds the host keys of nodes: move it away if it is damaged") from None
    write_atomic(file, with_key(before, host, port, key), mode=0o644)


def recorded(texts: Sequence[str], host: str, port: int) -> list[HostKey]:
    """The keys that known_hosts files have of this host."""
    return [key for text in texts for line in text.splitlines() if line.split(" ")[0] == place(host, port)
            for key in parse_scan(line)]
