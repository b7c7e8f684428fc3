"""The options of `qm create`, `set` and the rest, with their formats, as strict as Proxmox VE's own."""

import ipaddress
import re
from collections.abc import Mapping, Sequence


class Refused(Exception):
    """The real program would print this on standard error and fail."""


WHOLE = r"\d+"
BOOLEAN = "[01]"
VMID = r"[1-9][0-9]{2,8}"
DNS_NAME = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*"
STORAGE = r"[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]"
TAG = r"[a-zA-Z0-9_][a-zA-Z0-9_.+-]*"
VOLUME = rf"{STORAGE}:[^\s,]+"
PCI = r"(?:[a-fA-F0-9]{4,}:)?[a-fA-F0-9]{2}:[a-fA-F0-9]{2}(?:\.[a-fA-F0-9])?"
SINCE = {"ciupgrade": 8, "mapping": 8, "viommu": 8}
DRIVE = {"": rf"({STORAGE}:(\d+|cloudinit)|{VOLUME}|none)", "import-from": rf"(/[^,\s]+|{VOLUME})", "discard": "on|ignore",
         "iothread": BOOLEAN, "ssd": BOOLEAN, "media": "cdrom|disk", "size": r"\d+[KMGT]?", "cache": r"none|writeback|unsafe"}
PROPERTIES: dict[str, dict[str, str]] = {
    "scsi": DRIVE, "efidisk": {"": DRIVE[""], "efitype": "2m|4m", "pre-enrolled-keys": BOOLEAN, "size": r"\d+[KMGT]?"},
    "net": {"virtio": "([A-F0-9]{2}:){5}[A-F0-9]{2}|", "bridge": r"[-_.\w]+", "tag": WHOLE, "firewall": BOOLEAN, "mtu": WHOLE},
    "ipconfig": {"ip": "v4", "gw": "v4", "ip6": "v6", "gw6": "v6"},
    "hostpci": {"": rf"{PCI}(;{PCI})*", "mapping": r"[a-zA-Z][\w-]+", "pcie": BOOLEAN, "x-vga": BOOLEAN, "rombar": BOOLEAN},
    "boot": {"order": r"((scsi|net|sata|ide|virtio)\d+;?)+"}}
PLAIN = {"name": DNS_NAME, "description": r"[\s\S]{0,8192}", "tags": rf"{TAG}([;, ]{TAG})*",
         "ostype": "l26|other|win11", "machine": r"q35|pc|pc-(q35|i440fx)-\d+(\.\d+)+(\+pve\d+)?", "bios": "ovmf|seabios",
         "cpu": r"[a-zA-Z0-9_.+-]+", "cores": "[1-9][0-9]*", "memory": WHOLE, "balloon": WHOLE, "numa": BOOLEAN,
         "scsihw": "virtio-scsi-single|virtio-scsi-pci|lsi", "serial0": "socket", "vga": "serial0|std|none", "agent": BOOLEAN,
         "nameserver": r"[0-9a-fA-F.: ]+", "searchdomain": DNS_NAME, "ciuser": r".+", "sshkeys": r"[\s\S]+",
         "ciupgrade": BOOLEAN, "onboot": BOOLEAN, "protection": BOOLEAN}


def parse_options(words: Sequence[str], version: int) -> dict[str, str]:
    """`--name value` pairs of a VM's configuration, each checked; Refused names every fault."""
    given: dict[str, str] = {}
    for option, value in zip(words[::2], words[1::2], strict=False):
        if not option.startswith("--") or option[2:] in given:
            raise Refused("400 too many arguments")
        given[option[2:]] = value
    if len(words) % 2:
        raise Refused(f"Option {words[-1].lstrip('-')} requires an argument")
    for name in given:
        if not known(name) or SINCE.get(name, 0) > version:
            raise Refused(f"Unknown option: {name}\n400 unable to parse option")
    faults = [f"{name}: {fault}" for name, value in given.items() if (fault := fault_of(name, value, version))]
    if faults:
        raise Refused("\n".join(["400 Parameter verification failed.", *faults]))
    return given


def known(name: str) -> bool:
    """Whether `qm create` has such an option (as far as this stand-in goes)."""
    return name in PLAIN or name == "boot" or bool(re.fullmatch(r"(scsi|net|ipconfig|hostpci)\d{1,2}|efidisk0", name))


def fault_of(name: str, value: str, version: int) -> str:
    """What is wrong with a value, in the words of the real program."""
    if name in PLAIN:
        if not re.fullmatch(PLAIN[name], value):
            return "invalid format - value does not match the regex pattern"
        if name == "memory" and int(value) < 16:
            return "value must have a minimum value of 16"
        return ""
    kinds = PROPERTIES[re.sub(r"\d+$", "", name)]
    for key, text in properties(value).items():
        shown = "virtio" if text == "virtio" and key == "" and "virtio" in kinds else key
        if shown not in kinds or SINCE.get(shown, 0) > version:
            return f"invalid format - invalid key in comma-separated list property: {shown or text}"
        if not fits(kinds[shown], shown, "" if shown == "virtio" and key == "" else text):
            return f"invalid format - format error\n{name}.{shown or 'file'}: value {text!r} does not match"
    return cross_fault(name, properties(value))


def fits(kind: str, key: str, text: str) -> bool:
    """Whether one value of a property string is of its kind."""
    if kind in ("v4", "v6"):
        try:
            parsed = ipaddress.ip_interface(text) if key.startswith("ip") else ipaddress.ip_address(text)
        except ValueError:
            return text == "dhcp"
        return f"v{parsed.version}" == kind and (not key.startswith("ip") or "/" in text)
    if key == "tag":
        return text.isdigit() and 1 <= int(text) <= 4094
    return bool(re.fullmatch(kind, text))


def cross_fault(name: str, have: Mapping[str, str]) -> str:
    """What is wrong only in combination."""
    if name.startswith("ipconfig") and "gw" in have and "ip" not in have:
        return "missing property required by 'gw'"
    if name.startswith("hostpci") and ("mapping" in have) == ("" in have):
        return "Either 'host' or 'mapping' must be set."
    if "import-from" in have and not have[""].endswith(":0"):
        return "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"
    return ""


def properties(text: str) -> dict[str, str]:
    """`a,b=c` by key; the word without one has the key ""."""
    return {key if mark else "": value if mark else key for key, mark, value in (part.partition("=") for part in text.split(","))}
