"""What /sys/class/infiniband says, as trees of files."""

from dataclasses import replace
from pathlib import Path

import pytest

from lib.host.infiniband import conditions, explain, read_adapters
from lib.host.standin import stand_in_adapters, write_infiniband
from lib.model.fleet import Adapter

UP = stand_in_adapters("llmgw-node01", ["mlx5_0"])[0]


def test_a_tree_is_read_as_it_was_written_links_followed_and_in_natural_order(tmp_path: Path) -> None:
    names = ["mlx5_2", "mlx5_10", "ibp0s12", "mlx5_9"]
    root = write_infiniband(tmp_path, stand_in_adapters("a", names))
    assert all((root / name).is_symlink() for name in names)
    found = read_adapters(root)
    assert [adapter.name for adapter in found] == ["ibp0s12", "mlx5_2", "mlx5_9", "mlx5_10"]
    assert {adapter.name: adapter for adapter in found} == {adapter.name: adapter for adapter in stand_in_adapters("a", names)}
    assert conditions(root, found) == ()


def test_each_port_of_an_adapter_is_one(tmp_path: Path) -> None:
    both = (replace(UP, name="mlx4_0"), replace(UP, name="mlx4_0", port=2, state="DOWN", physical="Polling"))
    found = read_adapters(write_infiniband(tmp_path, both))
    assert [(adapter.name, adapter.port, adapter.state) for adapter in found] == [("mlx4_0", 1, "ACTIVE"), ("mlx4_0", 2, "DOWN")]
    assert explain(found[1]) == "mlx4_0 port 2: no link: look at the cable and the switch port"


def test_a_file_that_is_missing_or_cannot_be_read_leaves_its_field_empty(tmp_path: Path) -> None:
    root = write_infiniband(tmp_path, [UP])
    (root / "mlx5_0" / "node_guid").unlink()
    (root / "mlx5_0" / "ports" / "1" / "rate").unlink()
    (root / "mlx5_0" / "ports" / "1" / "rate").mkdir()         # reading it is an error, like EINVAL
    (root / "mlx5_0" / "ports" / "1" / "phys_state").write_bytes(b"\xff\xfe\n")
    (adapter,) = read_adapters(root)
    assert (adapter.guid, adapter.rate, adapter.state) == ("", "", "ACTIVE")


def test_a_dangling_link_is_no_adapter(tmp_path: Path) -> None:
    root = write_infiniband(tmp_path, [UP])
    (root / "mlx5_7").symlink_to("../../devices/gone")
    assert [adapter.name for adapter in read_adapters(root)] == ["mlx5_0"]


def test_no_tree_and_an_empty_tree_are_told_apart(tmp_path: Path) -> None:
    assert read_adapters(tmp_path / "none") == ()
    assert "no RDMA driver is loaded" in conditions(tmp_path / "none", ())[0]
    (tmp_path / "empty").mkdir()
    assert read_adapters(tmp_path / "empty") == ()
    assert "there is no adapter" in conditions(tmp_path / "empty", ())[0]


@pytest.mark.parametrize("adapter, words", [
    (UP, ""),
    (replace(UP, link_layer="Ethernet", rate="400 Gb/sec (4X NDR)"), "RoCE"),
    (replace(UP, state="DOWN", physical="Polling"), "cable and the switch port"),
    (replace(UP, state="DOWN", physical="Disabled"), "switched off by an administrator"),
    (replace(UP, state="INIT"), "no subnet manager"),
    (replace(UP, state="ARMED"), "subnet manager has not finished"),
    (replace(UP, state="DOWN", physical="Polling", guid="0000:0000:0000:0000"), "whose GUID the host has not set"),
    (replace(UP, link_layer=""), "link layer cannot be read"),
    (replace(UP, state="", physical=""), "its state reads nothing"),
])
def test_what_is_seen_is_said_in_words_that_tell_where_to_look(adapter: Adapter, words: str) -> None:
    said = explain(adapter)
    assert words in said
    assert bool(words) == said.startswith("mlx5_0: ")


def test_an_adapter_slower_than_its_sisters_is_suspected(tmp_path: Path) -> None:
    slow = replace(UP, name="mlx5_1", rate="100 Gb/sec (4X EDR)")
    roce = replace(UP, name="mlx5_2", link_layer="Ethernet", rate="800 Gb/sec (4X XDR)")
    root = write_infiniband(tmp_path, [UP, slow, roce])
    said = conditions(root, read_adapters(root))
    assert [sentence.split(":")[0] for sentence in said] == ["mlx5_1", "mlx5_2"]
    assert "slower than its sisters (400 Gb/sec)" in said[0]
    assert explain(replace(UP, rate="10 Gb/sec (4X)"), [UP])
    assert explain(replace(UP, rate="who knows"), [UP]) == ""
