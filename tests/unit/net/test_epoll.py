"""The loop: descriptors, timers, hand-over from threads, and bugs in callbacks."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lib.net.epoll import IN, OUT, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_readable_descriptor_is_called_and_stop_ends_the_run(loop: Loop) -> None:
    left, right = socket.socketpair()
    got: list[bytes] = []

    def read(_events: int) -> None:
        got.append(right.recv(100))
        loop.stop()

    loop.register(right.fileno(), read, IN)
    left.send(b"hello")
    loop.run()
    assert got == [b"hello"]
    loop.unregister(right.fileno())
    left.close()
    right.close()


def test_modify_changes_what_is_waited_for(loop: Loop) -> None:
    left, right = socket.socketpair()
    seen: list[int] = []

    def event(events: int) -> None:
        seen.append(events)
        loop.stop()

    loop.register(left.fileno(), event, IN)
    loop.modify(left.fileno(), OUT)
    loop.run()
    assert seen == [OUT]
    loop.unregister(left.fileno())
    left.close()
    right.close()


def test_timers_come_in_order_and_cancelled_ones_never(loop: Loop) -> None:
    called: list[str] = []
    loop.call_later(0.02, lambda: called.append("second"))
    loop.call_later(0.02, loop.stop)
    loop.call_later(0.01, lambda: called.append("first"))
    loop.call_later(0.005, lambda: called.append("cancelled")).cancel()
    loop.run()
    assert called == ["first", "second"]


def test_another_thread_wakes_a_sleeping_loop(loop: Loop) -> None:
    began = time.monotonic()
    loop.call_later(30, loop.stop)
    thread = threading.Timer(0.02, loop.call_soon_threadsafe, (loop.stop,))
    thread.start()
    loop.run()
    thread.join()
    assert time.monotonic() - began < 10


def test_a_callback_that_raises_is_logged_and_the_loop_goes_on(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    left, right = socket.socketpair()

    def broken(_events: int) -> None:
        raise ZeroDivisionError("a bug")

    loop.register(right.fileno(), broken, IN)
    left.send(b"x")
    loop.call_later(0.05, loop.stop)
    with caplog.at_level(logging.ERROR):
        loop.run()
    assert "a bug" in caplog.text
    assert caplog.text.count("ZeroDivisionError: a bug") == 1
    left.close()
    right.close()


def test_who_asks_is_told_of_a_bug_and_which_descriptor_it_was() -> None:
    told: list[int] = []

    def on_bug(fd: int, _callback: object) -> None:
        told.append(fd)
        busy.unregister(fd)
        busy.stop()

    busy = Loop(on_bug)
    reader, writer = os.pipe()
    busy.register(reader, lambda events: 1 // 0, IN)
    os.write(writer, b"x")
    busy.run()
    assert told == [reader]
    busy.close()
    os.close(reader)
    os.close(writer)


def test_an_event_of_a_closed_descriptor_never_reaches_the_next_owner_of_its_number(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    wrong: list[str] = []
    fresh: list[socket.socket] = []

    def first(_events: int) -> None:
        for _, right in pairs:
            loop.unregister(right.fileno())
            right.close()
        for _ in pairs:
            fresh.extend(socket.socketpair())
        for sock in fresh:
            loop.register(sock.fileno(), lambda events: wrong.append("called"), IN)
        loop.call_later(0.02, loop.stop)

    for left, right in pairs:
        loop.register(right.fileno(), first, IN)
        left.send(b"x")
    loop.run()
    assert wrong == []
    for sock in [*fresh, *(left for left, _ in pairs)]:
        loop.unregister(sock.fileno())
        sock.close()
