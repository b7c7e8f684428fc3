"""Frozen dataclasses to JSON values and back, strictly, so that past the edge nobody sees a raw dict.

Room: model. Unknown fields are ignored and missing ones take their defaults (a newer peer may say more, an older one less);
an unknown word of an enumeration becomes its UNKNOWN where it has one. Everything else that does not fit is a UsageError
naming the field.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lib.base.errors import UsageError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A dataclass, or a container of such, as plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """`value` (from JSON) as a `kind`; UsageError naming the field that does not fit."""
    return _decode(kind, value, where or kind.__name__)  # type: ignore[no-any-return]


@cache
def _fields(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_optional(kind, value, where)
    if origin is tuple:
        return _decode_list(get_args(kind)[0], value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _decode_map(get_args(kind)[1], value, where)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if issubclass(kind, Enum):
        return _decode_enum(kind, value, where)
    return _decode_plain(kind, value, where)


def _decode_optional(kind: Any, value: Any, where: str) -> Any:
    inner = [option for option in get_args(kind) if option is not types.NoneType]
    return None if value is None else _decode(inner[0], value, where)


def _decode_list(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: must be a list")
    return tuple(_decode(kind, item, f"{where}[{index}]") for index, item in enumerate(value))


def _decode_map(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: must be an object")
    return {key: _decode(kind, item, f"{where}.{key}") for key, item in value.items()}


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: must be an object")
    hints = _fields(kind)
    given = {field.name: _decode(hints[field.name], value[field.name], f"{where}.{field.name}")
             for field in dataclasses.fields(kind) if field.name in value}
    try:
        return kind(**given)
    except TypeError:
        missing = [field.name for field in dataclasses.fields(kind) if field.name not in given
                   and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
        raise UsageError(f"{where}: {', '.join(missing)} missing") from None


def _decode_enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        if "UNKNOWN" in kind.__members__:
            return kind["UNKNOWN"]
        raise UsageError(f"{where}: {value!r} is not one of {', '.join(str(item.value) for item in kind)}") from None


def _decode_plain(kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{where}: must be {kind.__name__}, not {type(value).__name__}")
    return value
