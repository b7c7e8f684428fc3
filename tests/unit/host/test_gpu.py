"""What nvidia-smi says, in all the ways it says it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lib.host.gpu import BASE, FORMAT, MIG, OPTIONAL, GpuReader, count_on_pci_bus, explain, fault_of, parse_gpus, query
from lib.host.standin import stand_in_gpus, write_nvidia_smi
from lib.model.fleet import Gpu
from tests.eventually import eventually

DATA = Path(__file__).resolve().parents[2] / "data" / "nvidia-smi"


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_rows_become_gpus_with_the_pci_address_as_sysfs_writes_it() -> None:
    first, second = parse_gpus((DATA / "h100x2.csv").read_text())
    assert first == Gpu("GPU-11111111-2222-3333-4444-555555555501", 0, "NVIDIA H100 80GB HBM3", 81559, 0, "0000:4b:00.0")
    assert (second.index, second.memory_used_mib) == (1, 19818)


def test_memory_that_is_not_told_is_unknown_and_neither_zero_nor_a_fault() -> None:
    (gpu,) = parse_gpus((DATA / "gb10.csv").read_text())
    assert (gpu.memory_mib, gpu.memory_used_mib, gpu.fault, gpu.pci) == (None, None, "", "000f:01:00.0")


def test_lines_that_are_no_rows_are_passed_over_and_a_bad_cell_is_a_fault() -> None:
    (gpu,) = parse_gpus((DATA / "chatter.csv").read_text())
    assert gpu.name == "NVIDIA L40S"
    assert gpu.memory_used_mib is None
    assert gpu.fault == "memory.used reads [Unknown Error]"


@pytest.mark.parametrize("text", ["", "\n\n", ",,,,,,\n", "garbage" * 1000, "a,b,c,d,e,f,g\n", "\x00\x01\n", "0, GPU-\n"])
def test_garbage_gives_no_gpus(text: str) -> None:
    assert parse_gpus(text) == ()


@pytest.mark.parametrize("row, fault", [
    ({"mig.mode.current": "Enabled"}, MIG),
    ({"mig.mode.current": "[N/A]", "gpu_recovery_action": "None", "fabric.state": "N/A"}, ""),
    ({"mig.mode.current": "Disabled", "gpu_recovery_action": "Reset"}, "nvidia-smi says that it needs: Reset"),
    ({"fabric.state": "Completed"}, ""),
    ({"fabric.state": "In Progress"}, "the NVSwitch fabric manager is not ready (In Progress)"),
    ({}, ""),
])
def test_what_keeps_a_gpu_from_being_booked(row: dict[str, str], fault: str) -> None:
    assert fault_of(row) == fault


@pytest.mark.parametrize("status, stdout, words", [
    (6, "No devices were found\n", "found no GPU although the driver is loaded"),
    (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver is not loaded"),
    (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144", "different versions"),
    (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "libnvidia-ml.so"),
    (4, "Failed to initialize NVML: Insufficient Permissions", "/dev/nvidia*"),
    (255, "Failed to initialize NVML: Unknown Error", "status 255: Failed to initialize NVML"),
    (15, "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU",
     "GPU 0000:02:00.0 does not answer: GPU is lost. Reboot the system to recover this GPU"),
    (0, "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error", "GPU 0000:07:00.0 does not answer"),
    (-11, "", "died of signal 11"),
])
def test_each_failure_is_a_sentence_of_its_own(status: int, stdout: str, words: str) -> None:
    assert words in explain(status, stdout)


def test_a_good_answer_needs_no_sentence() -> None:
    assert explain(0, (DATA / "h100x2.csv").read_text()) == ""


def test_an_nvidia_smi_that_is_not_there_is_not_a_machine_without_gpus(tmp_path: Path) -> None:
    missing = GpuReader(str(tmp_path / "nvidia-smi")).read()
    write_nvidia_smi(tmp_path / "none", ())
    none = GpuReader(str(tmp_path / "none")).read()
    assert (missing.found, missing.problem) == (False, f"nvidia-smi not found at {tmp_path}/nvidia-smi")
    assert none.found
    assert "found no GPU" in none.problem


def test_an_nvidia_smi_that_cannot_be_executed_says_so(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("text")
    reading = GpuReader(str(tmp_path / "nvidia-smi")).read()
    assert not reading.found
    assert "cannot be run: Permission denied" in reading.problem


def test_the_stand_in_is_read_like_the_real_one(tmp_path: Path) -> None:
    gpus = (*stand_in_gpus("llmgw-node01", 2), Gpu("GPU-mig", 2, "NVIDIA A100", 40960, 0, "0000:20:00.0", MIG),
            Gpu("GPU-10", 3, "NVIDIA GB10", None, None, "000f:01:00.0"))
    write_nvidia_smi(tmp_path / "nvidia-smi", gpus)
    reading = GpuReader(str(tmp_path / "nvidia-smi")).read()
    assert reading.gpus == gpus
    assert (reading.problem, reading.driver) == ("", "590.48.01")


def test_the_stand_in_runs_on_a_python_whose_path_has_a_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "it's a path" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    write_nvidia_smi(tmp_path / "nvidia-smi", stand_in_gpus("a", 1))
    assert GpuReader(str(tmp_path / "nvidia-smi")).read().gpus == stand_in_gpus("a", 1)


def test_no_two_nodes_share_a_stand_in_gpu() -> None:
    assert not {gpu.uuid for gpu in stand_in_gpus("a", 8)} & {gpu.uuid for gpu in stand_in_gpus("b", 8)}


def test_an_older_driver_that_does_not_know_a_field_costs_only_that_field(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    gpus = (Gpu("GPU-mig", 0, "NVIDIA A100", 40960, 0, "0000:20:00.0", MIG),)
    write_nvidia_smi(tmp_path / "real", gpus, fields=(*BASE, "mig.mode.current"))
    reader = GpuReader(script(tmp_path / "nvidia-smi", f'echo x >> {calls}; exec {tmp_path}/real "$@"'))
    assert reader.read().gpus == gpus
    first = len(calls.read_text().split())
    assert reader.read().gpus == gpus
    assert (first, len(calls.read_text().split()) - first) == (4, 2)     # later it is not asked for them again


def test_the_stand_in_refuses_an_unknown_field_as_the_real_one_does(tmp_path: Path) -> None:
    from lib.host.run import attempt
    write_nvidia_smi(tmp_path / "nvidia-smi", stand_in_gpus("a", 1))
    done = attempt([tmp_path / "nvidia-smi", *query(("uuid", "nonsense"))])
    assert (done.status, done.stdout, done.stderr) == (2, 'Field "nonsense" is not a valid field to query.\n\n', "")
    assert attempt([tmp_path / "nvidia-smi", "-L"]).status == 2
    assert attempt([tmp_path / "nvidia-smi", *query(("uuid",))]).stdout == stand_in_gpus("a", 1)[0].uuid + "\n"
    assert query(OPTIONAL)[1] == FORMAT


def test_a_hanging_one_is_given_up_the_last_answer_kept_and_no_second_one_started(tmp_path: Path) -> None:
    smi, pids = tmp_path / "nvidia-smi", tmp_path / "pids"
    write_nvidia_smi(smi, stand_in_gpus("a", 2))
    reader = GpuReader(str(smi), timeout_s=0.4)
    assert len(reader.read().gpus) == 2
    os.replace(script(tmp_path / "hang", f"echo $$ >> {pids}\nexec sleep 600"), smi)
    began = time.monotonic()
    reading = reader.read()
    assert time.monotonic() - began < 5
    assert "does not answer (0.4 s)" in reading.problem
    assert [gpu.uuid for gpu in reading.gpus] == [gpu.uuid for gpu in stand_in_gpus("a", 2)]
    assert all(gpu.fault for gpu in reading.gpus), "nobody may book what cannot be seen"
    eventually(lambda: not Path(f"/proc/{pids.read_text().split()[0]}").exists())
    write_nvidia_smi(smi, stand_in_gpus("a", 2))
    assert reader.read().gpus == stand_in_gpus("a", 2)


def test_while_one_cannot_be_killed_no_other_is_started(tmp_path: Path) -> None:
    """A process in the driver survives SIGKILL; here one that is stopped being waited for stands in for it."""
    from lib.host.run import Overdue

    class Stuck(Overdue):
        def __init__(self) -> None:
            pass

        def still_there(self) -> bool:
            return True

    started = tmp_path / "started"
    reader = GpuReader(script(tmp_path / "nvidia-smi", f"touch {started}"))
    reader._hanging = Stuck()
    assert "hangs in the driver" in reader.read().problem
    assert not started.exists()


def test_a_gpu_that_fell_off_the_bus_shows_beside_the_rest(tmp_path: Path) -> None:
    reader = GpuReader(script(tmp_path / "nvidia-smi", f"cat '{DATA}/chatter.csv'"))
    reading = reader.read()
    assert len(reading.gpus) == 1
    assert reading.problem == "GPU 0000:07:00.0 does not answer: Unknown Error"


def test_the_pci_bus_tells_what_nvidia_smi_leaves_out(tmp_path: Path) -> None:
    for address, vendor, kind in (("0000:10:00.0", "0x10de", "0x030200"), ("0000:11:00.0", "0x10de", "0x030000"),
                                  ("0000:11:00.1", "0x10de", "0x040300"), ("0000:12:00.0", "0x8086", "0x030000")):
        (tmp_path / "pci" / address).mkdir(parents=True)
        (tmp_path / "pci" / address / "vendor").write_text(vendor + "\n")
        (tmp_path / "pci" / address / "class").write_text(kind + "\n")
    assert count_on_pci_bus(tmp_path / "pci") == 2
    assert count_on_pci_bus(tmp_path / "nowhere") == 0
    write_nvidia_smi(tmp_path / "nvidia-smi", stand_in_gpus("a", 1))
    reading = GpuReader(str(tmp_path / "nvidia-smi"), pci_root=tmp_path / "pci").read()
    assert (len(reading.gpus), reading.problem) == (1, "nvidia-smi lists 1 GPUs, the PCI bus has 2")


def test_a_crash_of_nvidia_smi_is_told_as_such(tmp_path: Path) -> None:
    assert "signal 11" in GpuReader(script(tmp_path / "nvidia-smi", f"kill -{int(signal.SIGSEGV)} $$")).read().problem
