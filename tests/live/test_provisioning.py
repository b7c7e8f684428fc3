"""llmgw-provision-node as built, against a strict stand-in for a Proxmox host: what it makes, removes and leaves alone."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.live.proxmox_bench import ADDRESS, KEY, NAME, VMID, Bench, with_devices
from tests.live.pyz import PYTHON
from tests.standins.pve import HOST_KEY


@pytest.fixture
def bench(dist: Path, tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench", dist / "llmgw-provision-node.pyz", PYTHON)


def test_a_machine_is_made_as_asked_and_the_next_command_is_printed(bench: Bench) -> None:
    done = bench.run(vlan="20", cores="16", memory="128G", tags="gpu", user="llmgw")
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout)[:5] == ["llmgw-onboard-node", "--node", NAME, "--addr", ADDRESS]
    assert "--server https://10.0.0.140:7443" in done.stdout
    assert HOST_KEY in done.stdout
    guest = bench.state["guests"][VMID]
    config = guest["config"]
    assert (guest["status"], config["name"], config["ciuser"], config["tags"]) == ("running", NAME, "llmgw", "gpu;llmgw")
    assert (config["ipconfig0"], config["nameserver"], config["searchdomain"]) == (
        f"ip={ADDRESS}/24,gw=10.0.0.1", "10.0.0.1", "lab.example")
    assert (config["cores"], config["memory"], config["net0"].split(",")[1:]) == ("16", "131072", ["bridge=vmbr0", "tag=20"])
    assert "size=2G" in config["scsi0"]
    assert [call[1:3] for call in bench.changes] == [["create", VMID], ["disk", "resize"], ["start", VMID]]
    assert bench.left_behind() == []


def test_a_dry_run_changes_nothing_and_prints_what_a_real_run_does(bench: Bench) -> None:
    dry = bench.run("--dry-run", pci=None)
    assert (dry.returncode, bench.changes, bench.things, bench.left_behind()) == (0, [], ({}, {}), [])
    assert bench.run().returncode == 0
    printed = [shlex.split(line) for line in dry.stdout.splitlines() if line.startswith(("qm ", "pvesh ", "pvesm "))]
    real = [[call["tool"], *call["argv"]] for call in bench.calls]
    done = real[real.index(next(call for call in real if call[:2] == ["qm", "create"])):]
    done = [call for call in done if call[0] in ("qm", "pvesh", "pvesm")]
    assert [without_the_run(call) for call in printed] == [without_the_run(call) for call in done]


def without_the_run(call: list[str]) -> list[str]:
    """A command without what differs from run to run: the mark and the directory."""
    hidden = {"--description", "--sshkeys"}
    return [word for number, word in enumerate(call) if call[number - 1] not in hidden]


def test_what_a_dry_run_prints_works_when_it_is_pasted(bench: Bench) -> None:
    dry = bench.run("--dry-run")
    done = subprocess.run(["sh", "-e"], input=dry.stdout, text=True, capture_output=True, check=False,
                          env={"PATH": f"{bench.bin}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert bench.state["guests"][VMID]["status"] == "running"
    assert bench.state["guests"][VMID]["config"]["sshkeys"]


def test_an_older_host_is_not_asked_for_what_it_does_not_know(bench: Bench) -> None:
    bench.change(lambda state: state.update(version=7))
    assert bench.run().returncode == 0
    assert "ciupgrade" not in bench.state["guests"][VMID]["config"]


def test_devices_are_passed_by_address_and_by_mapping(bench: Bench) -> None:
    bench.change(with_devices)
    done = bench.run("--pci", "41:00", "--pci", "mapping=hca0")
    assert done.returncode == 0, done.stderr
    config = bench.state["guests"][VMID]["config"]
    assert (config["hostpci0"], config["hostpci1"]) == ("0000:41:00,pcie=1", "mapping=hca0,pcie=1")


def test_keys_are_filtered_so_that_the_host_takes_them_and_nobody_gets_more_than_here(bench: Bench) -> None:
    bench.keys.write_text(f'# comment\n{KEY} who: #1\nfrom="10.0.0.1" {KEY}\ncommand="true" {KEY}\nnonsense\n')
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert "3 lines of the keys file were left out" in done.stderr
    assert bench.state["guests"][VMID]["config"]["sshkeys"].count("ssh-ed25519") == 1


def test_without_a_flag_the_hosts_own_keys_are_copied(bench: Bench) -> None:
    (bench.directory / ".ssh").mkdir()
    (bench.directory / ".ssh" / "authorized_keys").write_text(f"{KEY}\n")
    assert bench.run(ssh_keys=None).returncode == 0


# --- what fails half-way

STEPS = ("create", "disk", "/nodes/pve1/qemu/144/config", "dump", "start")
FAILURES = [*((how, command) for command in STEPS for how in ("before", "after")), ("full", "create"), ("orphan", "create"),
            ("noop", "disk"), ("silent", "disk"), ("noop", "dump"), ("qemu", "start"), ("slow", "start")]


@pytest.mark.parametrize("how, command", FAILURES)
def test_whatever_step_fails_its_own_leftovers_are_removed_and_others_are_untouched(how: str, command: str, bench: Bench) -> None:
    bench.add_guest("101", "other", node="pve1")
    bench.add_guest("102", "far", node="pve2", kind="lxc")
    before = bench.things
    bench.fault(how, command=command)
    done = bench.run()
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert bench.things == before, done.stderr
    assert bench.left_behind() == []
    assert "made by this run" in done.stderr or "nothing was left to remove" in done.stderr
    assert not [call for call in bench.changes if call[1] in ("destroy", "stop") and call[2] != VMID]


@pytest.mark.parametrize("at", range(1, 11))
def test_whatever_look_fails_nothing_is_touched(at: int, bench: Bench) -> None:
    bench.fault("before", at=at)
    done = bench.run()
    if done.returncode:                    # that ping finds nobody is no failure
        assert (bench.changes, bench.things, bench.left_behind()) == ([], ({}, {}), [])
    else:
        assert at in (9, 10), done.stderr


def test_what_qemu_said_is_told(bench: Bench) -> None:
    bench.fault("qemu", command="start")
    assert "group 12 is not viable" in bench.run().stderr


@pytest.mark.parametrize("key, value", [
    ("ipconfig0", "ip=dhcp"), ("nameserver", None), ("name", "VM144"), ("memory", "512"), ("sshkeys", "x"), ("tags", "none"),
    ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr1"), ("searchdomain", "else.where")])
def test_a_machine_that_is_not_what_was_asked_for_is_told_and_removed(key: str, value: str | None, bench: Bench) -> None:
    bench.fault("", command="create", config={key: value})
    done = bench.run()
    assert (done.returncode, bench.things) == (1, ({}, {})), done.stderr
    assert "the VM is not what was asked for" in done.stderr
    assert key in done.stderr
    assert ["qm", "start", VMID] not in bench.changes


def test_an_id_taken_meanwhile_is_left_to_whoever_was_faster(bench: Bench) -> None:
    bench.fault("race", command="create")
    done = bench.run()
    assert (done.returncode, list(bench.things[0])) == (4, [VMID]), done.stderr
    assert bench.state["guests"][VMID]["config"] == {"name": "faster"}
    assert [call[1] for call in bench.changes] == ["create"]


def test_a_vm_of_somebody_else_under_the_same_id_is_never_removed(bench: Bench) -> None:
    bench.fault("stolen", command="create")
    done = bench.run()
    assert done.returncode == 1, done.stderr
    assert bench.state["guests"][VMID]["config"] == {"name": "not-yours"}
    assert "VM 144 (not-yours) was not made by this run: it was not touched" in done.stderr
    assert not [call for call in bench.changes if call[1] == "destroy"]


def test_a_reservation_that_may_be_somebody_elses_is_named_and_left(bench: Bench) -> None:
    bench.fault("killed", command="create")
    done = bench.run()
    assert (done.returncode, bench.state["guests"][VMID]["config"]) == (1, {"lock": "create"}), done.stderr
    assert "qm destroy 144 --skiplock 1 --purge 1" in done.stderr


def test_a_disk_that_a_removal_left_is_removed_after_it(bench: Bench) -> None:
    bench.fault("qemu", command="start")
    bench.fault("leaves-disk", command="destroy")
    done = bench.run()
    assert (done.returncode, bench.things) == (1, ({}, {})), done.stderr


def test_a_removal_that_fails_is_told_with_the_mark_to_look_for(bench: Bench) -> None:
    bench.fault("qemu", command="start")
    bench.fault("before", command="destroy")
    done = bench.run()
    mark = bench.state["guests"][VMID]["config"]["description"].split()[-1]
    assert (done.returncode, "cleaning up failed" in done.stderr, mark in done.stderr) == (1, True, True)


def test_a_lock_that_somebody_holds_for_a_moment_is_waited_for(bench: Bench) -> None:
    bench.fault("locked", command="create", times=1)
    assert bench.run().returncode == 0


def test_two_runs_with_one_id_make_one_machine_whole(bench: Bench) -> None:
    two = ((NAME, "10.0.0.144/24"), ("llmgw-node05", "10.0.0.145/24"))
    started = [bench.start(bench.words(name=name, ip=ip)) for name, ip in two]
    results = [(process.communicate(timeout=120), process.returncode) for process in started]
    codes = [code for _, code in results]
    assert sorted(codes) == [0, 4], results
    winner = (NAME, "llmgw-node05")[codes.index(0)]
    guest = bench.state["guests"][VMID]
    assert (guest["status"], guest["config"]["name"]) == ("running", winner)
    assert sorted(bench.state["volumes"]) == [f"local-lvm:vm-144-{part}" for part in ("cloudinit", "disk-0", "disk-1")]
    assert not [call for call in bench.changes if call[1] == "destroy"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_whoever_interrupts_it_finds_nothing_left(signum: signal.Signals, bench: Bench) -> None:
    bench.fault("hang", command="start")
    with bench.start(bench.words()) as process:
        eventually((bench.host / "hanging").exists, timeout_s=30)
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (bench.things, bench.left_behind()) == (({}, {}), [])
    assert "interrupted while starting the VM" in err
    assert "VM 144, made by this run, was removed" in err


# --- when it says that the node is there

def test_a_node_that_answers_late_is_waited_for_visibly(bench: Bench) -> None:
    bench.change(lambda state: state["ssh"].update(silent=3))
    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert "No route to host" in done.stderr
    assert f"ssh answers as {NAME} after" in done.stderr


@pytest.mark.parametrize("ssh, told", [
    ({"silent": 999}, "No route to host"), ({"hostname": "debian"}, "it says its name is 'debian'"),
    ({"denied": 1}, "Permission denied")])
def test_a_node_that_is_not_there_in_time_is_no_success_and_is_kept(ssh: dict[str, object], told: str, bench: Bench) -> None:
    bench.change(lambda state: state["ssh"].update(ssh))
    done = bench.run(timeout="3")
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert told in done.stderr
    assert "qm terminal 144" in done.stderr
    assert bench.state["guests"][VMID]["status"] == "running"


def test_whoever_is_tired_of_waiting_keeps_the_machine(bench: Bench) -> None:
    bench.change(lambda state: state["ssh"].update(silent=999))
    with bench.start(bench.words(timeout="60")) as process:
        eventually(lambda: [call for call in bench.calls if call["tool"] == "ssh"], timeout_s=30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, "was kept" in err) == (130, True), err
    assert bench.state["guests"][VMID]["status"] == "running"
    assert bench.left_behind() == []


def test_a_node_whose_cloud_init_failed_is_no_success(bench: Bench) -> None:
    bench.change(lambda state: state["ssh"].update({"cloud-init": 1, "cloud-init-says": "error"}))
    done = bench.run()
    assert (done.returncode, "cloud-init on the node ended in an error: status: error" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("status, told", [(2, "errors that it could get over"), (127, "no command cloud-init")])
def test_what_cloud_init_got_over_is_told(status: int, told: str, bench: Bench) -> None:
    bench.change(lambda state: state["ssh"].update({"cloud-init": status}))
    done = bench.run()
    assert (done.returncode, told in done.stderr) == (0, True), done.stderr
