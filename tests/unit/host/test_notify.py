"""What systemd is told, where it listens."""

import socket
from pathlib import Path

import pytest

from lib.host import notify


def test_systemd_is_told_when_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for tell, message in ((notify.ready, b"READY=1"), (notify.alive, b"WATCHDOG=1"), (notify.stopping, b"STOPPING=1")):
            tell()
            assert manager.recv(64) == message


def test_nothing_happens_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.ready()
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/socket")
    notify.ready()
