"""Makes GGUF files: one with random weights small enough for every test, which a real llama-server loads; and broken ones.

Standard library only. The model is a two-layer Llama over single characters: what it says is noise, but it says it properly.
"""

import random
import string
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT = 64, 128, 4, 2, 2048
ALIGNMENT = 32
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
_FORMS = {int: (4, "<I"), float: (6, "<f")}

Tensor = tuple[str, tuple[int, ...], bytes]          # of 32-bit floats, the fastest dimension first


def write_tiny_model(path: Path, *, seed: int = 0) -> Path:
    """A complete model at `path`, about 370 KB."""
    path.write_bytes(gguf(_settings(), _weights(random.Random(seed))))
    return path


def write_split_model(directory: Path, parts: int = 2) -> list[Path]:
    """A model cut into parts whose headers agree; good for completeness checks, not for loading."""
    tensors = [(f"blk.{number}.weight", (8, 4), bytes(128)) for number in range(2 * parts)]
    paths = []
    for number in range(parts):
        path = directory / f"model-{number + 1:05}-of-{parts:05}.gguf"
        settings = {"split.count": parts, "split.no": number, "split.tensors.count": len(tensors)}
        path.write_bytes(gguf(settings, tensors[2 * number:2 * number + 2]))
        paths.append(path)
    return paths


def gguf(settings: Mapping[str, object], tensors: Sequence[Tensor]) -> bytes:
    """The bytes of a GGUF file, version 3."""
    table, data = bytearray(), bytearray()
    for name, shape, raw in tensors:
        table += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _padded(raw)
    pairs = b"".join(_text(name) + _value(value) for name, value in settings.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings)) + pairs + bytes(table)
    return _padded(head) + bytes(data)


def _settings() -> dict[str, object]:
    letters = ["▁", *string.ascii_letters, *string.digits, *".,?!:;-_/'\"", "\n"]
    pieces = ["<unk>", "<s>", "</s>", *letters]
    return {
        "general.architecture": "llama", "general.name": "tiny", "general.file_type": 0,
        "llama.vocab_size": len(pieces), "llama.context_length": CONTEXT, "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN, "llama.block_count": LAYERS, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS, "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": [0.0] * len(pieces),
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * len(letters)], "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": TEMPLATE}


def _weights(dice: random.Random) -> list[Tensor]:
    vocabulary = len(_settings()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    square, up, down = (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    shapes = {"token_embd": (WIDTH, vocabulary), "output": (WIDTH, vocabulary), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {"attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
                 "ffn_gate": up, "ffn_up": up, "ffn_down": down, "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return [(f"{name}.weight", shape, _floats(_numbers(dice, shape))) for name, shape in shapes.items()]


def _numbers(dice: random.Random, shape: tuple[int, ...]) -> Iterable[float]:
    if len(shape) == 1:                    # a norm's gain
        return [1.0] * shape[0]
    return (dice.gauss(0, 0.05) for _ in range(shape[0] * shape[1]))


def _floats(numbers: Iterable[float]) -> bytes:
    return array("f", numbers).tobytes()


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return _list(value)
    kind, form = _FORMS[type(value)]
    return struct.pack("<I", kind) + struct.pack(form, value)


def _list(values: list[object]) -> bytes:
    if isinstance(values[0], str):
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(_text(str(value)) for value in values)
    kind, form = (5, "<i") if isinstance(values[0], int) else (6, "<f")
    return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(struct.pack(form, value) for value in values)


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % ALIGNMENT)
