"""The log of a program that stays: lines on stderr, with the time unless the journal adds it.

Room: cli.
"""

import logging
import os
import sys

from lib.cli.app import Arg, arg

VERBOSE: Arg = arg("-v", "--verbose", action="store_true", help="log also what only a developer wants to know")


def start_logging(*, verbose: bool = False) -> None:
    """Send the log to stderr from now on."""
    stamp = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s "
    logging.basicConfig(stream=sys.stderr, level=logging.DEBUG if verbose else logging.INFO, force=True,
                        format=f"{stamp}%(levelname)s %(name)s: %(message)s")
    for noisy in ("urllib3", "requests"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
