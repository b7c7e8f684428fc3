"""Removing what a failed run made, and nothing else.

Room: provision. A VM is this run's when its description carries the run's mark, looked at right before it is removed; a volume is
when `qm create` said in this run that it made it and no VM of the id is left. All else is named and left alone.
"""

import re
from collections.abc import Iterator

from lib.base.errors import LlmgwError
from lib.provision.plan import CHANGE_S, Mark
from lib.remote import proxmox


def made_volumes(output: str) -> frozenset[str]:
    """The volumes that `qm create` says it made."""
    return frozenset(re.findall(r"successfully created disk '([^',\s]+)", output))


def undo(vmid: int, node: str, mark: Mark, storage: str, before: frozenset[str], said: str) -> list[str]:
    """Remove what this run made of VM `vmid`; sentences on what was done and what is left."""
    try:
        return list(_undo(vmid, node, mark, storage, before, said))
    except LlmgwError as err:
        return [f"cleaning up failed: {err}", f"look at: qm config {vmid}; the mark of this run is {mark.run}"]


def _undo(vmid: int, node: str, mark: Mark, storage: str, before: frozenset[str], said: str) -> Iterator[str]:
    config = proxmox.find_config(node, vmid)
    own = frozenset[str]()
    if config is not None:
        if mark.run not in config.get("description", ""):
            yield _not_ours(vmid, config)
            return
        yield from _destroy(vmid)
        own = frozenset(value.split(",")[0] for value in config.values())
    elif proxmox.is_taken(vmid):
        yield f"{vmid} is now a guest that this run did not make: it was not touched"
        return
    yield from _free_volumes(vmid, storage, before, made_volumes(said) | own, removed=config is not None)


def _not_ours(vmid: int, config: dict[str, str]) -> str:
    if config.get("lock") == "create":
        return (f"VM {vmid} is a reservation without a mark (lock: create), of this run or somebody else's: it was not touched; "
                f"once nobody works on it: qm destroy {vmid} --skiplock 1 --purge 1, and pvesm list STORAGE --vmid {vmid}")
    return f"VM {vmid} ({config.get('name', 'no name')}) was not made by this run: it was not touched"


def _destroy(vmid: int) -> Iterator[str]:
    if proxmox.read_status(vmid) == "running":
        proxmox.change(("qm", "stop", str(vmid)), timeout_s=CHANGE_S)
    proxmox.change(("qm", "destroy", str(vmid), "--purge", "1"), timeout_s=CHANGE_S)
    yield f"VM {vmid}, made by this run, was removed"


def _free_volumes(vmid: int, storage: str, before: frozenset[str], own: frozenset[str], *,
                  removed: bool) -> Iterator[str]:
    left = proxmox.read_volumes(storage, vmid) - before
    for volume in sorted(left & own):
        try:
            proxmox.change(("pvesm", "free", volume), timeout_s=CHANGE_S)
            yield f"volume {volume}, made by this run, was removed"
        except LlmgwError as err:
            yield f"volume {volume}, made by this run, could not be removed: {err}"
    for volume in sorted(left - own):
        yield f"volume {volume} appeared meanwhile; that this run made it is not proved, so it was not touched"
    if not left and not removed:
        yield "nothing was left to remove"
