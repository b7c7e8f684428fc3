"""The state file: what is committed is there again, and what cannot be committed is not there at all."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lib.base.errors import Blocked, ConfigError, NotFound, StateLocked, Unavailable, UsageError
from lib.model.catalog import Model, Profile, Spec
from lib.model.committed import STAMP, ApiKey, Change, Impossible
from lib.model.fleet import EngineFound, Epoch, Fabric, Gpu, Held, Inventory, KnownNode, Placed, Replica, ReplicaState
from lib.model.wire import KeyLimits
from lib.store import db as db_module
from lib.store import schema
from lib.store.db import Store
from lib.store.lock import refuse_network_filesystem
from lib.store.opening import bring_up, connect, in_words

ROW = Replica("a-1", "a", "m", 1, ReplicaState.STARTING, "placed on n1", Epoch(1, "00ff"),
              (Placed(0, "n1", ("g0",), port=20000),), created_rev=STAMP, attempts=(1.5, 2.5), blamed={"n2": 3.5},
              generation="abc")
SPEC = Spec(Profile("a", "m", "sim", env={"A": "b"}), Model("m", "/srv/w", ("short",)))
NODE = KnownNode("n1", "uid", Inventory("n1", "n1", "10.0.0.1", 1, 2, (Gpu("g0", 0, "x"),), (),
                                        (Fabric("ib-a", ("m0",), "10.1"),),
                                        {"sim": EngineFound("/x", "1")}, {"/srv/w": ""}, ("a condition",), {"zone": "b"}), True)
HELD = Held("a-1", Epoch(1, "00ff"), 0, "n1", ("g0",), (20000,), STAMP, 60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.create(tmp_path / "state.db", "test")
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store.open(path)
    yield store
    store.close()


def fill(store: Store) -> None:
    with store.change("", "decide") as step:
        step.perform(Change("n1", "joined", node=NODE))
        step.perform(Change("a-1", "placed", replica=ROW, spec=SPEC))
        step.save_key(ApiKey("k1", "alice", "ab" * 32, KeyLimits(("m",), 2, 60)))
        step.set_catalog("[models.m]\n", "")
        step.revoke("0a", "stolen")


def test_everything_committed_is_there_again_after_a_restart(path: Path) -> None:
    store = Store.open(path)
    fill(store)
    before = store.state()
    store.close()
    again = Store.open(path)
    assert again.state() == replace(before, cp_epoch=before.cp_epoch + 1, rev=before.rev + 1)
    assert again.state().specs["a-1"] == SPEC
    assert again.state().nodes["n1"] == NODE
    again.close()


def test_each_transaction_is_one_rev_and_each_start_one_cp_epoch(path: Path) -> None:
    for start in (1, 2, 3):
        store = Store.open(path)
        assert (store.state().cp_epoch, store.state().rev) == (start, start)
        store.close()


def test_two_state_files_have_two_lineages(tmp_path: Path) -> None:
    lineages = set()
    for name in ("one", "two"):
        Store.create(tmp_path / name, "test")
        store = Store.open(tmp_path / name)
        lineages.add(store.state().lineage)
        store.close()
    assert len(lineages) == 2


def test_a_rev_field_gets_the_rev_of_its_transaction(store: Store) -> None:
    fill(store)
    state = store.state()
    assert state.replicas["a-1"].created_rev == state.rev
    with store.change("", "decide") as step:
        step.perform(Change("a-1", hold=(HELD,), before=state.replicas["a-1"],
                            replica=replace(state.replicas["a-1"], shards=(), state=ReplicaState.PENDING)))
    assert store.state().held[HELD.key].since_rev == store.state().rev == state.rev + 1
    with store.change("", "decide") as step:
        step.perform(Change("a-1", release=(HELD.key,)))
        step.perform(Change("a-1", before=store.state().replicas["a-1"], remove=True))
    assert not store.state().held
    assert not store.state().replicas
    assert not store.state().specs


def test_what_raises_inside_a_change_leaves_nothing_behind(store: Store, path: Path) -> None:
    fill(store)
    before = store.state()
    other = replace(ROW, id="b-1", epoch=Epoch(2, "x"))
    with pytest.raises(Impossible, match="already booked"), store.change("alice", "do") as step:
        step.delete_key("k1")
        step.perform(Change("b-1", replica=other))
    assert store.state() is before
    assert store.audit_trail() == ()
    store.close()
    again = Store.open(path)
    assert again.state().keys == before.keys
    again.close()


def test_a_decision_whose_ground_is_gone_is_refused(store: Store) -> None:
    fill(store)
    with pytest.raises(Blocked, match="has changed since"), store.change("", "decide") as step:
        step.perform(Change("a-1", before=ROW, replica=replace(ROW, reason="late")))
    with pytest.raises(Blocked, match="not above 1"), store.change("", "decide") as step:
        step.perform(Change("b-1", replica=replace(ROW, id="b-1")))


def test_operators_are_in_the_audit_trail_and_the_control_plane_is_not(store: Store) -> None:
    fill(store)
    with store.change("alice", "cordon", "n1") as step:
        step.cordon("n1", False)
    store.refused("mallory", "cordon", "n1", "not an operator")
    assert [(line.actor, line.action, line.target, line.result) for line in store.audit_trail()] == [
        ("alice", "cordon", "n1", "done"), ("mallory", "cordon", "n1", "refused: not an operator")]
    assert not store.state().nodes["n1"].cordoned


def test_what_is_not_there_cannot_be_changed(store: Store) -> None:
    with pytest.raises(NotFound, match="no API key nobody"), store.change("a", "b") as step:
        step.delete_key("nobody")
    with pytest.raises(NotFound, match="no node nowhere"), store.change("a", "b") as step:
        step.cordon("nowhere", True)


def test_events_are_kept_in_order_and_in_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db_module, "EVENTS_KEPT", 5)
    for number in range(9):
        with store.change("", "decide") as step:
            step.event("a-1", f"event {number}")
    found = store.events()
    assert [event.text for event in found] == [f"event {n}" for n in range(4, 9)]
    assert store.events(after=found[-2].seq) == found[-1:]
    assert store.events(limit=2) == found[-2:]


def test_an_idempotency_key_gives_the_same_answer_and_no_other_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.recall("K", "body") is None
    with store.change("alice", "create key") as step:
        step.remember("K", "body", "alice", '{"id": 1}')
    assert store.recall("K", "body") == '{"id": 1}'
    with pytest.raises(UsageError, match="used for another request"):
        store.recall("K", "other")
    monkeypatch.setattr(db_module, "OPS_KEPT", 3)
    for number in range(5):
        with store.change("alice", "x") as step:
            step.remember(f"K{number}", "body", "alice", "1")
    assert [store.recall(f"K{n}", "body") for n in range(5)] == [None, None, "1", "1", "1"]


def limit_size(store: Store, pages: int) -> None:
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_a_full_disk_changes_nothing_and_says_so_until_there_is_room(store: Store) -> None:
    fill(store)
    before = store.state()
    limit_size(store, 1)
    with pytest.raises(Unavailable, match="the disk is full"):
        for _ in range(50):
            with store.change("", "decide") as step:
                step.set_catalog("x" * 100_000, "")
    assert store.state() == before
    assert "the disk is full" in store.fault
    limit_size(store, 1_000_000)
    assert store.probe()
    assert store.fault == ""
    with store.change("", "decide") as step:
        step.set_catalog("y", "")
    assert store.state().rev == before.rev + 1


def test_a_file_that_has_become_read_only_refuses_changes_and_is_still_read(store: Store) -> None:
    fill(store)
    before = store.state()
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(Unavailable, match="cannot be written"), store.change("", "decide") as step:
        step.set_catalog("y", "")
    assert not store.probe()
    assert store.state() == before
    assert store.events()
    store._db.execute("PRAGMA query_only = OFF")
    assert store.probe()


def test_a_second_control_plane_is_told_who_has_the_file(store: Store, path: Path) -> None:
    program = (f"import sys; sys.path.insert(0, {os.getcwd()!r})\nfrom pathlib import Path\nfrom lib.store.db import Store\n"
               f"from lib.base.errors import LlmgwError\ntry:\n    Store.open(Path({str(path)!r}))\n"
               "except LlmgwError as err:\n    print(err)\n    sys.exit(err.exit_code)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == StateLocked.exit_code == 73
    assert f"process {os.getpid()}" in done.stdout


def test_a_file_that_was_closed_can_be_opened_again(path: Path) -> None:
    for _ in range(2):
        Store.open(path).close()


def test_an_existing_state_file_is_never_made_anew(path: Path) -> None:
    with pytest.raises(ConfigError, match="there is a state file already"):
        Store.create(path, "test")


def test_the_state_file_is_for_its_owner_only(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def refused(path: Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Store.open(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError):       # the lock was given back: the second try says the same
        Store.open(path)


def test_no_file_no_directory_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.db", "there is no state file")
    refused(tmp_path / "nowhere" / "state.db", "there is no state file")
    refused(tmp_path, "is not a file")
    (tmp_path / "empty.db").touch()
    refused(tmp_path / "empty.db", "is empty")
    with pytest.raises(ConfigError, match=r"cannot be made: No such file or directory"):
        Store.create(tmp_path / "nowhere" / "state.db", "test")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("models: []\n" * 1000)
    refused(tmp_path / "text", "damaged or no state file")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (a)")
    other.close()
    refused(tmp_path / "other.db", "not a state file of llmgw")


def test_a_damaged_file_is_refused(path: Path) -> None:
    store = Store.open(path)
    with store.change("", "decide") as step:
        step.set_catalog("x" * 50_000, "")
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "damaged")
    path.write_bytes(whole[:4096] + b"\xff" * 4096 + whole[8192:])
    refused(path, "damaged")


def test_a_file_of_a_newer_build_is_refused(path: Path) -> None:
    db = connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    refused(path, f"has schema 99, and this build knows {len(schema.MIGRATIONS)}")


def test_an_older_file_is_copied_and_lifted(path: Path) -> None:
    db = connect(path)
    bring_up(db, path, (*schema.MIGRATIONS, "CREATE TABLE later (a INTEGER) STRICT"))
    assert schema.version_of(db) == len(schema.MIGRATIONS) + 1
    db.close()
    backup = path.with_name(f"{path.name}.schema-{len(schema.MIGRATIONS)}")
    assert backup.stat().st_mode & 0o777 == 0o600
    Store.open(backup).close()


def test_a_migration_that_fails_leaves_the_old_schema(path: Path) -> None:
    db = connect(path)
    with pytest.raises(sqlite3.OperationalError):
        bring_up(db, path, (*schema.MIGRATIONS, "CREATE TABLE later (a INTEGER) STRICT", "NONSENSE"))
    assert schema.version_of(db) == len(schema.MIGRATIONS)
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'later'").fetchall()
    db.close()


def test_a_backup_is_a_state_file(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.backup(tmp_path / "copy.db")
    copy = Store.open(tmp_path / "copy.db")
    assert copy.state().replicas == store.state().replicas
    copy.close()


def test_a_network_file_system_is_refused(path: Path) -> None:
    refuse_network_filesystem(path, "/dev/sda1 / ext4 rw 0 0\n")
    with pytest.raises(ConfigError, match="network file system"):
        refuse_network_filesystem(path, f"/dev/sda1 / ext4 rw 0 0\nhost:/x {path.parent} nfs4 rw 0 0\n")


def test_an_error_that_is_our_own_fault_stays_one(path: Path) -> None:
    error = sqlite3.IntegrityError("UNIQUE constraint failed")
    assert in_words(path, error) is error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_file_that_may_not_be_written_is_refused_with_the_remedy(path: Path) -> None:
    path.chmod(0o400)
    refused(path, "cannot be read and written")
