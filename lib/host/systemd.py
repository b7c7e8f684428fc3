"""The systemd units of the three roles that stay, and putting one in place.

Room: host. The texts are pure. What they take away is all that a role can do without: a broken-into engine or router should find
nothing worth having. What they leave is said beside it.
"""

import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.base.errors import LlmgwError, NotFound, Refused, UsageError
from lib.base.files import write_atomic
from lib.host.run import attempt, run

UNITS = Path("/etc/systemd/system")
BOOTED = Path("/run/systemd/system")       # there only where systemd runs the machine
STATES = Path("/var/lib")
LIBRARY, LINKS = Path("/usr/local/lib/llmgw"), Path("/usr/local/bin")
START_S = 90.0
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:+@,")

# User=llmgw and not root: an engine runs whatever code a model brings along. Its GPUs and adapters are open to all (0666) or
# to these groups; the driver has to be loaded before, since nobody here may load it (docs/node-onboarding.md).
_AGENT = """\
[Unit]
Description=llmgw agent: runs the shards placed on this node
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
WatchdogSec=60
ExecStart={command}
Restart=always
RestartSec=2
User=llmgw
Group=llmgw
{groups}Slice=llmgw.slice

# Engines outlive the agent: it alone is stopped, what it started goes on and is taken over by the next one.
KillMode=process
TimeoutStopSec=30
OOMScoreAdjust=-900
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitCORE=0
TasksMax=infinity

# No PrivateDevices (GPUs), no MemoryDenyWriteExecute (compilers of GPU code), no PrivateTmp (engines meet there, and outlive it).
StateDirectory=llmgw
StateDirectoryMode=0700
RuntimeDirectory=llmgw
RuntimeDirectoryPreserve=yes
CacheDirectory=llmgw
CacheDirectoryMode=0700
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths=/etc/llmgw/pki /tmp /var/tmp{state}
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""
_SERVICE = """\
[Unit]
Description={about}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=always
RestartSec=2
# 73: another process holds the state; 78: the configuration is refused. Neither mends itself.
RestartPreventExitStatus=73 78
TimeoutStopSec={stop_s}
LimitNOFILE=1048576
LimitCORE=0

# Root's files, and none of root's powers.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
{directories}CacheDirectory=llmgw
CacheDirectoryMode=0700
UMask=0077
ProtectSystem=strict
ReadWritePaths={writable}
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its name and its text."""

    name: str
    text: str


def agent_unit(python: str, program: str, config: str, *, state_dir: str = "/var/lib/llmgw", groups: Sequence[str] = ()) -> Unit:
    """The agent's, to be started by `python`. `groups` are those of video and render that the machine has."""
    command = exec_line([python, "-I", program, "run", "--config", config])
    return Unit("llmgw-agent.service", _AGENT.format(
        command=command, groups=f"SupplementaryGroups={' '.join(groups)}\n" if groups else "",
        state="" if state_dir == "/var/lib/llmgw" else f" {_escaped(state_dir)}"))


def control_plane_unit(python: str, program: str, directory: Path, state: Path, port: int, *, passphrase: str = "") -> Unit:
    """The control plane's. It may write its installation's directory and its state, and nothing else. `passphrase`: the file with
    what unlocks the authority, handed over as a credential."""
    return _service("llmgw-ctl.service", "llmgw control plane", [python, "-I", program, "--dir", str(directory), "serve"],
                    [directory, state.parent], port, stop_s=30,
                    more=f"LoadCredential={_escaped(f'ca-passphrase:{passphrase}')}\n" if passphrase else "")


def router_unit(python: str, program: str, config: Path, state: Path, pki: Path, port: int) -> Unit:
    """A router's. `pki`: where it renews its certificate."""
    return _service("llmgw-router.service", "llmgw router", [python, "-I", program, "run", "--config", str(config)],
                    [state, pki], port, stop_s=150)


def _service(name: str, about: str, words: Sequence[str], writable: Sequence[Path], port: int, *, stop_s: int,
             more: str = "") -> Unit:
    places = list(dict.fromkeys(writable))
    made = [path.name for path in places if path.parent == STATES]         # by systemd, so that the first start finds them
    kept = more + (f"StateDirectory={' '.join(made)}\nStateDirectoryMode=0700\n" if made else "")
    writes = " ".join(_escaped(str(path)) for path in places)
    return Unit(name, _SERVICE.format(
        about=about, command=exec_line(words), stop_s=stop_s, directories=kept, writable=writes,
        capabilities="CAP_NET_BIND_SERVICE" if 0 < port < 1024 else ""))


def exec_line(words: Sequence[str]) -> str:
    """Words as an ExecStart= line that systemd splits into just these words again."""
    return " ".join(_escaped(word) for word in words)


def _escaped(word: str) -> str:
    """A word in systemd's own quoting; UsageError for what no unit file can hold."""
    if any(ord(letter) < 32 for letter in word) or not word:
        raise UsageError(f"{word!r} cannot stand in a unit file", hint="choose a path without control characters")
    if set(word) <= _PLAIN:
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{inner}"'


def install_service(name: str, version: str, make: Callable[[str, str], Unit]) -> list[str]:
    """Put the program that runs now in place and have systemd run it; what changed, in words. `make(interpreter, program)`."""
    require_systemd()
    link, changed = place_program(name, version)
    return changed + install(make(sys.executable, str(link)), restart=bool(changed))


def install(unit: Unit, *, restart: bool = False) -> list[str]:
    """Write the unit, enable it, start it; what changed, in words. Done again, it changes nothing."""
    path, changed = UNITS / unit.name, []
    if not path.exists() or path.read_text(encoding="utf-8") != unit.text:
        write_atomic(path, unit.text, mode=0o644)
        changed.append(f"wrote {path}")
        run(["systemctl", "daemon-reload"])
    if _says("is-enabled", unit) != "enabled":
        run(["systemctl", "enable", "--quiet", unit.name])
        changed.append(f"enabled {unit.name}")
    active = _says("is-active", unit) == "active"
    if changed or restart or not active:
        _start(unit, "restart" if active else "start")
        changed.append(f"{'restarted' if active else 'started'} {unit.name}")
    return changed


def require_systemd() -> None:
    """Refused where a unit would be of no use, or cannot be written."""
    if not BOOTED.is_dir() or not shutil.which("systemctl"):
        raise NotFound("this machine is not run by systemd", hint="start the program by whatever keeps programs running here")
    if os.geteuid() != 0:
        raise Refused("only root can install a unit", hint="run it as root, or with sudo")


def _says(verb: str, unit: Unit) -> str:
    return attempt(["systemctl", verb, unit.name]).stdout.strip()


def _start(unit: Unit, verb: str) -> None:
    done = attempt(["systemctl", verb, unit.name], timeout_s=START_S)
    if done.status or _says("is-active", unit) not in ("active", "activating"):
        last = attempt(["journalctl", "-u", unit.name, "-n", "5", "--no-pager", "-o", "cat"]).stdout.strip()
        raise LlmgwError(f"{unit.name} does not start: {' | '.join(last.splitlines()) or done.stderr.strip()}",
                         hint=f"journalctl -u {shlex.quote(unit.name)} has more")


def place_program(name: str, version: str, *, library: Path = LIBRARY, links: Path = LINKS) -> tuple[Path, list[str]]:
    """Put the program that runs now into /usr/local, beside its older versions; (the link that names it, what changed).

    A file that is there is never written over: a process may run from it.
    """
    program = Path(sys.argv[0]).resolve()
    if program.suffix != ".pyz":
        raise Refused(f"{program} is not a built program", hint="build it with ./build.sh and run the .pyz")
    content, link, changed = program.read_bytes(), links / name, []
    target = library / version / f"{name}.pyz"
    if target.exists() and target.read_bytes() != content:
        target = library / f"{version}-{hashlib.sha256(content).hexdigest()[:8]}" / f"{name}.pyz"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content, mode=0o755)
        changed.append(f"wrote {target}")
    if not link.is_symlink() or os.readlink(link) != str(target):
        beside = link.with_name(f".{name}.new")
        beside.unlink(missing_ok=True)
        links.mkdir(parents=True, exist_ok=True)
        beside.symlink_to(target)
        beside.replace(link)
        changed.append(f"{link} leads to it")
    return link, changed
