"""Stand-ins for hardware that is not there: an `nvidia-smi` and an InfiniBand tree, for the demo, for tests and for users.

Room: host. They answer exactly what `host.gpu` and `host.infiniband` ask (docs/testing-without-hardware.md) and are as strict
as the real ones: an unknown field fails the whole query, with the text on standard output.
"""

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.base.files import write_atomic
from lib.host.gpu import BASE, FORMAT, MIG, OPTIONAL
from lib.model.fleet import Adapter, Gpu

DRIVER = "590.48.01"
_STATES = {"NOP": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}
_PHYSICAL = {"Sleep": 1, "Polling": 2, "Disabled": 3, "PortConfigurationTraining": 4, "LinkUp": 5, "LinkErrorRecovery": 6}
# A `#!` line could name no interpreter whose path has a blank in it.
_SCRIPT = '''#!/bin/sh
exec {python} -IS - "$@" <<'THE END'
"""A stand-in for nvidia-smi: answers --query-gpu=FIELD,... {format} with the rows below, and nothing else."""
import json
import sys

GPUS = json.loads({rows!r})
QUERY = "--query-gpu="
FORMAT = {format!r}

if len(sys.argv) != 3 or not sys.argv[1].startswith(QUERY) or sys.argv[2] != FORMAT:
    print("Invalid combination of input arguments. This stand-in takes:", QUERY + "FIELD,...", FORMAT)
    sys.exit(2)
fields = sys.argv[1][len(QUERY):].split(",")
for field in fields:
    if field not in {known!r}:
        print('Field "%s" is not a valid field to query.' % field)
        print()
        sys.exit(2)
if not GPUS:
    print("No devices were found")
    sys.exit(6)
for gpu in GPUS:
    print(", ".join(gpu[field] for field in fields))
THE END
'''


def stand_in_gpus(node: str, count: int = 4, *, name: str = "NVIDIA H100 80GB HBM3", memory_mib: int = 81559) -> tuple[Gpu, ...]:
    """`count` GPUs that no other node has."""
    return tuple(Gpu(uuid=_uuid(f"{node}/{index}"), index=index, name=name, memory_mib=memory_mib, memory_used_mib=0,
                     pci=f"0000:{0x10 + index:02x}:00.0") for index in range(count))


def _uuid(seed: str) -> str:
    digits = hashlib.sha256(seed.encode()).hexdigest()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def write_nvidia_smi(path: Path, gpus: Sequence[Gpu], *, driver: str = DRIVER, fields: Sequence[str] = BASE + OPTIONAL) -> None:
    """An executable at `path` that answers for `gpus` and knows `fields`. Written again, it changes what a running agent sees."""
    rows = json.dumps([_cells(gpu, driver) for gpu in gpus])
    text = _SCRIPT.format(python=shlex.quote(sys.executable), rows=rows, format=FORMAT, known=tuple(fields))
    write_atomic(path, text, mode=0o755)


def _cells(gpu: Gpu, driver: str) -> dict[str, str]:
    def number(value: int | None) -> str:
        return "[N/A]" if value is None else str(value)
    return {
        "index": str(gpu.index), "uuid": gpu.uuid, "name": gpu.name, "memory.total": number(gpu.memory_mib),
        "memory.used": number(gpu.memory_used_mib), "pci.bus_id": f"0000{gpu.pci.upper()}", "driver_version": driver,
        "mig.mode.current": "Enabled" if gpu.fault == MIG else "Disabled",
        "gpu_recovery_action": "Reset" if gpu.fault and gpu.fault != MIG else "None", "fabric.state": "N/A",
    }


def stand_in_adapters(node: str, names: Sequence[str]) -> tuple[Adapter, ...]:
    """Adapters with these names, up and on InfiniBand, with GUIDs that no other node has."""
    return tuple(Adapter(name=name, link_layer="InfiniBand", state="ACTIVE", physical="LinkUp", rate="400 Gb/sec (4X NDR)",
                         guid=_guid(f"{node}/{name}"), netdev=f"ib{index}") for index, name in enumerate(names))


def _guid(seed: str) -> str:
    digits = hashlib.sha256(seed.encode()).hexdigest()
    return ":".join(digits[i:i + 4] for i in range(0, 16, 4))


def write_infiniband(directory: Path, adapters: Sequence[Adapter]) -> Path:
    """A tree under `directory` as the kernel has it under /sys; returns what stands in for /sys/class/infiniband.

    As in sysfs, the entries are symbolic links to the devices.
    """
    root = directory / "class" / "infiniband"
    root.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(dict.fromkeys(adapter.name for adapter in adapters)):
        address = f"0000:{0x40 + number:02x}:00.0"
        device = directory / "devices" / f"pci0000:{0x40 + number:02x}" / address / "infiniband" / name
        for adapter in adapters:
            if adapter.name == name:
                _write_port(device, adapter)
        _link(device / "device", Path("../.."))
        _link(root / name, Path(os.path.relpath(device, root)))
    return root


def _write_port(device: Path, adapter: Adapter) -> None:
    port = device / "ports" / str(adapter.port)
    texts = {
        device / "node_type": "1: CA", device / "node_guid": adapter.guid, port / "link_layer": adapter.link_layer,
        port / "state": f"{_STATES.get(adapter.state, 0)}: {adapter.state}",
        port / "phys_state": f"{_PHYSICAL.get(adapter.physical, 0)}: {adapter.physical}", port / "rate": adapter.rate,
    }
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="ascii")
    for netdev in adapter.netdev.split():
        (device.parent.parent / "net" / netdev).mkdir(parents=True, exist_ok=True)


def _link(place: Path, target: Path) -> None:
    if not place.is_symlink():
        place.symlink_to(target)
