"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout_s: float = 10.0, every_s: float = 0.02) -> T:
    """The first truthy value of `check()`. AssertionError, with its last value or error, once `timeout_s` has passed."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            if value := check():
                return value
            last = value
        except (AssertionError, OSError, LookupError) as err:
            last = err
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s; last: {last!r}")
        time.sleep(every_s)
