"""Chunked bodies: where they end, and what is in them.

Room: net. No I/O, as in `http1`, and as strict: a size is one to eight hexadecimal digits, every line ends in CR LF, and
whatever comes after the last chunk is a field or refused.
"""

import re

from lib.net.http1 import FRAMING_FIELDS, BadMessage, parse_fields

LINE_LIMIT = 1024
EXTENSION_LIMIT = 4 * 1024                 # of all chunks of a body
TRAILER_LIMIT = 16

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[\t -~\x80-\xff]*)?")
_known_sizes: dict[bytes, int] = {b"%x" % size: size for size in range(1, 2048)}


class ChunkReader:
    """Follows a chunked body through the reads it arrives in. With a `sink` it also takes the data out into it."""

    __slots__ = ("_extensions", "_need", "_partial", "_trailers", "sink")

    def __init__(self, sink: bytearray | None = None) -> None:
        self.sink = sink
        self._need = 0                     # bytes of the present chunk still to come, its CR LF included
        self._partial = b""                # of a size line or trailer line
        self._trailers = -1                # number of trailer fields so far; -1 before the last chunk
        self._extensions = 0

    @property
    def between_chunks(self) -> bool:
        """Whether another chunk could begin just here."""
        return not self._need and not self._partial and self._trailers < 0

    def feed(self, data: bytes) -> int:
        """How many bytes of `data` belong to the body if it ends there, else -1. Raises BadMessage."""
        size, at = len(data), 0
        if self._need:
            at = self._finish_chunk(data)
            if self._need:
                return -1
        elif self._partial:
            return self._resume(data)
        if self._trailers >= 0:
            return self._read_trailers(data, at)
        while at < size:
            end = data.find(b"\r\n", at)
            if end < 0:
                return self._keep(data, at)
            length = _known_sizes.get(data[at:end])
            if length is None:
                length = self._parse_size(data[at:end])
            if not length:
                self._trailers = 0
                return self._read_trailers(data, end + 2)
            at = self._take_chunk(data, end + 2, length)
        return -1

    def _take_chunk(self, data: bytes, start: int, length: int) -> int:
        """Consume the chunk whose data starts at `start`, as far as it is there; where the next one begins."""
        stop = start + length
        if self.sink is not None:
            self.sink += data[start:stop]
        if stop + 2 <= len(data):
            if data[stop:stop + 2] != b"\r\n":
                raise BadMessage("chunk data not followed by CR LF")
        elif stop < len(data) and data[stop] != 13:
            raise BadMessage("chunk data not followed by CR LF")
        else:
            self._need = stop + 2 - len(data)
        return stop + 2

    def _finish_chunk(self, data: bytes) -> int:
        """Consume what `data` holds of a chunk begun earlier; where the next one begins."""
        need, size = self._need, len(data)
        if self.sink is not None and need > 2:
            self.sink += data[:need - 2]
        tail = data[max(0, need - 2):need]
        if tail and tail != b"\r\n"[2 - min(need, 2):][:len(tail)]:
            raise BadMessage("chunk data not followed by CR LF")
        self._need = max(0, need - size)
        return need

    def _keep(self, data: bytes, at: int) -> int:
        """Put an unfinished line by."""
        partial = self._partial = data[at:]
        if b"\n" in partial or b"\r" in partial[:-1]:
            raise BadMessage("a chunk line does not end in CR LF")
        if len(partial) > LINE_LIMIT:
            raise BadMessage("chunk line too long")
        return -1

    def _resume(self, data: bytes) -> int:
        before = len(self._partial)
        joined, self._partial = self._partial + data, b""
        end = self._read_trailers(joined, 0) if self._trailers >= 0 else self.feed(joined)
        return end - before if end >= 0 else -1

    def _parse_size(self, line: bytes) -> int:
        match = _SIZE.fullmatch(line)
        if not match or len(line) > LINE_LIMIT:
            raise BadMessage("malformed chunk size")
        self._extensions += len(match[2] or b"")
        if self._extensions > EXTENSION_LIMIT:
            raise BadMessage("chunk extensions too long")
        return int(match[1], 16)

    def _read_trailers(self, data: bytes, at: int) -> int:
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                return self._keep(data, at)
            if end == at:
                return end + 2
            self._trailers += 1
            if self._trailers > TRAILER_LIMIT or end - at > LINE_LIMIT:
                raise BadMessage("too many trailer fields")
            if parse_fields(data[at:end])[0][0] in FRAMING_FIELDS:
                raise BadMessage("a framing field in the trailer")
            at = end + 2
