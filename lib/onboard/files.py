"""The files that a node gets: its configuration, its agent, its unit.

Room: onboard. Texts are pure; only the agent's archive is read.
"""

import base64
import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

from lib.base.config import parse_toml
from lib.base.errors import ConfigError, bad_config
from lib.onboard.wanted import Wanted

CONFIG, PKI, LIBRARY, LINK = "/etc/llmgw/agent.toml", "/etc/llmgw/pki", "/usr/local/lib/llmgw", "/usr/local/bin/llmgw-agent"
STATE_DIR = "/var/lib/llmgw"
CARRIED = "llmgw-agent.pyz"
_VERSION = re.compile(r'^VERSION = "([0-9A-Za-z.+-]{1,40})"$', re.MULTILINE)
_HEAD = "# Written by llmgw-onboard-node, which writes it again: change it by onboarding the node again with other flags.\n"


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent's archive."""

    version: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def text(self) -> str:
        """As it travels."""
        return base64.b64encode(self.content).decode("ascii")

    def place(self, there: Mapping[str, str]) -> str:
        """Where it belongs on a node that has `there` (directory -> digest): a build of the same version but other bytes gets a
        name of its own, because a shim may still run from the first."""
        same = [name for name, digest in there.items() if digest == self.digest]
        name = same[0] if same else self.version if self.version not in there else f"{self.version}-{self.digest[:8]}"
        return f"{LIBRARY}/{name}/llmgw-agent.pyz"


def read_agent(path: str) -> Agent:
    """The agent in the file at `path`, or the one that this program carries. ConfigError where it is none."""
    if not path:
        carried = files("carried").joinpath(CARRIED) if _carries() else None
        if carried is None or not carried.is_file():
            raise bad_config(CARRIED, "is not carried by this program", hint="name one with --agent-file")
        return parse_agent(carried.read_bytes(), CARRIED)
    try:
        return parse_agent(Path(path).read_bytes(), path)
    except OSError as err:
        raise bad_config(path, f"cannot be read: {err.strerror}") from None


def _carries() -> bool:
    try:
        return bool(files("carried"))
    except ModuleNotFoundError:
        return False


def parse_agent(content: bytes, name: str) -> Agent:
    """An agent out of its bytes."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            archive.getinfo("llmgw_agent.py")
            found = _VERSION.search(archive.read("lib/base/version.py").decode())
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError):
        found = None
    if not found:
        raise bad_config(name, "is not an llmgw-agent.pyz", hint="./build.sh makes one in dist/")
    return Agent(found[1], content)


def agent_toml(wanted: Wanted, staged: str = "") -> str:
    """agent.toml; with the serial of a certificate that is only staged it names that one."""
    import tomli_w

    hardware = {"ib_root": wanted.ib_root} | ({"nvidia_smi": wanted.nvidia_smi} if wanted.nvidia_smi else {})
    tables: dict[str, Any] = {
        "node": wanted.node, "server": wanted.server, "address": wanted.address, "fabrics": list(wanted.fabrics),
        "ports": wanted.ports, "state_dir": STATE_DIR, "pki": _pki(staged), "hardware": hardware,
        "engines": dict(wanted.programs), "labels": dict(wanted.words)}
    return _HEAD + tomli_w.dumps(tables)


def _pki(staged: str) -> dict[str, str]:
    if not staged:
        return {"certificate": f"{PKI}/node.pem", "key": f"{PKI}/node.key", "ca": f"{PKI}/ca.pem"}
    pair = f"{PKI}/node.pem.d/pair-{staged}"
    return {"certificate": f"{pair}/certificate.pem", "key": f"{pair}/private.key", "ca": f"{pair}/ca.pem"}


def differences(before: str, after: str) -> list[str]:
    """What another agent.toml changes, in words such as `fabrics: ["ib-a"] -> ["ib-b"]`; one that cannot be read: everything."""
    old, new = _flat(before), _flat(after)
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [f"{key}: {_said(old.get(key))} -> {_said(new.get(key))}" for key in changed]


def _flat(text: str) -> Mapping[str, Any]:
    import tomllib

    try:
        parse_toml(text, CONFIG)
    except ConfigError:
        return {}
    found: dict[str, Any] = {}
    for key, value in tomllib.loads(text).items():
        found |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _said(value: Any) -> str:
    if value is None or value == []:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
