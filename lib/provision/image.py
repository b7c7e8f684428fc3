"""What kind of disk image a file is, by its first bytes, and how large the disk in it is.

Room: provision. `qm` takes whatever it does not know for a raw disk, an error page saved under the image's name too: such a VM
is made without complaint and does not boot.
"""

from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import Refused

PACKED = {b"\xfd7zXZ": "xz", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
QCOW2, VMDK = b"QFI\xfb", b"KDMV"
DATA_FILE_BIT = 1 << 2
BOOT_SIGNATURE = b"\x55\xaa"
SECTOR = 512


@dataclass(frozen=True, slots=True)
class Image:
    """Its format and the size of the disk in it."""

    format: str                            # qcow2 | raw | vmdk
    size: int                              # bytes


def read_image(path: Path) -> Image:
    """The image at `path`; Refused where it is none that a VM can be made from."""
    try:
        with path.open("rb") as file:
            head = file.read(1024)
            size = file.seek(0, 2)
    except OSError as err:
        raise Refused(f"{path}: {err.strerror}", hint="name a cloud image (qcow2 or raw) that lies on this host") from err
    return parse_image(head, size, str(path))


def parse_image(head: bytes, size: int, name: str) -> Image:
    """The image that begins with `head` (1024 bytes) and is `size` bytes long as a file."""
    for magic, packer in PACKED.items():
        if head.startswith(magic):
            raise Refused(f"{name} is packed with {packer}", hint="unpack it first")
    if head.startswith(QCOW2):
        return _qcow2(head, name)
    if head.startswith(VMDK):
        return Image("vmdk", int.from_bytes(head[12:20], "little") * SECTOR)
    if head[510:512] != BOOT_SIGNATURE or size % SECTOR:
        kind = "a text or web page" if head.lstrip()[:1] == b"<" else "neither qcow2 nor vmdk nor a disk with a boot sector"
        raise Refused(f"{name} is no disk image: it is {kind}", hint="download it again and compare the publisher's checksum")
    return Image("raw", size)


def _qcow2(head: bytes, name: str) -> Image:
    if len(head) < 72:
        raise Refused(f"{name} is a qcow2 image that was cut off", hint="copy it again")
    version = int.from_bytes(head[4:8], "big")
    if int.from_bytes(head[8:16], "big"):
        raise Refused(f"{name} is only the difference to another image", hint="qemu-img convert -O qcow2 makes a whole one of it")
    if version >= 3 and int.from_bytes(head[72:80], "big") & DATA_FILE_BIT:
        raise Refused(f"{name} keeps its data in another file", hint="qemu-img convert -O qcow2 makes a whole one of it")
    return Image("qcow2", int.from_bytes(head[24:32], "big"))
