"""Whether the VM that was made is the one that was asked for: what is stored against what was said.

Room: provision. Pure. The words of `qm create` are the request; each of them must be found again in the configuration.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from lib.provision.keys import Keys
from lib.provision.plan import DISK

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
DRIVES = ("scsi", "efidisk")
NOT_STORED = ("import-from",)


def differences(create: Sequence[str], config: Mapping[str, str], keys: Keys, disk_bytes: int) -> list[str]:
    """Where `config` does not say what `create` asked for."""
    return [difference for option, wanted in zip(create[3::2], create[4::2], strict=True)
            for difference in _compare(option.removeprefix("--"), wanted, config, keys)] + list(_disk(config, disk_bytes))


def dump_differences(dump: str, name: str, keys: Keys) -> list[str]:
    """Where the text that cloud-init will get does not say what was asked for."""
    found = re.search(r"^hostname: *['\"]?([^'\"\s]*)", dump, flags=re.MULTILINE)
    wrong = [] if found and found[1] == name else [f"cloud-init would get the hostname {found[1] if found else 'of nobody'!r}"]
    missing = sum(key not in dump for key in keys.usable)
    return wrong + ([f"cloud-init would not get {missing} of {len(keys.usable)} ssh keys"] if missing else [])


def _compare(option: str, wanted: str, config: Mapping[str, str], keys: Keys) -> Iterator[str]:
    if option not in config:
        yield f"{option} was not stored (asked for: {wanted})"
    elif option == "sshkeys":
        if set(unquote(config[option]).split("\n")) - {""} != set(keys.usable):
            yield "sshkeys are not those of the file"
    elif not _same(option, wanted, config[option]):
        yield f"{option} is {config[option]!r}, asked for was {wanted!r}"


def _same(option: str, wanted: str, have: str) -> bool:
    if option in ("description", "nameserver"):
        return have.split() == wanted.split()
    if option == "tags":
        return set(re.split("[;, ]+", have.lower())) == set(wanted.lower().split(";"))
    want, has = _properties(wanted), _properties(have)
    if option.startswith(DRIVES) and option != "scsihw":
        storage, _, what = want.pop("", "").partition(":")
        volume = has.get("") or has.get("file", "")
        if not volume.startswith(f"{storage}:") or (what == "cloudinit" and "cloudinit" not in volume):
            return False
    return all(has.get(key) == value or (key == "" and (value in has or value in has.values()))
               for key, value in want.items() if key not in NOT_STORED)


def _properties(text: str) -> dict[str, str]:
    """`virtio,bridge=vmbr0` by key; the word without one has the key ""."""
    return {key if mark else "": value if mark else key for key, mark, value in (part.partition("=") for part in text.split(","))}


def _disk(config: Mapping[str, str], disk_bytes: int) -> Iterator[str]:
    """The size tells whether a resize was done: its exit status does not."""
    found = re.search(r"(?:^|,)size=(\d+(?:\.\d+)?)([KMGT]?)(?:,|$)", config.get(DISK, ""))
    if not found or float(found[1]) * UNITS[found[2]] < disk_bytes:
        yield f"the disk has {found[1] + found[2] if found else 'no size'}, asked for were {disk_bytes >> 20} MiB"
