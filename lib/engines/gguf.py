"""Whether a GGUF file, or every part of a split one, is there and complete, told from its header without loading it.

Room: engines. Reads files, changes nothing. A file of known size and date is looked at once.
"""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_LFS = b"version https://git-lfs"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_STRING, _ARRAY = 8, 9
_WIDTHS: Mapping[int, int] = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_WANTED = ("general.alignment", "split.count", "split.no", "split.tensors.count")
_BLOCKS: Mapping[int, tuple[int, int]] = {   # tensor type -> (elements, bytes) of a block; a type not here is taken on trust
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
    12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56),
    30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36)}


class NotComplete(Exception):
    """Why a file cannot be loaded, as a sentence without its name."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of one file says. `split_count` is 0 for a file that is whole by itself."""

    tensors: int
    split_count: int = 0
    split_number: int = 0
    split_tensors: int = 0


def source_fault(path: str) -> str:
    """Empty when the file at `path` is a complete model (all parts, where it is split), else what is wrong."""
    part = _PART.fullmatch(Path(path).name)
    if part and part["number"] != "00001":
        return f"{path} is part {int(part['number'])} of a split model: name the first part"
    try:
        first = _header(path)
        if not part:
            return f"{path} is part of a split model but not named so" if first.split_count > 1 else ""
        return _split_fault(path, part, first)
    except NotComplete as err:
        return str(err)


def _split_fault(path: str, part: re.Match[str], first: Header) -> str:
    count = int(part["count"])
    if first.split_count != count:
        return f"{path} is named as one of {count} parts but says it is one of {first.split_count}"
    tensors = first.tensors
    for number in range(2, count + 1):
        other = str(Path(path).with_name(f"{part['stem']}-{number:05}-of-{count:05}.gguf"))
        header = _header(other)
        if header.split_number != number - 1:
            return f"{other} says it is part {header.split_number + 1}"
        tensors += header.tensors
    if first.split_tensors and tensors != first.split_tensors:
        return f"the parts of {path} hold {tensors} tensors of {first.split_tensors}"
    return ""


def _header(path: str) -> Header:
    """The header of a file that is complete; NotComplete otherwise."""
    try:
        stat = os.stat(path)
        if not os.path.isfile(path):
            raise NotComplete(f"{path} is not a file: name the .gguf file itself")
        found = _looked_at(path, stat.st_size, stat.st_mtime_ns)
    except OSError as err:
        raise NotComplete(f"{path}: {err.strerror}") from None
    if isinstance(found, str):
        raise NotComplete(f"{path} {found}")
    return found


@lru_cache(maxsize=256)
def _looked_at(path: str, size: int, mtime_ns: int) -> Header | str:     # noqa: ARG001 - the date is part of the cache's key
    with open(path, "rb") as file:
        try:
            return _Reader(file, size).header()
        except NotComplete as err:
            return str(err)


class _Reader:
    """Walks a header; never trusts a number in it past the size of the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._at = file, size, 0
        self._wanted: dict[str, int] = {}

    def header(self) -> Header:
        self._check_start()
        tensors, keys = self._numbers("<QQ")
        for _ in range(keys):
            self._key()
        end = max([self._tensor_end() for _ in range(tensors)], default=0)
        alignment = self._wanted.get("general.alignment", 32) or 32
        needed = -(-self._at // alignment) * alignment + end
        if end and needed > self._size:
            raise NotComplete(f"is not complete: {self._size} bytes of {needed}")
        return Header(tensors, self._wanted.get("split.count", 0), self._wanted.get("split.no", 0),
                      self._wanted.get("split.tensors.count", 0))

    def _check_start(self) -> None:
        start = self._file.read(len(_LFS))
        if not start:
            raise NotComplete("is empty")
        if start == _LFS:
            raise NotComplete("is a Git LFS pointer, not the weights themselves")
        if start[:4] != MAGIC:
            raise NotComplete("is not a GGUF file")
        self._seek(4)
        (version,) = self._numbers("<I")
        if version not in VERSIONS:
            raise NotComplete(f"is GGUF of version {version}, known are {' and '.join(map(str, VERSIONS))}")

    def _key(self) -> None:
        name = self._text()
        (kind,) = self._numbers("<I")
        if name in _WANTED and kind in (2, 3, 4, 5, 10, 11):
            raw = self._take(_WIDTHS[kind])
            self._wanted[name] = int.from_bytes(raw, "little", signed=kind in (3, 5, 11))
        else:
            self._skip_value(kind)

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip(*self._numbers("<Q"))
        elif kind == _ARRAY:
            inner, count = self._numbers("<IQ")
            if inner in _WIDTHS:
                self._skip(count * _WIDTHS[inner])
            else:
                for _ in range(count):
                    self._skip_value(inner)
        elif kind in _WIDTHS:
            self._skip(_WIDTHS[kind])
        else:
            raise NotComplete(f"has a value of unknown type {kind} in its header")

    def _tensor_end(self) -> int:
        """Where a tensor ends, counted from the start of the data."""
        self._skip(*self._numbers("<Q"))
        (dimensions,) = self._numbers("<I")
        shape = self._numbers(f"<{min(dimensions, 8)}Q")
        kind, offset = self._numbers("<IQ")
        elements = 1
        for length in shape:
            elements *= length
        per_block, width = _BLOCKS.get(kind, (1, 0))
        return offset + -(-elements // per_block) * width

    def _text(self) -> str:
        (length,) = self._numbers("<Q")
        return self._take(length).decode(errors="replace")

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, count: int) -> bytes:
        self._skip_check(count)
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        self._skip_check(count)
        self._file.seek(count, os.SEEK_CUR)

    def _skip_check(self, count: int) -> None:
        self._at += count
        if self._at > self._size:
            raise NotComplete(f"is not complete: it ends within its header, at {self._size} bytes")

    def _seek(self, place: int) -> None:
        self._at = place
        self._file.seek(place)
