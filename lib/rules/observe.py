"""What the control plane makes of each message: the next `Observed` from the last.

Room: rules. Messages may come late, twice or in the wrong order; what is older than what is known changes nothing. Nothing
is decided here but one thing: that the state file is older than what agents have seen (`rewound`).
"""

from collections.abc import Mapping
from dataclasses import replace

from lib.base.errors import Blocked, Refused
from lib.model.committed import Committed
from lib.model.fleet import Inventory, ReplicaState, ShardKey, ShardState
from lib.model.wire import Hello, RouterReport, Seen, ShardReport, Sync
from lib.rules import leases
from lib.rules.view import NodeSeen, Now, Observed, RouterSeen, Timer, gone_timer, retry_timer, state_timer

STALL_S = 3.0                              # a longer gap between two looks at the clock is a pause of ours
REBOOT_S = 8.0                             # no machine is back from a reboot sooner, and a live one is heard of more often
ONE_EACH = "two machines have this identity: give the second a name and a certificate of its own"
WINDOW_S = 60.0                            # how long adoption waits for nodes that do not report
BACKOFF_MOST_S = 300.0
LIVE = (ShardState.STARTING, ShardState.READY, ShardState.DEGRADED)


def begin(now: Now) -> Observed:
    """What a control plane that has just started has seen: nothing. Its adoption window opens."""
    return Observed(clock=now.mono, started=now.mono)


def hello(observed: Observed, committed: Committed, message: Hello, session: str, now: Now) -> Observed:
    """An agent opens a session. Refused where another installation, or a copy of this one, holds this node id and is alive."""
    observed = _advance(observed, now)
    last = observed.nodes.get(message.node, NodeSeen(message.node))
    silent_s = leases.silent_for(observed, message.node) if last.heard is not None else leases.LOST_S
    if silent_s < leases.LOST_S and last.node_uid != message.node_uid:
        raise Refused(f"node {message.node} is alive as installation {last.node_uid}; {message.node_uid} cannot be it too",
                      hint=ONE_EACH)
    if silent_s < REBOOT_S and last.boot_id != message.boot_id:
        raise Refused(f"node {message.node} was heard of {silent_s:.0f} s ago from another boot of its disk: two machines run "
                      "copies of it", hint=ONE_EACH)
    node = replace(last, node_uid=message.node_uid, boot_id=message.boot_id, session=session, agent_run=message.agent_run,
                   version=message.version, seq=-1, inventory_seq=-1)
    observed = replace(observed, nodes={**observed.nodes, message.node: node})
    return _judge(observed, message.node, _ahead(committed, message.seen))


def sync(observed: Observed, committed: Committed, node: str, message: Sync, now: Now) -> Observed:
    """An agent reports. Blocked (409) unless it quotes the session it was given by this control plane.

    `committed` must have been read after the message came: an agent may not seem to know more than we said.
    """
    observed = _advance(observed, now)
    last = observed.nodes.get(node)
    if last is None or last.session != message.session or last.agent_run != message.agent_run:
        raise Blocked(f"node {node} quotes a session that this control plane did not open", hint="say hello again")
    if message.inventory is not None and message.seq > last.inventory_seq:      # even of a sync that others have overtaken
        lasting = last.lasting if message.inventory == last.inventory else stable(message.inventory)
        last = replace(last, inventory=message.inventory, inventory_seq=message.seq, lasting=lasting)
    if message.seq <= last.seq:
        return replace(observed, nodes={**observed.nodes, node: last})
    shards = {report.key: report for report in message.shards}
    seen = replace(last, seq=message.seq, applied_rev=message.applied_rev, heard=observed.clock, shards=shards)
    observed = replace(observed, nodes={**observed.nodes, node: seen})
    return _judge(observed, node, _ahead(committed, message.seen) or _unknown(committed, shards))


def router_report(observed: Observed, message: RouterReport, now: Now) -> Observed:
    """A router says which table it has, and which epochs have answered it well."""
    observed = _advance(observed, now)
    router = RouterSeen(message.router, message.applied_rev, message.applied_cp_epoch, observed.clock)
    evidence = dict(observed.evidence)
    for good in message.seen:
        key, at = (good.replica, good.counter), observed.clock - good.ok_age_s
        evidence[key] = max(at, evidence.get(key, at))
    return replace(observed, routers={**observed.routers, message.router: router}, evidence=evidence)


def tick(observed: Observed, committed: Committed, now: Now) -> Observed:
    """Time passes: the own clock goes on, the adoption window may close, timers begin and end.

    `since` holds when each present condition was first seen, and when a backoff will be over (the timers of `view`). The wall
    clock is asked once for each backoff, and believed within limits.
    A restart begins them anew; ages from agents (`ShardReport.age_s`) bridge it where it matters.
    """
    observed = _advance(observed, now)
    since = {key: observed.since.get(key, observed.clock + wait_s) for key, wait_s in _timers(committed, now).items()}
    known = {(row.id, row.epoch.counter) for row in committed.replicas.values() if row.epoch}
    evidence = {key: at for key, at in observed.evidence.items() if key in known}
    nodes = {name: node for name, node in observed.nodes.items() if name not in committed.removed}
    adopted = observed.adopted or _window_over(observed, committed)
    return replace(observed, nodes=nodes, since=since, evidence=evidence, adopted=adopted)


def stable(inventory: Inventory) -> Inventory:
    """The inventory without what changes all the time, so that only news of substance are written down."""
    return replace(inventory, gpus=tuple(replace(gpu, memory_used_mib=None) for gpu in inventory.gpus))


def _advance(observed: Observed, now: Now) -> Observed:
    gap = now.mono - observed.stalled_s - observed.clock
    stalled = observed.stalled_s + (gap if gap > STALL_S else 0.0)
    return replace(observed, stalled_s=stalled, clock=max(observed.clock, now.mono - stalled))


def _window_over(observed: Observed, committed: Committed) -> bool:
    heard = (node in observed.nodes and observed.nodes[node].heard is not None for node in committed.nodes)
    return all(heard) or observed.clock - observed.started >= WINDOW_S


def _timers(committed: Committed, now: Now) -> dict[Timer, float]:
    found: dict[Timer, float] = {}
    for row in committed.replicas.values():
        found[state_timer(row, row.state)] = 0.0
        if row.state is ReplicaState.BACKOFF:
            found[retry_timer(row)] = min(max(row.retry_at - now.wall, 0.0), BACKOFF_MOST_S)
    for item in committed.held.values():
        if item.gone:
            found[gone_timer(item)] = 0.0
    return found


def _ahead(committed: Committed, seen: Seen) -> str:
    if seen.lineage and seen.lineage != committed.lineage:
        return f"has obeyed another history of this cluster ({seen.lineage})"
    if seen.cp_epoch > committed.cp_epoch:
        return f"has obeyed control-plane start {seen.cp_epoch}, and this is start {committed.cp_epoch}"
    if seen.rev > committed.rev:
        return f"has seen revision {seen.rev}, and the state file is at {committed.rev}"
    return ""


def _unknown(committed: Committed, shards: Mapping[ShardKey, ShardReport]) -> str:
    for key, report in shards.items():
        if report.state not in LIVE:
            continue
        row, held = committed.replicas.get(report.replica), committed.held.get(key)
        if not ((row and row.epoch == report.epoch) or (held and held.epoch == report.epoch)):
            return f"runs {report.replica} rank {report.rank} of epoch {report.epoch}, which the state file does not know"
    return ""


def _judge(observed: Observed, node: str, news: str) -> Observed:
    return replace(observed, rewound=f"node {node} {news}") if news and not observed.rewound else observed
