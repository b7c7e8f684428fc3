"""A view that is shown again whenever it changes, and says how old it is once nobody answers any more.

Room: cli. What is on the screen is always one whole fresh answer, never a patch of two; a lost connection leaves the last one
there, with its age, until another answer comes.
"""

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib.base.errors import LlmgwError, TimedOut, Unavailable
from lib.cli.app import say
from lib.cli.render import duration, render_json

EVERY_S = 1.0
_HOME, _LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass(frozen=True, slots=True)
class View:
    """`fetch` asks, `draw(value, width)` makes text of the answer; `title` names it above a screen."""

    title: str
    fetch: Callable[[], Any]
    draw: Callable[[Any, int | None], str]


def show(view: View, output: str, *, watch: bool = False) -> int:
    """Print the view once, or until Ctrl-C. The exit code."""
    if not watch:
        sys.stdout.write(_text(view, view.fetch(), output, screen_width()))
        return 0
    if output == "table" and sys.stdout.isatty():
        _on_screen(view)
    _in_lines(view, output)
    return 0


def screen_width() -> int | None:
    """Columns of the terminal; None where stdout is none, and nothing has to be shortened."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _text(view: View, value: Any, output: str, width: int | None) -> str:
    return render_json(value) if output == "json" else view.draw(value, width)


def _in_lines(view: View, output: str) -> None:
    """Each change whole, one after the other: for pipes and files."""
    last, reachable = "", True
    while True:
        try:
            value = view.fetch()
            if not reachable:
                say("answers again")
            text, reachable = _text(view, value, output, None), True
            if (essence := render_json(_without_ages(value))) != last:
                last = essence
                sys.stdout.write(text if output == "json" else f"{text}\n")
                sys.stdout.flush()
        except (Unavailable, TimedOut) as err:
            if reachable:
                say(f"{err}; what was shown last may be out of date")
            reachable = False
        time.sleep(EVERY_S)


def _without_ages(value: Any) -> Any:
    """The value without what changes by itself."""
    if isinstance(value, dict):
        return {key: _without_ages(item) for key, item in value.items() if key not in ("age_s", "heard_s")}
    return [_without_ages(item) for item in value] if isinstance(value, list) else value


def _on_screen(view: View) -> None:
    """One screen, drawn again each time: also when it has not changed, since the terminal may have another size."""
    value: Any = None
    heard: float | None = None
    sys.stdout.write(f"{_HOME}{_BELOW}")
    while True:
        trouble: LlmgwError | None = None
        try:
            value, heard = view.fetch(), time.monotonic()
        except (Unavailable, TimedOut) as err:
            trouble = err
        size = shutil.get_terminal_size()
        body = view.draw(value, size.columns) if heard is not None else ""
        head = _headline(view.title, trouble, None if heard is None else time.monotonic() - heard)
        sys.stdout.write(fit(f"{head}\n\n{body}", size.columns, size.lines))
        sys.stdout.flush()
        time.sleep(EVERY_S)


def _headline(title: str, trouble: LlmgwError | None, age_s: float | None) -> str:
    if trouble is None:
        return f"{title}   {time.strftime('%H:%M:%S')}   Ctrl-C ends"
    if age_s is None:
        return f"{title}   waiting: {trouble}"
    return f"{title}   STALE, {duration(age_s)} old: {trouble}"


def fit(text: str, columns: int, lines: int) -> str:
    """A screen's worth of `text` as what to write to a terminal: from the top left, the rest of the screen cleared."""
    rows = text.rstrip("\n").split("\n")
    if len(rows) > lines - 1:
        rows = [*rows[:lines - 2], f"... {len(rows) - lines + 2} more lines: make the window higher"]
    return _HOME + "".join(f"{row[:columns]}{_LINE_END}\n" for row in rows) + _BELOW
