"""What the sim engine says: words counted as tokens, an answer that shows it is a simulation, embeddings made of checksums.

Room: engines. Pure and deterministic: the same request gets the same answer on every replica.
"""

import hashlib
import math
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

_TOKEN = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")
_VOCABULARY = 32000
_GIST_WORDS = 16
_FILLER = " One word follows another, at the rate that was asked for."


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: its tokens and why it ends."""

    tokens: tuple[str, ...]
    finish: str                            # stop | length

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def split(text: str) -> list[str]:
    """`text` as tokens; joined they are the text again."""
    return _TOKEN.findall(text)


def token_ids(text: str) -> list[int]:
    """A number for each token."""
    return [zlib.crc32(token.encode()) % _VOCABULARY for token in split(text)]


def gist(prompt: str) -> str:
    """The last words of a prompt's beginning: enough to recognise it."""
    words = prompt.split()
    return " ".join(words[:_GIST_WORDS]) + (" …" if len(words) > _GIST_WORDS else "")


def answer(model: str, prompt: str, variant: int = 0) -> str:
    """All that the sim engine has to say to a prompt."""
    which = f" (choice {variant + 1})" if variant else ""
    said = f"You wrote: “{gist(prompt)}”" if prompt.strip() else "You wrote nothing"
    return (f"This is the simulated model {model}{which}. {said}. "
            "No weights were loaded for this answer; it shows that your request found its way here and back.")


def choose(text: str, *, length: int, limit: int, minimum: int = 0, endless: bool = False, stops: Sequence[str] = ()) -> Choice:
    """`text` made `length` tokens long (0: as it is), then cut by the stop words and the limit, as an engine would."""
    tokens = split(text)
    natural = limit if endless else max(length or len(tokens), minimum)
    tokens = list(islice((*tokens, *_filler(natural - len(tokens))), natural))
    finish = "stop"
    cuts = [at for stop in stops if stop and (at := "".join(tokens).find(stop)) >= 0]
    if cuts:
        tokens = split("".join(tokens)[:min(cuts)])
    if len(tokens) > limit or (endless and not cuts):
        tokens, finish = tokens[:limit], "length"
    return Choice(tuple(tokens), finish)


def embedding(text: str, size: int) -> list[float]:
    """A vector of length 1 that depends on nothing but the text."""
    raw = hashlib.shake_128(text.encode()).digest(2 * size)
    values = [number / 32768 for number in struct.unpack(f"<{size}h", raw)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / norm for value in values]


def _filler(count: int) -> list[str]:
    return list(islice(cycle(split(_FILLER)), max(0, count)))
