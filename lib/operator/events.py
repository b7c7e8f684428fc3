"""What happened in the cluster, line by line.

Room: operator.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lib.base.errors import TimedOut, Unavailable
from lib.cli.app import Given, say
from lib.cli.render import Column, column, render_json, render_table
from lib.cli.watch import EVERY_S, screen_width
from lib.model.wire import EVENTS_AT_ONCE
from lib.net.client import Client
from lib.operator.connect import connect

PATH = "/ctl/v1/events"
Event = Mapping[str, Any]


def clock(at: float) -> str:
    """Wall-clock seconds as the local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


COLUMNS = (Column("TIME", lambda row: clock(row["at"])), column("target"), column("text", "EVENT"))


def list_events(given: Given) -> int:
    """The newest ones, oldest first; with --follow also what happens from now on."""
    with connect(given) as client:
        events = client.get(PATH, {"limit": given.limit})
        if given.follow:
            _write(events, given.output)
            _follow(client, events[-1]["seq"] if events else 0, given.output)
        elif given.output == "json":
            sys.stdout.write(render_json(events))
        elif events:
            sys.stdout.write(render_table(events, COLUMNS, screen_width()))
        else:
            say("no events yet")
    return 0


def _follow(client: Client, seq: int, output: str) -> None:
    """Print what is new, until Ctrl-C. A control plane that is down is said once, and what happened meanwhile comes after."""
    reachable = True
    while True:
        time.sleep(EVERY_S)
        try:
            events = client.get(PATH, {"after": seq, "limit": EVENTS_AT_ONCE})
        except (Unavailable, TimedOut) as err:
            if reachable:
                say(f"{err}; still trying")
            reachable = False
            continue
        reachable = True
        _write(events, output)
        seq = events[-1]["seq"] if events else seq


def _write(events: Sequence[Event], output: str) -> None:
    """As they come: a line each, which is an object of its own for programs."""
    for event in events:
        line = json.dumps(event) if output == "json" else _line(event)
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _line(event: Event) -> str:
    table = render_table([event], COLUMNS)
    return table.splitlines()[1]
