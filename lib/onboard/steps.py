"""From a machine to a node, step by step: everything is checked before anything is issued, and a failure takes back what was.

Room: onboard. Each step can be done again: a second run finds what the first one left, and goes on from there.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lib.base.errors import LlmgwError, Refused, TimedOut
from lib.onboard import facts as judge
from lib.onboard import plan as planning
from lib.onboard.cluster import Cluster, Standing, revoke_quietly, rival
from lib.onboard.facts import Facts
from lib.onboard.files import Agent
from lib.onboard.node import Node
from lib.onboard.plan import Mode, Plan
from lib.onboard.wanted import Wanted
from lib.pki.authority import Authority, Issued
from lib.pki.reading import read_leaf

Say = Callable[[str, str], None]           # (step, sentence)


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted, and how."""

    wanted: Wanted
    mode: Mode
    days: float
    dry_run: bool = False
    reonboard: bool = False
    wait_s: float = 120.0


@dataclass(slots=True)
class Onboarding:
    """One run. `run` is the list of steps."""

    request: Request
    cluster: Cluster
    authority: Authority
    agent: Agent
    node: Node
    say: Say
    issued: Issued | None = field(default=None, init=False)

    @property
    def wanted(self) -> Wanted:
        return self.request.wanted

    def run(self) -> Mapping[str, Any] | None:
        """The node's row in the control plane once it is ready; None after a dry run."""
        standing = self._ask_control_plane()
        facts = self._look()
        self._refuse_rival(standing, facts)
        self._try_reach()
        self._try_engines()
        plan = self._plan(facts)
        if self.request.dry_run:
            self.say("dry run", "nothing was changed")
            return None
        with self._taken_back():
            changed, restarted = self._put(facts, plan)
            row = self._wait(restarted=restarted)
        self.say("changed", ", ".join(changed) if changed else "nothing")
        return row

    def _ask_control_plane(self) -> Standing | None:
        name = self.cluster.name()
        if name != self.authority.cluster:
            raise Refused(f"the control plane is of cluster {name}, the authority here of {self.authority.cluster}",
                          hint="name the --dir and --server that belong together")
        standing = self.cluster.standing()
        known = f"knows {self.wanted.node} as {standing.state}" if standing else f"does not know {self.wanted.node} yet"
        self.say("control plane", f"cluster {name} answers and {known}")
        return standing

    def _look(self) -> Facts:
        facts, clock_s = self.node.look(self.wanted)
        installed = facts.agent_toml and facts.certificate
        if self.request.mode is not Mode.ALL and not installed:
            raise Refused(f"{self.wanted.address} has not been onboarded, so there is nothing to {self.request.mode.value}",
                          hint=f"run it without --{self.request.mode.value}")
        found = judge.problems(self.wanted, facts, clock_s)
        if found:
            raise LlmgwError("\n".join(f"{self.wanted.address}: {each}" for each in found), hint="nothing was issued or changed")
        self.say("machine", f"{facts.system or 'unknown system'}, Python {facts.python_version} ({facts.python}), clock "
                            f"{facts.time - clock_s:+.1f} s, {_shards(facts)}")
        if self.request.mode is Mode.ALL:
            for each in judge.remarks(self.wanted, facts):
                self.say("note", each)
        return facts

    def _refuse_rival(self, standing: Standing | None, facts: Facts) -> None:
        if not rival(standing, facts) or standing is None:
            return
        words = (f"node {self.wanted.node} is alive on another machine, at {standing.address or 'an unknown address'}; "
                 f"the machine at {self.wanted.address} cannot be it too")
        if not self.request.reonboard:
            raise Refused(words, hint="give this machine a name of its own; --reonboard shuts the other one out and puts "
                                      "this one in its place. If it has just been restarted, try again in a minute")
        self.say("note", f"{words}: --reonboard shuts the other one out")

    def _try_reach(self) -> None:
        host, port = self.wanted.host_port
        problem, uris = self.node.reach((host, port), self.authority.ca_pem)
        if problem:
            raise LlmgwError(f"{self.wanted.address} cannot use {self.wanted.server}: {problem}",
                             hint="nothing was issued; check --server, the way from the node to it, and what listens there")
        begins = f"llmgw://{self.authority.cluster}/control-plane/"
        if len(uris) != 1 or not uris[0].startswith(begins):
            raise LlmgwError(f"what answers at {self.wanted.server} is {', '.join(uris) or 'nobody of a cluster'}, "
                             f"not a control plane of {self.authority.cluster}", hint="nothing was issued; check --server")
        self.say("reach", f"the node reaches {self.wanted.server} and verifies its certificate")

    def _try_engines(self) -> None:
        if self.request.mode is not Mode.ALL or not self.wanted.programs:
            return
        tried, versions = self.node.try_engines(self.wanted.programs)
        if found := judge.engine_problems(self.wanted, tried, versions):
            raise LlmgwError("\n".join(f"{self.wanted.address}: {each}" for each in found),
                             hint="nothing was issued; give the path of a program that runs there")
        self.say("engines", ", ".join(f"{name} {version}" for name, version in versions.items()))

    def _plan(self, facts: Facts) -> Plan:
        authority = planning.Authority(self.authority.cluster, self.authority.ca_pem)
        plan = planning.make(self.wanted, facts, self.agent, authority, mode=self.request.mode, reason=self._reason(facts))
        for note in plan.notes:
            self.say("plan", note)
        if plan.empty:
            self.say("plan", "everything is as it should be")
        return plan

    def _reason(self, facts: Facts) -> str:
        if self.request.mode is Mode.UPGRADE:
            return ""
        if self.request.mode is Mode.RENEW:
            return "asked for"
        if self.request.reonboard:
            return "--reonboard shuts out every older one"
        leaf = read_leaf(facts.certificate, self.authority.ca_pem) if facts.certificate else None
        valid = self.cluster.valid() if leaf else None
        return planning.certificate_reason(self.wanted, facts, leaf, self.authority.cluster, valid, datetime.now(UTC))

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Whatever goes wrong in here, a certificate that was issued is worth nothing afterwards."""
        whole = False
        try:
            yield
            whole = True
        finally:
            if self.issued and not whole:
                self.say("taken back", revoke_quietly(self.cluster, self.issued.serial, "onboarding failed"))
                self.say("next", "run the same command again: it goes on from what is there")

    def _put(self, facts: Facts, plan: Plan) -> tuple[Sequence[str], bool]:
        """Certificate, files, agent. What changed, and whether the agent was started anew."""
        if plan.certificate:
            self._issue()
        issued = (self.issued.serial, self.issued.pem) if self.issued else None
        authority = planning.Authority(self.authority.cluster, self.authority.ca_pem)
        data = planning.to_install(self.wanted, facts, self.agent, authority, plan, self.request.mode, issued)
        changed = self.node.install(data)
        if self.request.reonboard:
            self._revoke_others()           # before our agent speaks: as long as the other one is let in, ours is not
        restart = bool(changed) and facts.agent_active
        removed = self.node.activate(restart=restart)
        started = restart or not facts.agent_active
        self.say("agent", "restarted, engines went on" if restart else "started" if started else "runs, undisturbed")
        if removed:
            self.say("removed", ", ".join(removed))
        return changed, started

    def _issue(self) -> None:
        csr = self.node.make_key(self.wanted.node)
        self.say("key", "made on the node, and stays there")
        self.issued = self.authority.issue(csr, "node", self.wanted.node, addresses=[self.wanted.address], days=self.request.days)
        self.cluster.record(self.issued)
        self.say("certificate", f"{self.issued.serial}, until {self.issued.not_after:%Y-%m-%d}")

    def _revoke_others(self) -> None:
        """Shut out every other certificate of this node: a machine that was replaced, or the copy of a disk, may not return."""
        kept = self.issued.serial if self.issued else ""
        if not kept:
            return
        for serial in self.cluster.valid():
            if serial != kept:
                self.cluster.revoke(serial, "replaced by --reonboard")
                self.say("shut out", f"certificate {serial}")

    def _wait(self, *, restarted: bool) -> Mapping[str, Any]:
        """Until the control plane has heard this very machine, and since it was started."""
        began = time.monotonic()

        def is_it(standing: Standing) -> bool:
            fresh = standing.heard_s is not None and (not restarted or standing.heard_s < time.monotonic() - began)
            right = standing.version == self.agent.version or self.request.mode is Mode.RENEW
            return fresh and right and standing.agent_run == self.node.last_words()[1]
        try:
            return self.cluster.wait_ready(is_it, self.request.wait_s)
        except TimedOut as err:
            raise self._unseen(err) from err

    def _unseen(self, err: TimedOut) -> TimedOut:
        """The same, with what the agent says of it."""
        try:
            said, _ = self.node.last_words()
        except LlmgwError:
            return err
        return TimedOut(f"{err}; the agent's log ends with: {said or 'nothing'}",
                        hint="journalctl -u llmgw-agent on the node, and llmgw-ctl events, have more")


def _shards(facts: Facts) -> str:
    count = len(facts.shims)
    return "no shard running" if not count else f"{count} shard{'s' if count > 1 else ''} running, which stay"
