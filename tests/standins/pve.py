"""A strict stand-in for a Proxmox host: `qm`, `pvesh`, `pvesm`, and the `ping`, `ip` and `ssh` that look at its guests.

Written for the tests alone, from the documented behaviour of the real programs: it refuses what they refuse, records every call
in `calls.jsonl`, and fails on demand at the n-th call. State lies in `state.json`, so that a test can look at it and change it.
"""

import fcntl
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.standins.pve_cloudinit import image_size, read_keys, user_data
from tests.standins.pve_options import STORAGE, VMID, Refused, parse_options, properties

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
TOOLS = ("qm", "pvesh", "pvesm", "ping", "ip", "ssh", "ssh-keygen")
HOST_KEY = "SHA256:" + "A" * 43
UP = {"active": 1, "enabled": 1}
State = dict[str, Any]


def fresh(version: int = 9) -> State:
    """A host pve1 of a cluster of two, with two storages and a bridge."""
    return {"version": version, "node": "pve1", "nodes": ["pve1", "pve2"], "quorate": 1, "bridges": ["vmbr0"],
            "vnets": [], "guests": {},
            "storages": {"local": {"type": "dir", "content": "iso,import", **UP, "avail": 90 * GIB},
                         "local-lvm": {"type": "lvmthin", "content": "images,rootdir", **UP, "avail": 800 * GIB}},
            "volumes": {}, "pci": [], "mappings": {}, "answering": [], "neighbours": {}, "faults": [], "calls": 0, "ssh": {},
            "maxcpu": 64, "maxmem": 512 * GIB}


def install(directory: Path, state: State | None = None, tools: Sequence[str] = TOOLS) -> Path:
    """Put the programs into `directory`/bin and the state into `directory`; gives the bin directory."""
    binaries = directory / "bin"
    binaries.mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.standins.pve import main; sys.exit(main(sys.argv[1:]))"
    for tool in tools:
        words = shlex.join([sys.executable, "-S", "-c", code, str(directory), tool])
        (binaries / tool).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (binaries / tool).chmod(0o755)
    (directory / "state.json").write_text(json.dumps(state or fresh()))
    (directory / "calls.jsonl").touch()
    return binaries


def main(words: Sequence[str]) -> int:
    """One call: DIRECTORY TOOL ARGUMENTS."""
    directory, tool, args = Path(words[0]), words[1], list(words[2:])
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        host = Host(directory)
        host.state["calls"] += 1
        status = host.call(tool, args)
        sys.stdout.flush()
        host.save()
        with (directory / "calls.jsonl").open("a") as file:
            file.write(json.dumps({"tool": tool, "argv": args, "status": status}) + "\n")
    return status


class Host:
    """The host and what it can be asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state: State = json.loads((directory / "state.json").read_text())
        self.guests: dict[str, Any] = self.state["guests"]
        self.volumes: dict[str, Any] = self.state["volumes"]

    def save(self) -> None:
        (self.directory / "state.json").write_text(json.dumps(self.state))

    def call(self, tool: str, args: list[str]) -> int:
        """Run one call with the fault that is due, if any: `how` is before, after, noop, locked, killed or hang."""
        fault = self.due(tool, args)
        how = fault.get("how", "")
        try:
            if how == "before":
                raise Refused("injected: Input/output error")
            if how == "locked":
                raise Refused("trying to acquire lock...\ncan't lock file '/var/lock/qemu-server/lock-144.conf' - got timeout")
            if how == "noop":
                return 0
            if how == "hang":
                self.hang()
            status = TOOL[tool](self, args, fault)
            if how == "after":
                raise Refused("injected: Input/output error, after it was done")
            return status
        except Refused as err:
            sys.stdout.flush()
            sys.stderr.write(f"{err}\n")
            return 255

    def due(self, tool: str, args: list[str]) -> dict[str, Any]:
        """The fault for this call: `at` counts all calls from 1, `command` names a word such as create, `times` how often."""
        for fault in self.state["faults"]:
            hit = fault["at"] == self.state["calls"] if "at" in fault else fault.get("command") in (tool, *args[:2])
            if hit and fault.get("times", 1) > 0:
                fault["times"] = fault.get("times", 1) - 1
                return dict(fault)
        return {}

    def hang(self) -> None:
        """Work for long, and clean up when asked to end."""
        def told(*_: object) -> None:
            raise Refused("received interrupt")
        signal.signal(signal.SIGTERM, told)
        (self.directory / "hanging").touch()
        time.sleep(60)

    # --- guests and volumes

    def here(self, vmid: str) -> dict[str, Any]:
        """A VM of this node; anything else does not exist here."""
        if not re.fullmatch(VMID, vmid):
            raise Refused("400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
        guest = self.guests.get(vmid)
        if not guest or guest["type"] != "qemu" or guest["node"] != self.state["node"]:
            raise Refused(f"Configuration file 'nodes/{self.state['node']}/qemu-server/{vmid}.conf' does not exist")
        return dict(guest)

    def unlocked(self, vmid: str) -> dict[str, Any]:
        if not self.state["quorate"]:
            raise Refused("cluster not ready - no quorum?")
        guest = self.here(vmid)
        if lock := guest["config"].get("lock"):
            raise Refused(f"VM is locked ({lock})")
        return guest

    def allocate(self, storage: str, vmid: str, size: int, name: str = "") -> str:
        if storage not in self.state["storages"]:
            raise Refused(f"storage '{storage}' does not exist")
        if "images" not in self.state["storages"][storage]["content"]:
            raise Refused(f"storage: storage '{storage}' does not support vm images")
        number = next(n for n in range(1000) if f"{storage}:vm-{vmid}-disk-{n}" not in self.volumes)
        volume = f"{storage}:{name or f'vm-{vmid}-disk-{number}'}"
        if volume in self.volumes:
            raise Refused(f"lvcreate 'pve/{volume.partition(':')[2]}' error: already exists in volume group \"pve\"")
        if size > self.state["storages"][storage]["avail"]:
            raise Refused("no space left on device")
        self.volumes[volume] = {"vmid": vmid, "size": size}
        return volume

    # --- qm

    def qm(self, args: list[str], fault: dict[str, Any]) -> int:
        two = " ".join(args[:2])
        if two in ("disk resize", "cloudinit dump"):
            return (self.resize if two == "disk resize" else self.dump)(args[2:], fault)
        simple: dict[str, Callable[[list[str], dict[str, Any]], int]] = {
            "create": self.create, "start": self.start, "stop": self.stop, "destroy": self.destroy, "status": self.status}
        if not args or args[0] not in simple:
            raise Refused(f"ERROR: unknown command 'qm {two}'")
        return simple[args[0]](args[1:], fault)

    def create(self, args: list[str], fault: dict[str, Any]) -> int:
        vmid = args[0]
        if not re.fullmatch(VMID, vmid):
            raise Refused("400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
        given = parse_options(args[1:], self.state["version"])
        if "sshkeys" in given:
            given["sshkeys"] = read_keys(given["sshkeys"])
        if not self.state["quorate"]:
            raise Refused("cluster not ready - no quorum?")
        if fault.get("how") == "race":
            self.guests[vmid] = {"node": "pve2", "type": "qemu", "status": "running", "config": {"name": "faster"}}
        if vmid in self.guests:
            kind = "CT" if self.guests[vmid]["type"] == "lxc" else "VM"
            raise Refused(f"unable to create VM {vmid} - {kind} {vmid} already exists on node '{self.guests[vmid]['node']}'")
        self.guests[vmid] = {"node": self.state["node"], "type": "qemu", "status": "stopped", "config": {"lock": "create"}}
        made: list[str] = []
        try:
            config = {name: self.drive(vmid, name, value, made) if re.match(r"scsi\d|efidisk", name) else value
                      for name, value in given.items()}
            self.broken(vmid, fault, made)
        except Refused as err:
            for volume in made:
                del self.volumes[volume]
            del self.guests[vmid]
            raise Refused(f"unable to create VM {vmid} - {err}") from None
        config["tags"] = ";".join(sorted(config.get("tags", "").lower().split(";")))
        config["net0"] = config["net0"].replace("virtio,", f"virtio={mac_of(vmid)},")
        config.update(fault.get("config", {}))
        self.guests[vmid]["config"] = {key: value for key, value in config.items() if value is not None}
        return 0

    def broken(self, vmid: str, fault: dict[str, Any], made: list[str]) -> None:
        """The ways in which a create goes wrong in the middle."""
        how = fault.get("how")
        if how == "full":
            raise Refused("copy failed: qemu-img: error while writing: No space left on device")
        if how == "orphan":                # fails after the configuration was written: that goes, the disks stay
            made.clear()
            raise Refused("could not register the VM")
        if how == "killed":
            self.save()
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stolen":                # removed by somebody, and the id given to another VM, while this call fails
            self.guests[vmid] = {"node": self.state["node"], "type": "qemu", "status": "running", "config": {"name": "not-yours"}}
            self.save()
            sys.stderr.write("unable to create VM - injected\n")
            sys.stderr.flush()
            os._exit(255)

    def drive(self, vmid: str, name: str, value: str, made: list[str]) -> str:
        have = properties(value)
        storage, _, what = have.pop("").partition(":")
        source = have.pop("import-from", "")
        if what == "cloudinit":
            made.append(self.allocate(storage, vmid, 4 << 20, f"vm-{vmid}-cloudinit"))
            text = f"{made[-1]},media=cdrom"
        else:
            size = image_size(source) if source else 4 << 20 if name == "efidisk0" else int(what) * GIB
            made.append(self.allocate(storage, vmid, size))
            self.volumes[made[-1]]["source"] = source
            text = ",".join([made[-1], *(f"{key}={part}" for key, part in have.items()), f"size={size >> 20}M"])
        sys.stdout.write(f"{name}: successfully created disk '{text}'\n")
        return text

    def resize(self, args: list[str], fault: dict[str, Any]) -> int:
        vmid, disk, size = args
        config = self.unlocked(vmid)["config"]
        if disk not in config or not re.fullmatch(r"\+?\d+(\.\d+)?[KMGT]?", size):
            raise Refused(f"disk '{disk}' does not exist")
        if fault.get("how") == "silent":   # a failed task, and status 0 all the same
            sys.stderr.write("resize failed: no space left on device\n")
            return 0
        volume = config[disk].split(",")[0]
        self.volumes[volume]["size"] = int(size[:-1]) * GIB
        config[disk] = re.sub(r"size=\w+", f"size={size}", config[disk])
        return 0

    def dump(self, args: list[str], _: dict[str, Any]) -> int:
        config = self.here(args[0])["config"]
        if args[1] != "user":
            raise Refused(f"{args[1]} is not emulated")
        sys.stdout.write(user_data(config))
        return 0

    def start(self, args: list[str], fault: dict[str, Any]) -> int:
        config = self.unlocked(args[0])["config"]
        if self.guests[args[0]]["status"] == "running":
            raise Refused(f"VM {args[0]} already running")
        if fault.get("how") == "qemu":
            sys.stdout.write("kvm: -device vfio-pci: vfio 0000:41:00.0: group 12 is not viable\n")
            raise Refused("start failed: QEMU exited with code 1")
        bridge = properties(config["net0"])["bridge"]
        if bridge not in (*self.state["bridges"], *self.state["vnets"]):
            sys.stdout.write(f"bridge '{bridge}' does not exist\n")
            raise Refused("start failed: QEMU exited with code 1")
        self.guests[args[0]]["status"] = "running"
        if lab := self.state.get("qemu"):
            from tests.standins.pve_qemu import boot
            boot(self.directory, lab, args[0], config, user_data(config), self.volumes)
        if fault.get("how") == "slow":
            raise Refused(f"start failed: command '/usr/bin/kvm -id {args[0]}' failed: got timeout")
        return 0

    def stop(self, args: list[str], _: dict[str, Any]) -> int:
        self.unlocked(args[0])
        self.guests[args[0]]["status"] = "stopped"
        return 0

    def status(self, args: list[str], _: dict[str, Any]) -> int:
        sys.stdout.write(f"status: {self.here(args[0])['status']}\n")
        return 0

    def destroy(self, args: list[str], fault: dict[str, Any]) -> int:
        vmid = args[0]
        if args[1:] not in ([], ["--purge", "1"]):
            raise Refused(f"Unknown option: {args[1].lstrip('-')}\n400 unable to parse option")
        guest = self.unlocked(vmid)
        if guest["status"] == "running":
            raise Refused(f"VM {vmid} is running - destroy failed")
        for value in guest["config"].values():
            volume = str(value).split(",")[0]
            if self.volumes.get(volume, {}).get("vmid") == vmid and fault.get("how") != "leaves-disk":
                del self.volumes[volume]
        del self.guests[vmid]
        return 0

    # --- pvesm, pvesh

    def pvesm(self, args: list[str], _: dict[str, Any]) -> int:
        if args[:1] == ["list"] and len(args) == 4 and args[2] == "--vmid":
            if not re.fullmatch(STORAGE, args[1]) or args[1] not in self.state["storages"]:
                raise Refused(f"storage '{args[1]}' does not exist")
            sys.stdout.write("Volid Format  Type      Size VMID\n")
            for volume, have in sorted(self.volumes.items()):
                if volume.startswith(f"{args[1]}:") and have["vmid"] == args[3]:
                    sys.stdout.write(f"{volume} raw     images    {have['size']} {have['vmid']}\n")
        elif args[:1] == ["path"] and len(args) == 2:
            sys.stdout.write(f"{self.directory}/{args[1].replace(':', '/')}\n")
        elif args[:1] == ["free"] and len(args) == 2:
            if args[1] not in self.volumes:
                raise Refused(f"no such logical volume {args[1]}")
            del self.volumes[args[1]]
        else:
            raise Refused(f"ERROR: unknown command 'pvesm {' '.join(args)}'")
        return 0

    def pvesh(self, args: list[str], _: dict[str, Any]) -> int:
        if args[:1] != ["get"] or args[-2:] != ["--output-format", "json"]:
            raise Refused("only pvesh get PATH … --output-format json is for programs")
        sys.stdout.write(json.dumps(self.get(args[1], dict(zip(args[2:-2:2], args[3:-2:2], strict=True)))) + "\n")
        return 0

    def get(self, path: str, options: dict[str, str]) -> Any:
        state = self.state
        if path == "/cluster/nextid" and set(options) == {"--vmid"}:
            if options["--vmid"] in self.guests:
                raise Refused(f"400 Parameter verification failed.\nvmid: VM {options['--vmid']} already exists")
            return options["--vmid"]
        if path == "/cluster/resources" and options == {"--type": "vm"}:
            return [{"vmid": int(vmid), "name": guest["config"].get("name", f"VM {vmid}"), "node": guest["node"],
                     "type": guest["type"], "status": guest["status"], "template": guest.get("template", 0)}
                    for vmid, guest in self.guests.items() if not guest.get("unlisted")]
        here = state["node"]
        fixed = {"/version": {"release": f"{state['version']}.1", "version": f"{state['version']}.1.2"},
                 "/cluster/status": [{"type": "cluster", "name": "lab", "quorate": state["quorate"]},
                                     *({"type": "node", "name": name, "local": int(name == here)} for name in state["nodes"])],
                 "/nodes": [{"node": name, "maxcpu": state["maxcpu"], "maxmem": state["maxmem"]} for name in state["nodes"]],
                 "/cluster/mapping/pci": list(state["mappings"].values()),
                 f"/nodes/{state['node']}/storage": [{"storage": name, **have} for name, have in state["storages"].items()],
                 f"/nodes/{state['node']}/hardware/pci": state["pci"]}
        if path in fixed:
            return fixed[path]
        if path == f"/nodes/{state['node']}/network":
            names = [*state["bridges"], *(state["vnets"] if options.get("--type") == "any_bridge" else [])]
            return [{"iface": name, "type": "bridge", "active": 1} for name in names] + [{"iface": "eno1", "type": "eth"}]
        if found := re.fullmatch(r"/nodes/(\w+)/(qemu|lxc)/(\d+)/config", path):
            guest = self.guests.get(found[3], {})
            if (guest.get("node"), guest.get("type")) != (found[1], found[2]):
                raise Refused(f"Configuration file 'nodes/{found[1]}/qemu-server/{found[3]}.conf' does not exist")
            return {**guest["config"], "digest": "0" * 40}
        raise Refused(f"No 'get' handler defined for '{path}'")

    # --- the network around it

    def ping(self, args: list[str], _: dict[str, Any]) -> int:
        return 0 if args[-1] in self.state["answering"] else 1

    def ip(self, args: list[str], _: dict[str, Any]) -> int:
        known = self.state["neighbours"].get(args[-1])
        sys.stdout.write(json.dumps([{"dst": args[-1], "state": [known]}] if known else []) + "\n")
        return 0

    def ssh(self, args: list[str], _: dict[str, Any]) -> int:
        """A node answers when its VM runs and is told a key, `silent` times not yet."""
        user, (_dashes, address, command) = args[args.index("-l") + 1], args[-3:]
        told, running = self.state["ssh"], [guest["config"] for guest in self.guests.values() if guest["status"] == "running"
                                             and f"={address}/" in guest["config"].get("ipconfig0", "")]
        if not running or told.get("silent", 0) > 0:
            told["silent"] = told.get("silent", 0) - 1
            raise Refused(f"ssh: connect to host {address} port 22: No route to host")
        if user != running[0]["ciuser"] or told.get("denied"):
            raise Refused(f"{user}@{address}: Permission denied (publickey).")
        if command == "hostname":
            sys.stdout.write(told.get("hostname", running[0]["name"]) + "\n")
            return 0
        if command != "cloud-init status --wait":
            raise Refused(f"unexpected command {command!r}")
        sys.stdout.write(f"status: {told.get('cloud-init-says', 'done')}\n")
        return int(told.get("cloud-init", 0))

    def ssh_keygen(self, args: list[str], _: dict[str, Any]) -> int:
        sys.stdout.write(f"256 {HOST_KEY} 10.0.0.144 (ED25519)\n")
        return 0


TOOL: dict[str, Callable[[Host, list[str], dict[str, Any]], int]] = {
    "qm": Host.qm, "pvesh": Host.pvesh, "pvesm": Host.pvesm, "ping": Host.ping, "ip": Host.ip, "ssh": Host.ssh,
    "ssh-keygen": Host.ssh_keygen}


def mac_of(vmid: str) -> str:
    """The address of a VM's network card, which a real host makes up."""
    return f"BC:24:11:{int(vmid) >> 8 & 255:02X}:{int(vmid) & 255:02X}:01"
