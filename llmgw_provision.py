"""llmgw-provision-node: makes a Proxmox VM for a node from a cloud image. A door; this build cannot do it yet.

Room: root.
"""

import sys
from collections.abc import Sequence

from lib.operator.later import not_yet

PURPOSE = "Makes the virtual machine of a node on a Proxmox host, from a cloud image, with GPUs and adapters passed through."


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return not_yet("llmgw-provision-node", PURPOSE, argv)


if __name__ == "__main__":
    sys.exit(main())
