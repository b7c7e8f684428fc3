"""What the node says of itself, and whether it can become one.

Room: onboard. Pure. Problems stop the onboarding before anything is issued; remarks are said and do not.
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lib.base.errors import Refused
from lib.model.fleet import Adapter
from lib.onboard.wanted import Wanted
from lib.rules.fabrics import assign

SKEW_S = 60.0                              # more than that, and dates in certificates and logs mean nothing


@dataclass(frozen=True, slots=True)
class Facts:
    """The answer of `facts` in node_program.py; see there."""

    uid: int
    python: str
    python_version: str
    openssl: bool
    systemd: bool
    system: str
    hostname: str
    time: float
    agent_run: str = ""                    # id of the agent's last start on this machine
    trust: tuple[str, ...] = ()            # the command that makes the system trust an authority
    addresses: tuple[str, ...] = ()
    nvidia_smi: str = ""
    adapters: tuple[Adapter, ...] = ()
    ib_root: bool = False
    agent_active: bool = False
    shims: tuple[str, ...] = ()            # one a running shard: the agent file it was started from
    groups: tuple[str, ...] = ()
    certificate: str = ""
    ca: str = ""
    key_fits: bool = False
    agent_toml: str = ""
    unit: str = ""
    agent: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)      # directory of an agent's version -> digest of its file
    enabled: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """How a program ended that was run once; `status` None: it could not be run, or did not answer."""

    status: int | None
    out: str = ""
    err: str = ""


@dataclass(frozen=True, slots=True)
class Looked:
    """What looking at the node came to."""

    facts: Facts
    clock_s: float                         # ours, in the middle of the call
    programs: Mapping[str, Tried] = field(default_factory=dict)


def problems(wanted: Wanted, facts: Facts, clock_s: float) -> list[str]:
    """Why this machine cannot become this node; empty where it can."""
    return [*_machine_problems(facts), *_clock_problems(facts.time, clock_s), *_fabric_problems(wanted, facts)]


def _machine_problems(facts: Facts) -> Iterator[str]:
    if facts.uid != 0:
        yield f"the user that ssh came in as is not root (uid {facts.uid}): use --ssh-user root, or --become for sudo"
    if not facts.openssl:
        yield "there is no openssl command: install it (Debian: ca-certificates brings it)"
    if not facts.systemd:
        yield "the machine is not run by systemd, which has to start the agent"


def _clock_problems(theirs: float, ours: float) -> Iterator[str]:
    if abs(theirs - ours) > SKEW_S:
        direction = "ahead of" if theirs > ours else "behind"
        yield (f"its clock is {abs(theirs - ours):.0f} s {direction} ours: {_moment(theirs)} there, {_moment(ours)} here, "
               f"and {SKEW_S:.0f} s are allowed; set one of them (timedatectl set-ntp true)")


def _moment(clock_s: float) -> str:
    return datetime.fromtimestamp(clock_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _fabric_problems(wanted: Wanted, facts: Facts) -> Iterator[str]:
    if not wanted.fabrics:
        return
    if not facts.ib_root:
        yield f"{wanted.ib_root} does not exist there: no RDMA driver is loaded, or no adapter is passed into this machine"
        return
    try:
        assign(wanted.fabrics, facts.adapters)
    except Refused as err:
        yield str(err)


def remarks(wanted: Wanted, facts: Facts) -> list[str]:
    """What the operator should know although it stops nothing."""
    return list(_remarks(wanted, facts))


def _remarks(wanted: Wanted, facts: Facts) -> Iterator[str]:
    if facts.hostname != wanted.node:
        yield f"its hostname is {facts.hostname}, not {wanted.node}: ctl nodes will say so until they agree"
    known = {str(ipaddress.ip_address(each)) for each in facts.addresses}
    if known and str(ipaddress.ip_address(wanted.address)) not in known:
        yield (f"{wanted.address} is none of its own addresses ({', '.join(_outward(facts.addresses))}), and routers have to "
               "reach it there")
    if not wanted.programs:
        yield "no engine path was given (--engine NAME=PATH): this node will run the sim engine and nothing else"
    if not facts.nvidia_smi:
        yield f"{wanted.nvidia_smi or 'nvidia-smi'} was not found there: the node will have no GPUs until it is"
    if not facts.trust:
        yield "it has neither update-ca-certificates nor update-ca-trust: only the agent will trust the cluster's authority"
    if not wanted.fabrics and any(adapter.is_infiniband for adapter in facts.adapters):
        yield "it has InfiniBand adapters, and no --fabric was given: it will run single-shard replicas only"


def _outward(addresses: Sequence[str]) -> list[str]:
    return [each for each in addresses if not ipaddress.ip_address(each).is_loopback]


def engine_problems(wanted: Wanted, tried: Mapping[str, Tried], versions: Mapping[str, str]) -> list[str]:
    """Which of the programs that were named do not run there."""
    found = []
    for name, path in wanted.programs.items():
        if not versions.get(name):
            result = tried.get(name, Tried(None, err="was not tried"))
            said = " ".join((result.err.strip() or result.out.strip())[-300:].split())
            ending = f"ends with status {result.status}" if result.status is not None else "does not run"
            found.append(f"engine {name}: {path} {ending} and tells no version: {said or 'it says nothing'}")
    return found
