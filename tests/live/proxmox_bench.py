"""A Proxmox host of stand-ins, and the built llmgw-provision-node run on it."""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.standins.pve import State, install

NAME, ADDRESS, VMID = "llmgw-node04", "10.0.0.144", "144"
READS = ("get", "list", "path", "status", "dump")
_BLOB = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + bytes(range(32))).decode()
KEY = f"ssh-ed25519 {_BLOB}"


class Bench:
    """The host's directory, and a run of the program in a few words."""

    def __init__(self, directory: Path, program: Path, python: str) -> None:
        self.directory, self.program, self.python = directory, program, python
        directory.mkdir(parents=True)
        self.host = directory / "host"
        self.bin = install(self.host)
        self.image, self.keys, self.temporary = directory / "image.raw", directory / "keys", directory / "tmp"
        self.image.write_bytes(bytes(510) + b"\x55\xaa" + bytes(1 << 20))
        self.keys.write_text(f"# of this host\n\n{KEY} root@pve1\n")
        self.temporary.mkdir()

    def words(self, *more: str, **changed: str | None) -> list[str]:
        """The usual flags, some of them changed (None: left out)."""
        flags = {"vmid": VMID, "name": NAME, "ip": f"{ADDRESS}/24", "gateway": "10.0.0.1", "dns": "10.0.0.1",
                 "search_domain": "lab.example", "image": str(self.image), "ssh_keys": str(self.keys), "disk": "2G",
                 "timeout": "20", "server": "https://10.0.0.140:7443"} | changed
        return [*(f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None), *more]

    def start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.directory), "TMPDIR": str(self.temporary),
               "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
        return subprocess.Popen([self.python, "-IS", self.program, *words], env=env, cwd=self.directory, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *more: str, **changed: str | None) -> subprocess.CompletedProcess[str]:
        """The program with the usual flags, to its end."""
        with self.start(self.words(*more, **changed)) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess((), process.returncode, out, err)

    @property
    def state(self) -> State:
        state: State = json.loads((self.host / "state.json").read_text())
        return state

    def change(self, change: Callable[[State], object]) -> None:
        """Let `change` work on the state."""
        state = self.state
        change(state)
        (self.host / "state.json").write_text(json.dumps(state))

    def fault(self, how: str, **more: Any) -> None:
        """Inject one fault: `command` or `at` tells where."""
        self.change(lambda state: state["faults"].append({"how": how, **more}))

    def add_guest(self, vmid: str, name: str, *, node: str = "pve1", kind: str = "qemu", status: str = "running",
                  **more: Any) -> None:
        """Somebody else's VM or container, with a disk."""
        config = {"name": name, "memory": "512", "scsi0": f"local-lvm:vm-{vmid}-disk-0,size=1G", **more.pop("config", {})}
        guest = {"node": node, "type": kind, "status": status, "config": config, **more}

        def add(state: State) -> None:
            state["guests"][vmid] = guest
            state["volumes"][f"local-lvm:vm-{vmid}-disk-0"] = {"vmid": vmid, "size": 1 << 30}
        self.change(add)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.host / "calls.jsonl").read_text().splitlines()]

    @property
    def changes(self) -> list[list[str]]:
        """The calls of qm, pvesm and pvesh that change something."""
        return [[call["tool"], *call["argv"]] for call in self.calls if call["tool"] in ("qm", "pvesm", "pvesh")
                and call["argv"][0] not in READS and call["argv"][:2] != ["cloudinit", "dump"]]

    @property
    def things(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Guests and volumes."""
        state = self.state
        return state["guests"], state["volumes"]

    def left_behind(self) -> list[str]:
        """What lies where it should not: temporary files of ours, files in the current directory."""
        usual = {"host", "image.raw", "keys", "tmp", ".ssh"}
        return [str(path) for path in [*self.temporary.iterdir(), *self.directory.iterdir()] if path.name not in usual]


def with_devices(state: State) -> None:
    """GPUs and adapters for the host: good ones, one without IOMMU, one that shares its group; and mappings."""
    state["pci"] = [{"id": "0000:41:00.0", "iommugroup": 12, "device_name": "H100"}, {"id": "0000:41:00.1", "iommugroup": 12},
                    {"id": "0000:81:00.0", "iommugroup": -1}, {"id": "0000:c1:00.0", "iommugroup": 14},
                    {"id": "0000:c1:00.1", "iommugroup": 14}]
    state["mappings"] = {"hca0": {"id": "hca0", "map": ["id=15b3:101b,node=pve1,path=0000:c1:00.0"], "checks": []},
                         "far": {"id": "far", "map": ["id=15b3:101b,node=pve2,path=0000:01:00.0"], "checks": []},
                         "gone": {"id": "gone", "map": ["id=1:2,node=pve1,path=0000:02:00.0"],
                                  "checks": [{"severity": "error", "message": "no such device"}]}}
