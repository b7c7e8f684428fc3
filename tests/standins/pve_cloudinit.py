"""What the Proxmox stand-in reads from files, and what it tells a machine about itself."""

import base64
import hashlib
import ipaddress
import urllib.parse
from pathlib import Path

from tests.standins.pve_options import Refused, properties


def read_keys(path: str) -> str:
    """The keys as they are stored; like the real one, a comment line makes the whole file bad."""
    try:
        text = Path(path).read_text()
    except OSError as err:
        raise Refused(f"can't open '{path}' - {err.strerror}") from None
    for line in filter(str.strip, text.splitlines()):
        kind, blob, *_ = [*line.split(), "", ""]
        if kind not in base64.b64decode(blob + "===").decode("latin-1"):
            raise Refused("SSH public key validation error")
    return urllib.parse.quote(text, safe="-_.!~*'()")


def image_size(source: str) -> int:
    """The size of the disk in an image."""
    try:
        head = Path(source).read_bytes()[:72]
    except OSError:
        raise Refused(f"can't find file '{source}'") from None
    return int.from_bytes(head[24:32], "big") if head[:4] == b"QFI\xfb" else Path(source).stat().st_size


def user_data(config: dict[str, str]) -> str:
    """What cloud-init gets."""
    root = config["ciuser"] == "root"
    lines = ["#cloud-config", f"hostname: {config['name']}", "manage_etc_hosts: true", f"fqdn: {config['name']}",
             f"user: {config['ciuser']}", *(["disable_root: False"] if root else []), "ssh_authorized_keys:"]
    lines += [f"  - {key}" for key in urllib.parse.unquote(config["sshkeys"]).splitlines()]
    lines += ["chpasswd:", "  expire: False", *([] if root else ["users:", "  - default"])]
    return "\n".join([*lines, *([] if config.get("ciupgrade") == "0" else ["package_upgrade: true"])]) + "\n"


def network_config(config: dict[str, str]) -> str:
    """The network as cloud-init gets it: found by the MAC, renamed to eth0."""
    have = properties(config["ipconfig0"])
    face = ipaddress.ip_interface(have["ip"])
    lines = ["version: 1", "config:", "    - type: physical", "      name: eth0",
             f"      mac_address: '{properties(config['net0'])['virtio'].lower()}'", "      subnets:", "      - type: static",
             f"        address: '{face.ip}'", f"        netmask: '{face.netmask}'"]
    lines += [f"        gateway: '{have['gw']}'"] if "gw" in have else []
    if "nameserver" in config:
        lines += ["    - type: nameserver", "      address:", *(f"      - '{one}'" for one in config["nameserver"].split())]
        lines += ["      search:", f"      - '{config['searchdomain']}'"] if "searchdomain" in config else []
    return "\n".join(lines) + "\n"


def meta_data(user: str, network: str) -> str:
    """A new instance whenever anything it is told changes."""
    return f"instance-id: {hashlib.sha1((user + network).encode()).hexdigest()}\n"
