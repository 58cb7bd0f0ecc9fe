"""Records: convert frozen dataclasses to JSON values and back, checked by their type hints.

Field metadata: ``stored("name")`` sets another name in the file, and ``optional()`` omits the field from the
file if it has its default value.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kappaplace.types import Json

LARGEST = 2**53
"""Largest integer that every JSON reader preserves exactly."""


class Record(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


R = TypeVar("R", bound=Record)
C = TypeVar("C")
Hint: TypeAlias = Any
"""A type hint: a class, a union of classes, a generic alias."""
_KINDS: dict[type, dict[str, type]] = {}
_NAMES: dict[type, str] = {}


@dataclass(frozen=True)
class Help:
    """Help text of a field of an option record, as in ``rerank: Annotated[int, Help("…")] = 0``."""

    text: str
    flags: tuple[str, ...] = ()
    """Flags of the command line, the main one first. Default: derived from the field's name."""


class Hidden(Help):
    """Help text of a field whose option is not in ``--help``."""


class Setting(Hidden):
    """Help text of a field that few users change: ``--set NAME=VALUE`` or a hidden option sets it."""


class RecordError(ValueError):
    """Error for an invalid stored value, such as ``rule.accepted.bound: expected a number, got 'x'``."""


def stored(name: str) -> dict[str, object]:
    """Return metadata for a field that has another name in the file."""
    return {"name": name}


def optional() -> dict[str, object]:
    """Return metadata for a field that is omitted from the file if it has its default value."""
    return {"optional": True}


def kind(base: type, name: str) -> Callable[[type[C]], type[C]]:
    """Register a subclass of a record. It is stored with the field ``name``, by which it is read as this
    subclass."""

    def register(cls: type[C]) -> type[C]:
        _KINDS.setdefault(base, {})[name] = cls
        _NAMES[cls] = name
        return cls

    return register


def to_plain(record: Record) -> dict[str, Json]:
    """Return a record as a JSON object: tuples become lists, records become objects, infinities text."""
    parts = {_name(f): _plain(getattr(record, f.name)) for f in fields(record) if not _omitted(f, record)}
    name = _NAMES.get(type(record))
    return parts if name is None else {"name": name, **parts}


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(value)
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} of {type(value).__name__} cannot be stored in a record")


def from_plain(cls: type[R], values: Json, path: str = "", *, newer: bool = False) -> R:
    """Return a record from the JSON object that `to_plain` returned.

    Args:
        cls: Class of the record, or the base class of several kinds.
        values: The JSON object.
        path: Path of the record inside the file, for messages.
        newer: Ignore fields that this version does not have.

    Returns:
        The record.

    Raises:
        RecordError: If a value is missing, unknown or of another type.
    """
    if not isinstance(values, Mapping):
        _fail(path or cls.__name__, "an object", values)
    if cls in _KINDS:
        name = values.get("name")
        if name not in _KINDS[cls]:
            _fail(f"{path}.name".lstrip("."), f"one of {', '.join(_KINDS[cls])}", name)
        cls, values = _KINDS[cls][str(name)], {key: part for key, part in values.items() if key != "name"}
    own = {_name(f): f for f in fields(cls) if f.init}
    unknown = [name for name in values if name not in own]
    if unknown and not newer:
        raise RecordError(f"{path or cls.__name__}: unknown field {unknown[0]!r}")
    for name, field in own.items():
        if name not in values and field.default is field.default_factory is MISSING:
            raise RecordError(f"{path or cls.__name__}: the field {name!r} is missing")
    hints, head = _hints(cls), f"{path}." if path else ""
    stored_fields = [(name, field.name) for name, field in own.items() if name in values]
    return cls(**{to: _value(hints[to], values[name], head + name) for name, to in stored_fields})


@cache
def _hints(cls: type) -> dict[str, Hint]:
    return get_type_hints(cls)


def _name(field: Field[object]) -> str:
    return str(field.metadata.get("name", field.name))


def _omitted(field: Field[object], record: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(field.metadata.get("optional")) and getattr(record, field.name) == default


def _value(hint: Hint, value: Json, path: str) -> object:
    """Return a stored value as the type of its hint."""
    origin: Hint = get_origin(hint)
    args = get_args(hint)
    if hint is Any or hint is Json or (origin is Union and set(args) >= {bool, str, type(None)}):
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(each for each in args if each is not type(None)), value, path)
    if origin is Literal:
        return value if value in args else _fail(path, f"one of {', '.join(map(str, args))}", value)
    if origin is tuple:
        return _tuple(args, value, path)
    if (origin or hint) in (dict, Mapping):
        if not isinstance(value, Mapping):
            _fail(path, "an object", value)
        inner = args[1] if args else Json
        return {str(name): _value(inner, part, f"{path}.{name}") for name, part in value.items()}
    if is_dataclass(hint) or hint in _KINDS:
        return from_plain(hint, value, path)
    if issubclass(hint, Enum):
        names = ", ".join(str(each.value) for each in hint)
        members = [each for each in hint if each.value == value]
        return members[0] if members else _fail(path, f"one of {names}", value)
    return _number(value, path) if hint is float else _scalar(hint, value, path)


def _tuple(kinds: Sequence[Hint], value: Json, path: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        _fail(path, "a list", value)
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(kinds) != len(value):
        _fail(path, f"{len(kinds)} values", value)
    parts = enumerate(zip(kinds, value, strict=True))
    return tuple(_value(hint, part, f"{path}[{i}]") for i, (hint, part) in parts)


def _number(value: Json, path: str) -> float:
    number = float(value) if value in ("inf", "-inf") else value
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        _fail(path, "a number", value)
    return float(number)


def _scalar(hint: type[str], value: Json, path: str) -> Json:
    if type(value) is not hint:
        _fail(path, {"int": "a whole number", "str": "text", "bool": "true or false"}[hint.__name__], value)
    if isinstance(value, str) and "\0" in value:
        _fail(path, "text without a zero byte", value)
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        _fail(path, f"a whole number up to {LARGEST}", value)
    return value


def _fail(path: str, expected: str, value: Json) -> NoReturn:
    raise RecordError(f"{path}: expected {expected}, got {value!r}"[:200])
