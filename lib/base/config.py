"""Checked reading of TOML: every fault of a file at once, each with its line and a suggestion.

Room: base. A `Table` hands out typed values and collects what is wrong; `settle` refuses the file as a whole.
Past this module nobody sees a raw dict.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lib.base.errors import ConfigError, Fault, bad_config
from lib.base.files import read_text

T = TypeVar("T")
_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KINDS: Mapping[type, str] = {str: "a string", int: "a whole number", float: "a number", bool: "true or false",
                              list: "a list", dict: "a table"}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion for a misspelt word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'did you mean "{near[0]}"?' if near else ""


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line that sets `path` in TOML `text`, or its table's header, or 0. A search, not a parse: good enough to point."""
    table: tuple[str, ...] = ()
    header_line = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
            table = _split_key(header[1])
            if table == path:
                return number
            if table == path[:-1]:
                header_line = number
        elif (setting := re.match(r"\s*([^=#]+?)\s*=", line)) and path[: len(full := table + _split_key(setting[1]))] == full:
            return number
    return header_line


def _split_key(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", key))


class Table:
    """One TOML table being read. Ask for each key once, by its type; then `settle()` on the outermost one."""

    def __init__(self, data: Mapping[str, Any], *, file: str, text: str, path: tuple[str, ...] = (),
                 faults: list[Fault] | None = None) -> None:
        self.file, self.path, self._data, self._text = file, path, data, text
        self._faults: list[Fault] = [] if faults is None else faults
        self._asked: set[str] = set()
        self._children: list[Table] = []

    def fault(self, key: str, problem: str, hint: str = "") -> None:
        """Note that `key` (empty: the table itself) is wrong."""
        path = (*self.path, key) if key else self.path
        self._faults.append(Fault(self.file, line_of(self._text, path), ".".join(path), problem, hint))

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def keys(self) -> list[str]:
        """The keys present, in file order."""
        return list(self._data)

    def text(self, key: str, default: str | None = None, *, pattern: str = "", expect: str = "") -> str:
        """A string; a fault where it is missing without default or does not match `pattern` (said as `expect`)."""
        value = self._take(key, str, default, "")
        if pattern and key in self._data and isinstance(self._data[key], str) and not re.fullmatch(pattern, value):
            self.fault(key, f"{value!r} is not {expect or 'of the expected form'}")
        return value

    def file_path(self, key: str, default: str | None = None) -> Path:
        """An absolute path; a relative one counts from the file's own directory, wherever the program was started."""
        return Path(self.file).absolute().parent / self.text(key, default)

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int = 2**31) -> int:
        """A whole number within [low, high]."""
        return int(self._bounded(key, self._take(key, int, default, low), low, high))

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e9) -> float:
        """A number (whole ones too) within [low, high]."""
        return self._bounded(key, float(self._take(key, float, default, low)), low, high)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return self._take(key, bool, default, default)

    def texts(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """A list of strings."""
        value: list[Any] = self._take(key, list, None if default is None else list(default), [])
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        self.fault(key, "must be a list of strings")
        return ()

    def text_map(self, key: str) -> dict[str, str]:
        """A table of strings; empty where the key is missing."""
        value: dict[str, Any] = self._take(key, dict, {}, {})
        if all(isinstance(item, str) for item in value.values()):
            return dict(value)
        self.fault(key, "must be a table of strings")
        return {}

    def table(self, key: str) -> "Table":
        """A sub-table; an empty one where the key is missing."""
        return self._child(self._take(key, dict, {}, {}), key)

    def tables(self, key: str) -> dict[str, "Table"]:
        """A table of tables, such as [models.NAME], by name."""
        found = {}
        rows: dict[str, Any] = self._take(key, dict, {}, {})
        for name, value in rows.items():
            if isinstance(value, dict):
                found[name] = self._child(value, key, name)
            else:
                self.fault(key, f"{name} must be a table", f"write [{key}.{name}]")
        return found

    def settle(self) -> None:
        """Refuse the file if anything in it is wrong, keys that nobody asked for included. Raises ConfigError."""
        self._note_unknown()
        if self._faults:
            raise ConfigError(sorted(self._faults, key=lambda fault: fault.line))

    def _note_unknown(self) -> None:
        for key in self._data:
            if key not in self._asked:
                self.fault(key, "unknown key", did_you_mean(key, self._asked))
        for child in self._children:
            child._note_unknown()

    def _child(self, data: Mapping[str, Any], *names: str) -> "Table":
        child = Table(data, file=self.file, text=self._text, path=(*self.path, *names), faults=self._faults)
        self._children.append(child)
        return child

    def _take(self, key: str, kind: Callable[..., T], default: T | None, fallback: T) -> T:
        self._asked.add(key)
        if key not in self._data:
            if default is None:
                self.fault(key, "is missing")
                return fallback
            return default
        value = self._data[key]
        fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)  # type: ignore[arg-type]
        if fits and (kind is bool or not isinstance(value, bool)):
            return value  # type: ignore[no-any-return]
        self.fault(key, f"must be {_KINDS[kind]}, not {_KINDS.get(type(value), type(value).__name__)}")  # type: ignore[index]
        return fallback

    def _bounded(self, key: str, value: float, low: float, high: float) -> float:
        if not low <= value <= high:
            self.fault(key, f"{value:g} is outside {low:g} to {high:g}")
            return low
        return value


def parse_toml(text: str, file: str) -> Table:
    """TOML text as a Table; ConfigError with the line where it is not TOML. `file` is only named, not read."""
    try:
        return Table(tomllib.loads(text), file=file, text=text)
    except tomllib.TOMLDecodeError as err:
        where = _SYNTAX_LINE.search(str(err))
        raise bad_config(file, f"is not TOML: {_SYNTAX_LINE.sub('', str(err)).strip()}",
                         line=int(where[1]) if where else len(text.splitlines())) from None


def read_toml(path: Path) -> Table:
    """The file at `path` as a Table."""
    return parse_toml(read_text(path), str(path))
