"""The GPUs of this machine, as nvidia-smi tells them.

Room: host. `parse_*` and `explain` are pure; `GpuReader` asks. "Not found", "no GPUs" and "does not answer" are three things
and are told apart: none of them is an empty list without a sentence. A cell that holds no value is unknown, which is neither 0
nor healthy.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lib.base.errors import LlmgwError, NotFound
from lib.host.run import Outcome, Overdue, attempt
from lib.model.fleet import Gpu

BASE = ("index", "uuid", "name", "memory.total", "memory.used", "pci.bus_id", "driver_version")
# Asked apart, because an older driver refuses a whole query for one field that it does not know.
OPTIONAL: tuple[str, ...] = ("mig.mode.current", "gpu_recovery_action", "fabric.state")
BRIEF = 120
FORMAT = "--format=csv,noheader,nounits"
MIG = "MIG is enabled: it cannot be booked as a whole"
_NO_VALUE = re.compile(r"\[.*\]|N/A|")
_HARMLESS = ("[N/A]", "[Not Supported]", "[Insufficient Permissions]", "N/A", "")
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_LOST = re.compile(r"Unable to determine the device handle for GPU ?([0-9A-Fa-f:.]+): (.+?)\.?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What was learnt. `problem` empty: `gpus` is the whole truth. Else a sentence, and `gpus` what is known in spite of it."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    driver: str = ""
    found: bool = True                     # false: there is no nvidia-smi, which is not the same as no GPUs


def query(fields: Sequence[str]) -> tuple[str, str]:
    """The arguments that ask nvidia-smi for these fields."""
    return f"--query-gpu={','.join(fields)}", FORMAT


def parse_rows(text: str, fields: Sequence[str]) -> tuple[dict[str, str], ...]:
    """The rows of an answer that are rows (as many cells as fields, a GPU's UUID): warnings may stand before or among them."""
    rows = (dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False))
            for line in text.splitlines() if line.count(",") == len(fields) - 1)
    return tuple(row for row in rows if row["uuid"].startswith("GPU-"))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs in the answer to `query(BASE)`."""
    return tuple(_gpu(row) for row in parse_rows(text, BASE))


def _gpu(row: Mapping[str, str]) -> Gpu:
    bad = [f"{field} reads {cell}" for field, cell in row.items() if _NO_VALUE.fullmatch(cell) and cell not in _HARMLESS]
    return Gpu(uuid=row["uuid"], index=_number(row["index"]) or 0, name=row["name"], memory_mib=_number(row["memory.total"]),
               memory_used_mib=_number(row["memory.used"]), pci=_pci(row["pci.bus_id"]), fault="; ".join(bad))


def _number(cell: str) -> int | None:
    return int(float(cell)) if re.fullmatch(r"\d+(\.\d+)?", cell) else None


def _pci(cell: str) -> str:
    """`00000000:4B:00.0` as sysfs writes it: `0000:4b:00.0`."""
    match = re.fullmatch(r"[0-9A-Fa-f]*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])", cell)
    return match[1].lower() if match else ""


def fault_of(row: Mapping[str, str]) -> str:
    """Why a GPU cannot be booked, from its row of the optional fields; an empty string where nothing speaks against it."""
    if row.get("mig.mode.current") == "Enabled":
        return MIG
    action = row.get("gpu_recovery_action", "")
    if action != "None" and not _NO_VALUE.fullmatch(action):
        return f"nvidia-smi says that it needs: {action}"
    state = row.get("fabric.state", "")
    if state != "Completed" and not _NO_VALUE.fullmatch(state):
        return f"the NVSwitch fabric manager is not ready ({state})"
    return ""


def explain(status: int, stdout: str) -> str:
    """What went wrong, from the exit status and the standard output (nvidia-smi writes its errors there). Empty: nothing did."""
    if lost := _LOST.search(stdout):
        return f"GPU {lost[1]} does not answer: {' '.join(lost[2].split())}"
    known = {
        6: "nvidia-smi found no GPU although the driver is loaded: look at the passthrough and the kernel log",
        9: "the NVIDIA driver is not loaded: load or rebuild its kernel module",
        12: "nvidia-smi does not find libnvidia-ml.so: the driver's libraries are missing here",
        18: "the NVIDIA driver and its libraries are of different versions: reboot, or reload the kernel module",
    }
    if status in known:
        return known[status]
    if "Insufficient Permissions" in stdout and status:
        return "nvidia-smi may not use the GPUs: look at the permissions of /dev/nvidia*"
    if status < 0:
        return f"nvidia-smi died of signal {-status}"
    return f"nvidia-smi failed with status {status}: {_brief(stdout)}" if status else ""


def _brief(text: str) -> str:
    """The beginning of what a program printed, fit for a line that people read."""
    shown = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return shown if len(shown) <= BRIEF else f"{shown[:BRIEF]}…"


def count_on_pci_bus(root: Path) -> int:
    """How many NVIDIA GPUs the PCI bus has (`root` is /sys/bus/pci/devices): what is there, whatever the driver says."""
    def read(device: Path, name: str) -> str:
        try:
            return (device / name).read_text(encoding="ascii").strip()
        except OSError:
            return ""
    devices = list(root.iterdir()) if root.is_dir() else []
    return sum(read(device, "vendor") == "0x10de" and read(device, "class")[:6] in ("0x0300", "0x0302") for device in devices)


class GpuReader:
    """Asks nvidia-smi, remembers the last good answer, and never starts a second one while a first hangs in the driver.

    Where nothing can be learnt now, the GPUs known from before are told, each with a fault, so that none is booked meanwhile.
    One thread at a time.
    """

    def __init__(self, program: str, *, timeout_s: float = 20.0, pci_root: Path | None = None) -> None:
        self._program, self._timeout_s, self._pci_root = program, timeout_s, pci_root
        self._optional = OPTIONAL
        self._hanging: Overdue | None = None
        self._good: tuple[Gpu, ...] = ()
        self._good_at = time.monotonic()

    def read(self) -> GpuReading:
        """What nvidia-smi says now."""
        if self._hanging and self._hanging.still_there():
            return self._stale("nvidia-smi does not answer and cannot be killed: it hangs in the driver")
        self._hanging = None
        try:
            done = attempt([self._program, *query(BASE)], timeout_s=self._timeout_s)
        except NotFound:
            return replace(self._stale(f"nvidia-smi not found at {self._program}"), found=False)
        except Overdue as err:
            self._hanging = err
            return self._stale(f"nvidia-smi does not answer ({self._timeout_s:g} s)")
        except LlmgwError as err:
            return replace(self._stale(str(err)), found=False)
        return self._understand(done)

    def _understand(self, done: Outcome) -> GpuReading:
        rows = parse_rows(done.stdout, BASE)
        problem = explain(done.status, done.stdout)
        if not rows:
            return self._stale(problem or f"nvidia-smi gives no answer that can be read: {_brief(done.stdout)}")
        faults = self._ask_faults()
        gpus = tuple(replace(gpu, fault=gpu.fault or faults.get(gpu.uuid, "")) for gpu in parse_gpus(done.stdout))
        if not problem and self._pci_root and (there := count_on_pci_bus(self._pci_root)) > len(gpus):
            problem = f"nvidia-smi lists {len(gpus)} GPUs, the PCI bus has {there}"
        self._good, self._good_at = gpus, time.monotonic()
        return GpuReading(gpus, problem, rows[0]["driver_version"])

    def _ask_faults(self) -> dict[str, str]:
        """Faults by UUID from the optional fields; a field that this driver does not know is never asked for again."""
        while self._optional:
            fields = ("uuid", *self._optional)
            try:
                done = attempt([self._program, *query(fields)], timeout_s=self._timeout_s)
            except Overdue as err:
                self._hanging = err
                return {}
            except LlmgwError:
                return {}
            if not (refused := _BAD_FIELD.search(done.stdout)):
                return {row["uuid"]: fault_of(row) for row in parse_rows(done.stdout, fields)}
            known = tuple(field for field in self._optional if field != refused[1])
            self._optional = known if len(known) < len(self._optional) else ()
        return {}

    def _stale(self, problem: str) -> GpuReading:
        if not self._good:
            return GpuReading((), problem)
        age_s = time.monotonic() - self._good_at
        gpus = tuple(replace(gpu, fault=problem, memory_used_mib=None) for gpu in self._good)
        return GpuReading(gpus, f"{problem}; what is known of its GPUs is {age_s:.0f} s old")
