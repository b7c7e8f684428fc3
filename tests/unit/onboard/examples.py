"""A node as it says it is."""

from lib.model.fleet import Adapter
from lib.onboard.facts import Facts
from lib.onboard.wanted import Wanted

NOW = 1_800_000_000.0
WANTED = Wanted("llmgw-node04", "10.0.0.144", "https://10.0.0.140:7443")
BARE = Facts(uid=0, python="/usr/bin/python3", python_version="3.11.2", openssl=True, systemd=True, system="Debian GNU/Linux 12",
             hostname="llmgw-node04", time=NOW, trust=("update-ca-certificates",), addresses=("127.0.0.1", "10.0.0.144", "::1"),
             nvidia_smi="/usr/bin/nvidia-smi", ib_root=True)
ADAPTERS = tuple(Adapter(f"mlx5_{number}", link_layer="InfiniBand", state="ACTIVE") for number in range(4))
