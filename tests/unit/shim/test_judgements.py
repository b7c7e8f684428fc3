"""What a shim concludes: from probes, from certificates, from exits."""

import errno
import os
import signal

import pytest

from lib.base.errors import LlmgwError, bad_config
from lib.model.codec import decode, encode
from lib.model.fleet import FaultClass, ShardState
from lib.model.identity import Identity, Role
from lib.model.probe import Probe
from lib.model.rundir import GuardCounts, RevokedList, ShardSpec, StateRecord
from lib.model.wire import ShardOrder
from lib.shim.guard import refusal
from lib.shim.prober import FAILURES_TO_DEGRADE, Health
from lib.shim.verdict import judge_exit, judge_start

ROUTER = Identity("demo", Role.ROUTER, "llmgw-router01", "a1b2")
NOBODY = RevokedList()


def states(*problems: str) -> list[ShardState]:
    health = Health()
    return [health.after(problem) for problem in problems]


def test_failures_before_the_first_success_only_mean_that_it_starts() -> None:
    assert states(*["no"] * 20, "") == [ShardState.STARTING] * 20 + [ShardState.READY]


def test_only_failures_in_a_row_degrade_and_one_success_mends() -> None:
    good = "", "no", "no", ""
    assert set(states(*good)) == {ShardState.READY}
    bad = states("", *["no"] * FAILURES_TO_DEGRADE, "no", "")
    assert bad[-4:] == [ShardState.READY, ShardState.DEGRADED, ShardState.DEGRADED, ShardState.READY]


@pytest.mark.parametrize("identity, revoked, reason", [
    (ROUTER, NOBODY, ""),
    (Identity("prod", Role.ROUTER, "llmgw-router01"), NOBODY, "other cluster"),
    (Identity("demo", Role.NODE, "llmgw-node01"), NOBODY, "not a router"),
    (Identity("demo", Role.OPERATOR, "admin"), NOBODY, "not a router"),
    (Identity("demo", Role.CONTROL_PLANE, "llmgw-ctl"), NOBODY, "not a router"),
    (ROUTER, RevokedList(serials=("00A1B2",)), "revoked"),
    (ROUTER, RevokedList(ids=("llmgw-router01",)), "revoked"),
    (ROUTER, RevokedList(serials=("a1b3",), ids=("llmgw-router02",)), ""),
])
def test_only_an_unrevoked_router_of_the_same_cluster_may_pass(identity: Identity, revoked: RevokedList, reason: str) -> None:
    assert refusal(identity, "demo", revoked) == reason


def test_status_0_is_a_failure_like_any_other() -> None:
    verdict = judge_exit("no such engine", 0, ("bye",), out_of_memory=False)
    assert verdict.fault is FaultClass.TRANSIENT
    assert verdict.sentence == "the engine exited with status 0; its last line: bye"


def test_a_kill_while_the_kernel_was_out_of_memory_is_called_that() -> None:
    verdict = judge_exit("no such engine", -signal.SIGKILL, (), out_of_memory=True)
    assert verdict.fault is FaultClass.RESOURCE
    assert "the kernel was out of memory" in verdict.sentence
    assert "SIGTERM" in judge_exit("no such engine", -signal.SIGTERM, (), out_of_memory=True).sentence
    assert "signal 63" in judge_exit("no such engine", -63, (), out_of_memory=False).sentence


@pytest.mark.parametrize("err, fault", [
    (OSError(errno.ENOENT, os.strerror(errno.ENOENT)), FaultClass.CONFIGURATION),
    (OSError(errno.EACCES, os.strerror(errno.EACCES)), FaultClass.CONFIGURATION),
    (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), FaultClass.RESOURCE),
    (LlmgwError("port 1 is taken"), FaultClass.RESOURCE),
    (bad_config("node.pem", "cannot be read"), FaultClass.CONFIGURATION),
])
def test_what_kept_a_shard_from_starting_says_whether_to_try_again(err: Exception, fault: FaultClass) -> None:
    assert judge_start(err, "/opt/engine").fault is fault


def test_a_specification_survives_its_way_through_json() -> None:
    order = ShardOrder("r1", 7, "0" * 16, 0, 1, True, "p", "m", "sim", "", ("m",), port=20000, addr="127.0.0.11")
    spec = ShardSpec(order, "n1", "demo", ("engine", "--flag"), {"A": "b"}, Probe(served_name="m"))
    assert decode(ShardSpec, encode(spec)) == spec
    assert (spec.guarded, spec.marker, spec.name) == (True, "LLMGW_SHARD=r1.7.0.0000000000000000", "r1.7.0")
    state = StateRecord(ShardState.READY, 1.5, guard=GuardCounts(1, 2, {"revoked": 3}), survivors=(4,))
    assert decode(StateRecord, encode(state)) == state
