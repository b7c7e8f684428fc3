"""Telling systemd that a service is up, and that it is still alive (sd_notify), where systemd has asked for it.

Room: host. Without NOTIFY_SOCKET everything here does nothing.
"""

import contextlib
import os
import socket


def ready() -> None:
    """The service has started."""
    _tell("READY=1")


def alive() -> None:
    """The main loop has come round: the watchdog may wait on."""
    _tell("WATCHDOG=1")


def stopping() -> None:
    """The service is about to end, on purpose."""
    _tell("STOPPING=1")


def _tell(message: str) -> None:
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(message.encode(), f"\0{place[1:]}" if place.startswith("@") else place)
