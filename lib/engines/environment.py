"""The environment every engine starts in: made from nothing, so that no setting of the agent's own leaks into it.

Room: engines. Pure. What a guarantee hangs on cannot be set by a profile; the catalog refuses it by name (`bad_variable`).
"""

from collections.abc import Mapping, Sequence

from lib.base.errors import Refused
from lib.engines.interface import Launch
from lib.model.fleet import Gpu
from lib.model.rundir import shard_marker

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
           "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
_COMFORT = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "NCCL_DEBUG": "WARN"}
_GPUS = "llmgw gives each shard its own GPUs"
_NETWORK = "llmgw names the adapters and the interface of the replica's fabric"
_OFFLINE = "engines never fetch anything"
PROTECTED: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": _GPUS, "CUDA_DEVICE_ORDER": _GPUS, "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "HIP_VISIBLE_DEVICES": _GPUS, "ROCR_VISIBLE_DEVICES": _GPUS, "GGML_VK_VISIBLE_DEVICES": _GPUS,
    "NCCL_IB_HCA": _NETWORK, "NCCL_NET": _NETWORK, "NCCL_SOCKET_IFNAME": _NETWORK, "GLOO_SOCKET_IFNAME": _NETWORK,
    "NCCL_CONF_FILE": _NETWORK, "NCCL_IB_DISABLE": _NETWORK, "HOST_IP": _NETWORK,
    "NCCL_IGNORE_NET_MISMATCH": "adapters that differ between shards would hang instead of failing",
    **dict.fromkeys(OFFLINE, _OFFLINE),
}


def environment(launch: Launch, own: Mapping[str, str]) -> dict[str, str]:
    """All variables of one shard; `own` are the engine's. A profile may change comforts, never a guarantee."""
    order = launch.order
    marker, _, value = shard_marker(*order.key, order.nonce).partition("=")
    guarantees = {**OFFLINE, **own, **_gpu_variables(launch), **_fabric_variables(launch), marker: value}
    return {**_COMFORT, "HOME": launch.home, **order.env, **guarantees}


def bad_variable(name: str, prefixes: Mapping[str, str]) -> str:
    """Why a profile may not set this variable; `prefixes` are the engine's own, with the reason."""
    for prefix, reason in {"LLMGW_": "llmgw marks its processes with it", **prefixes}.items():
        if name.startswith(prefix):
            return f"{name} cannot be set: {reason}"
    return f"{name} cannot be set: {PROTECTED[name]}" if name in PROTECTED else ""


def gpu_indices(wanted: Sequence[str], gpus: Sequence[Gpu]) -> str:
    """The indices of GPUs given by UUID, in PCI order as nvidia-smi counts, for CUDA_VISIBLE_DEVICES."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    if missing := [uuid for uuid in wanted if uuid not in index]:
        raise Refused(f"this node has no GPU {', '.join(missing)}", hint="look at the GPUs in: llmgw-ctl node NAME")
    return ",".join(str(index[uuid]) for uuid in wanted)


def hca_list(adapters: Sequence[str]) -> str:
    """NCCL_IB_HCA for exactly these adapters: without the leading '=' mlx5_1 would also take mlx5_10."""
    return "=" + ",".join(name if ":" in name else f"{name}:1" for name in adapters)


def _gpu_variables(launch: Launch) -> dict[str, str]:
    """A shard without GPUs sees none."""
    return {"CUDA_VISIBLE_DEVICES": gpu_indices(launch.order.gpus, launch.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _fabric_variables(launch: Launch) -> dict[str, str]:
    """NCCL_NET=IB makes an adapter that is not there an error; the configuration files NCCL reads silently are shut out."""
    if launch.order.shard_count == 1:
        return {}
    found = {"NCCL_CONF_FILE": "/dev/null"}
    if launch.order.adapters:
        found |= {"NCCL_NET": "IB", "NCCL_IB_HCA": hca_list(launch.order.adapters)}
    if launch.interface:
        found |= {"NCCL_SOCKET_IFNAME": f"={launch.interface}", "GLOO_SOCKET_IFNAME": launch.interface}
    return found
