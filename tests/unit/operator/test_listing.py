"""What the tables make of the control plane's answers."""

from typing import Any

from lib.cli.render import render_table
from lib.operator import detail, listing


def gpu(index: int, replica: str = "", fault: str = "") -> dict[str, Any]:
    return {"uuid": f"GPU-{index}", "index": index, "name": "H100", "memory_mib": 81559, "fault": fault, "replica": replica}


NODE = {"id": "node01", "state": "ready", "fabrics": ["ib-a"], "gpus": [gpu(0, "big-1"), gpu(1), gpu(2, fault="MIG enabled")],
        "replicas": ["big-1"], "engines": {"sim": "0.1.0"}, "conditions": ["its hostname is vm", "cordoned"],
        "certificate_expires": "2027-03-01T12:00:00Z"}
REPLICA = {"id": "big-1", "profile": "big", "model": "m", "state": "starting", "shard_count": 2, "epoch": 4,
           "shards": [{"rank": 0, "node": "node01", "state": "ready", "pid": 7, "port": 20000, "detail": ""},
                      {"rank": 1, "node": "node02", "state": "starting", "pid": 0, "port": 20001, "detail": "loading"},
                      {"rank": 0, "node": "node03", "state": "ended", "pid": 0, "port": 20002, "detail": "epoch e3-00"}],
           "endpoint": "10.0.0.1:20000", "reason": "rank 1 on node02 starting"}
MORE = {"hostname": "vm", "address": "10.0.0.1", "adapters": [{"name": "mlx5_0", "port": 1, "link_layer": "InfiniBand",
        "state": "ACTIVE", "rate": "400 Gb/sec", "guid": "1:2"}], "sources": {"/m.gguf": "", "/n.gguf": "is not there"},
        "labels": {"disk": "nvme"}, "port_low": 20000, "port_high": 20999, "fabric_adapters": {"ib-a": ["mlx5_0"]},
        "engine_faults": {"vllm": "not found"}, "version": "0.1.0", "node_uid": "u", "heard_s": 3.0, "shards": []}


def cells(row: dict[str, Any], columns: Any) -> dict[str, str]:
    return dict(zip((each.title for each in columns), (str(each.cell(row)) for each in columns), strict=True))


def test_a_node_shows_what_can_still_be_booked() -> None:
    assert cells(NODE, listing.NODES)["FREE GPUS"] == "1/3"
    assert cells({**NODE, "gpus": []}, listing.NODES)["FREE GPUS"] == "-"


def test_a_node_shows_the_day_its_certificate_ends_and_every_condition() -> None:
    shown = cells(NODE, listing.NODES)
    assert (shown["CERTIFICATE"], shown["CONDITIONS"]) == ("2027-03-01", "its hostname is vm; cordoned")
    assert cells({**NODE, "certificate_expires": ""}, listing.NODES)["CERTIFICATE"] == "-"


def test_a_replica_shows_ready_shards_of_those_that_must_be_and_only_nodes_of_this_epoch() -> None:
    shown = cells(REPLICA, listing.REPLICAS)
    assert (shown["SHARDS"], shown["NODES"], shown["REASON"]) == ("1/2", "node01, node02", "rank 1 on node02 starting")


def test_every_cell_of_an_empty_answer_says_so() -> None:
    bare = {**REPLICA, "shards": [], "endpoint": "", "reason": ""}
    line = render_table([bare], listing.REPLICAS).splitlines()[1]
    assert line.split() == ["big-1", "starting", "0/2", "m", "-", "-", "4", "-"]


def test_one_replica_is_shown_with_all_its_shards() -> None:
    text = detail.draw_replica({**REPLICA, "nonce": "ab", "failures": 2, "blamed": ["node09"], "retry_at": None})
    for part in ("epoch        4 (ab)", "failures     2", "blamed       node09", "rank 1 on node02 starting", "loading",
                 "epoch e3-00"):
        assert part in text


def test_one_node_is_shown_with_all_it_has_and_lacks() -> None:
    text = detail.draw_node({**NODE, **MORE})
    for part in ("vllm: not found", "/n.gguf: is not there", "/m.gguf: complete", "80 GiB", "MIG enabled", "mlx5_0",
                 "20000-20999", "heard        3 s ago", "disk nvme"):
        assert part in text


def test_a_node_that_was_never_heard_of_is_shown_too() -> None:
    unknown: dict[str, Any] = {**dict.fromkeys(MORE), "fabric_adapters": {}, "engine_faults": {}, "version": "", "node_uid": "",
                               "shards": []}
    text = detail.draw_node({**NODE, "gpus": [], "fabrics": [], "engines": {}, "conditions": [], **unknown})
    assert "not since the control plane started" in text


def test_the_status_ends_with_what_needs_a_hand() -> None:
    status = {"cluster": "lab", "cp_epoch": 2, "rev": 9, "nodes": {"ready": 2, "lost": 1}, "replicas": {}, "adopting": True,
              "routers": [{"id": "r1", "applied_rev": 9, "age_s": 2.0}], "alarms": ["catalog refused", "and so on"]}
    lines = detail.draw_status(status).splitlines()
    assert "2 ready, 1 lost" in lines[2]
    assert lines[-2].split(maxsplit=1) == ["alarms", "catalog refused"]
    assert lines[-1].strip() == "and so on"


def test_a_gpu_that_does_not_tell_its_memory_has_not_none_of_it() -> None:
    assert detail.memory(None) == "unknown"
