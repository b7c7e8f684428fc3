"""Which lines of an authorized_keys file a new machine gets, and in what form.

Room: provision. Pure. `qm` refuses a file with a comment line, and what follows a key can break the text that cloud-init reads:
only type and key go on. A key that may do only some things here must not be able to do more there, so it is left out.
"""

import base64
import binascii
from dataclasses import dataclass

TYPES = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
         "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")


@dataclass(frozen=True, slots=True)
class Keys:
    """`usable` are "type key" lines, each once; `left_out` counts lines that are neither empty, comment nor usable."""

    usable: tuple[str, ...]
    left_out: int

    @property
    def text(self) -> str:
        return "".join(f"{key}\n" for key in self.usable)


def parse_keys(text: str) -> Keys:
    """The keys of an authorized_keys file."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    found = [" ".join(line.split()[:2]) for line in lines if _is_key(line)]
    return Keys(tuple(dict.fromkeys(found)), len(lines) - len(found))


def _is_key(line: str) -> bool:
    kind, _, rest = line.partition(" ")
    if kind not in TYPES or not rest.strip():
        return False
    try:
        blob = base64.b64decode(rest.split()[0].encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return False
    length = int.from_bytes(blob[:4], "big")
    return blob[4:4 + length] == kind.encode() and len(blob) > 4 + length
