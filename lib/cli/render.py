"""Tables for people and JSON for programs.

Room: cli. Pure text: what comes from other machines is stripped of control characters, so that a host name or a log line
cannot write to the terminal of whoever looks at it.
"""

import json
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.cli.app import Arg, arg

OUTPUT: Arg = arg("-o", "--output", choices=("table", "json"), default="table",
                  help="a table for people or JSON for programs")
WATCH: Arg = arg("--watch", action="store_true", help="show it again whenever it changes, until Ctrl-C")
LISTING: tuple[Arg, ...] = (OUTPUT, WATCH)

GAP, INDENT, NARROWEST = "  ", "    ", 24
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title and the text of its cell in a row. The last one may be long: it is wrapped to the terminal."""

    title: str
    cell: Callable[[Row], object]
    right: bool = False                    # numbers
    spare: bool = False                    # left out where the terminal is too narrow for all; -o json has it


def column(key: str, title: str = "", *, right: bool = False, spare: bool = False) -> Column:
    """The column of one key, under its own name."""
    return Column(title or key.upper().replace("_", " "), lambda row: row.get(key), right, spare)


def render_table(rows: Sequence[Row], columns: Sequence[Column], width: int | None = None) -> str:
    """Aligned lines without trailing blanks. `width`: of the terminal; None: a line a row, however long."""
    cells = [[each.title for each in columns], *([plain(each.cell(row)) for each in columns] for row in rows)]
    sizes = [max(_width(line[index]) for line in cells) for index in range(len(columns))]
    kept = _that_fit(columns, sizes, width)
    shown, widths = [columns[index] for index in kept], [sizes[index] for index in kept]
    lines: list[str] = []
    for line in cells:
        lines += _wrapped([line[index] for index in kept], shown, widths, width)
    return "\n".join(lines) + "\n"


def _that_fit(columns: Sequence[Column], sizes: Sequence[int], width: int | None) -> list[int]:
    """The columns to show: spare ones go, the rightmost first, until the others fit."""
    kept = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        needed = sum(sizes[each] + len(GAP) for each in kept[:-1]) + min(sizes[kept[-1]], NARROWEST)
        if width is None or needed <= width:
            break
        if columns[index].spare:
            kept.remove(index)
    return kept


def _wrapped(cells: Sequence[str], columns: Sequence[Column], sizes: Sequence[int], width: int | None) -> list[str]:
    """One row: the last cell is wrapped beside the others, or below them where there is no room beside."""
    head = GAP.join(_pad(cell, size, each.right) for cell, size, each in zip(cells[:-1], sizes[:-1], columns[:-1], strict=True))
    head += GAP if head else ""
    last, room = _pad(cells[-1], sizes[-1], True) if columns[-1].right else cells[-1], width - len(head) if width else 0
    if width is None or _width(last) <= room:
        return [(head + last).rstrip()]
    if room >= NARROWEST:
        first, *more = textwrap.wrap(last, room, break_on_hyphens=False)
        return [head + first, *(" " * len(head) + part for part in more)]
    return [head.rstrip(), *textwrap.wrap(last, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)]


def render_fields(fields: Sequence[tuple[str, object]], width: int | None = None) -> str:
    """`name  value` lines for one thing; a value of several lines stays below itself. Empty values are left out."""
    shown = [(name, lines) for name, value in fields if any(lines := [plain(line) for line in _lines(value)])]
    margin = max((len(name) for name, _ in shown), default=0)
    room = width - margin - len(GAP) if width else 0
    text = []
    for name, lines in shown:
        parts = [part for line in lines for part in (textwrap.wrap(line, room) if room >= NARROWEST else [line])]
        text += [f"{name if index == 0 else '':<{margin}}{GAP}{part}" for index, part in enumerate(parts)]
    return "\n".join(text) + "\n" if text else ""


def _lines(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def render_json(value: Any) -> str:
    """Indented JSON, a newline at its end."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def plain(value: object) -> str:
    """A value as the text of a cell."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(name)} {plain(item)}".rstrip() for name, item in value.items())
    return "".join(char if char.isprintable() else " " if char in "\n\t" else "?" for char in str(value))


def duration(seconds: float | None) -> str:
    """`7 s`, `12 min`, `3 h`, `5 d`: an age as people say it."""
    if seconds is None:
        return "never"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _pad(text: str, size: int, right: bool) -> str:
    blanks = " " * (size - _width(text))
    return blanks + text if right else text + blanks


def _width(text: str) -> int:
    """Cells of a terminal that the text takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
