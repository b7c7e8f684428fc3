"""What a node is told to run: the whole set, made from committed state alone.

Room: rules. A replica that serves is told from what it was placed as, so that a changed catalog changes nothing that runs.
"""

from collections.abc import Callable
from dataclasses import replace

from lib.model.catalog import Spec
from lib.model.fleet import Epoch, Placed, Replica, ReplicaState
from lib.model.wire import PROTOCOL, Ended, Orders, ShardOrder, Source
from lib.rules.leases import LOST_S
from lib.rules.lifecycle import PLACED
from lib.rules.view import View


def orders(view: View, node: str, agent_run: str, engine_key: Callable[[str, Epoch], str]) -> Orders:
    """The answer to a sync of `node`. Nothing is started, stopped or ended by it while the state file may be too old."""
    committed, rewound = view.committed, bool(view.observed.rewound)
    shards = [_order(row, shard, committed.specs[row.id], row.epoch, engine_key(row.id, row.epoch), not rewound)
              for _, row in sorted(committed.replicas.items()) if row.state in PLACED and row.epoch
              for shard in row.shards if shard.node == node]
    ended = [Ended(held.replica, held.epoch.counter, held.rank, held.drain_s)
             for _, held in sorted(committed.held.items()) if held.node == node and not held.gone]
    return Orders(
        proto=PROTOCOL, agent_run=agent_run, lineage=committed.lineage, cp_epoch=committed.cp_epoch, rev=committed.rev,
        authoritative=view.observed.adopted and not rewound, lease_s=LOST_S, shards=tuple(shards),
        ended=() if rewound else tuple(ended), sources=sources(view), revoked=committed.revoked)


def essence(of: Orders) -> Orders:
    """The orders without the numbers that rise whatever changes: equal essences make a node do the same."""
    return replace(of, rev=0, cp_epoch=0)


def sources(view: View) -> tuple[Source, ...]:
    """The weights whose presence matters: of every model that a profile runs."""
    wanted = {Source(view.catalog.models[profile.model].source, profile.engine) for profile in view.catalog.profiles.values()}
    return tuple(sorted(source for source in wanted if source.path))


def _order(row: Replica, shard: Placed, spec: Spec, epoch: Epoch, key: str, may_start: bool) -> ShardOrder:
    """An agent starts an entry once ever, so that leave to start may stand for as long as the replica is starting."""
    profile, model = spec.profile, spec.model
    return ShardOrder(
        replica=row.id, counter=epoch.counter, nonce=epoch.nonce, rank=shard.rank, shard_count=row.shard_count,
        may_start=may_start and row.state is ReplicaState.STARTING, profile=profile.name, model=model.name, engine=profile.engine,
        source=model.source, served_names=(model.name, *model.aliases), args=profile.args, env=profile.env, gpus=shard.gpus,
        adapters=shard.adapters, addr=shard.address, port=shard.port, rdzv=shard.rendezvous, engine_key=key,
        stop_grace_s=profile.stop_timeout, drain_s=profile.drain_timeout)
