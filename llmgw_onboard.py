"""llmgw-onboard-node: gives a machine an identity and an agent, over ssh. A door; this build cannot do it yet.

Room: root.
"""

import sys
from collections.abc import Sequence

from lib.operator.later import not_yet

PURPOSE = "Gives a machine a certificate of the cluster and a running agent, over ssh, from the host that holds the authority."


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return not_yet("llmgw-onboard-node", PURPOSE, argv)


if __name__ == "__main__":
    sys.exit(main())
