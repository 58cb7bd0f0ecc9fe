"""Records: frozen dataclasses to plain JSON values and back, checked by their own type hints.

A field may carry metadata: ``stored("name")`` gives it another name in the file, and ``optional()`` leaves it
out of the file while it has its default.
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
"""Largest whole number that every reader of JSON keeps exactly."""


class Record(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


R = TypeVar("R", bound=Record)
C = TypeVar("C")
Hint: TypeAlias = Any
"""A type hint: a class, a union of classes, a generic alias."""
_KINDS: dict[type, dict[str, type]] = {}
_NAMES: dict[type, str] = {}


@dataclass(frozen=True)
class Help:
    """Help text of a field of an option record: ``rerank: Annotated[int, Help("…")] = 0``."""

    text: str
    flags: tuple[str, ...] = ()
    """Flags of the command line, the first one being the name. Default: made from the name of the field."""


class RecordError(ValueError):
    """What is wrong with a stored value, and where: ``rule.accepted.bound: expected a number, got 'x'``."""


def stored(name: str, *, optional: bool = False) -> dict[str, object]:
    """Return metadata for a field that has another name in the file."""
    return {"name": name, "optional": optional}


def optional() -> dict[str, object]:
    """Return metadata for a field that is left out of the file while it has its default."""
    return {"optional": True}


def kind(base: type, name: str) -> Callable[[type[C]], type[C]]:
    """Register a subclass, which is written with ``"name": name`` and read back as that subclass."""

    def register(cls: type[C]) -> type[C]:
        _KINDS.setdefault(base, {})[name] = cls
        _NAMES[cls] = name
        return cls

    return register


def to_plain(record: Record) -> dict[str, Json]:
    """Return the JSON object of a record: tuples become lists, records objects, infinities text."""
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


def from_plain(cls: type[R], values: Json, where: str = "", *, newer: bool = False) -> R:
    """Return the record that `to_plain` wrote.

    Args:
        cls: Class of the record, or the base of several kinds.
        values: The stored object.
        where: Path of the record inside the file, for messages.
        newer: Ignore fields that this version does not have.

    Raises:
        RecordError: If a value is missing, unknown or of another type.
    """
    if not isinstance(values, Mapping):
        _wrong(where or cls.__name__, "an object", values)
    if cls in _KINDS:
        name = values.get("name")
        if name not in _KINDS[cls]:
            _wrong(f"{where}.name".lstrip("."), f"one of {', '.join(_KINDS[cls])}", name)
        cls, values = _KINDS[cls][str(name)], {key: part for key, part in values.items() if key != "name"}
    known = {_name(f): f for f in fields(cls) if f.init}
    for name in values:
        if name not in known and not newer:
            raise RecordError(f"{where or cls.__name__}: unknown field {name!r}")
    for name, field in known.items():
        if name not in values and field.default is field.default_factory is MISSING:
            raise RecordError(f"{where or cls.__name__}: the field {name!r} is missing")
    hints = _hints(cls)
    return cls(
        **{
            known[name].name: _value(hints[known[name].name], part, f"{where}.{name}".lstrip("."))
            for name, part in values.items()
            if name in known
        }
    )


@cache
def _hints(cls: type) -> dict[str, Hint]:
    return get_type_hints(cls)


def _name(field: Field[object]) -> str:
    return str(field.metadata.get("name", field.name))


def _omitted(field: Field[object], record: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(field.metadata.get("optional")) and getattr(record, field.name) == default


def _value(hint: Hint, value: Json, where: str) -> object:
    """The value as its type hint wants it."""
    origin: Hint = get_origin(hint)
    args = get_args(hint)
    if hint is Any or hint is Json or (origin is Union and set(args) >= {bool, str, type(None)}):
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(each for each in args if each is not type(None)), value, where)
    if origin is Literal:
        return value if value in args else _wrong(where, f"one of {', '.join(map(str, args))}", value)
    if origin is tuple:
        return _tuple(args, value, where)
    if (origin or hint) in (dict, Mapping):
        if not isinstance(value, Mapping):
            _wrong(where, "an object", value)
        inner = args[1] if args else Json
        return {str(name): _value(inner, part, f"{where}.{name}") for name, part in value.items()}
    if is_dataclass(hint) or hint in _KINDS:
        return from_plain(hint, value, where)
    if issubclass(hint, Enum):
        return _member(hint, value, where)
    return _plain_value(hint, value, where)


def _tuple(kinds: Sequence[Hint], value: Json, where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        _wrong(where, "a list", value)
    if len(kinds) == 2 and kinds[1] is ...:
        kinds = [kinds[0]] * len(value)
    if len(kinds) != len(value):
        _wrong(where, f"{len(kinds)} values", value)
    return tuple(
        _value(one, part, f"{where}[{i}]") for i, (one, part) in enumerate(zip(kinds, value, strict=True))
    )


def _member(hint: type[Enum], value: Json, where: str) -> Enum:
    try:
        return hint(value)
    except ValueError:
        _wrong(where, f"one of {', '.join(str(each.value) for each in hint)}", value)


def _plain_value(hint: type[float | str], value: Json, where: str) -> object:
    if hint is float:
        number = float(value) if value in ("inf", "-inf") else value
        if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
            _wrong(where, "a number", value)
        return float(number)
    if type(value) is not hint:
        _wrong(where, {"int": "a whole number", "str": "text", "bool": "true or false"}[hint.__name__], value)
    if isinstance(value, str) and "\0" in value:
        _wrong(where, "text without a zero byte", value)
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        _wrong(where, f"a whole number up to {LARGEST}", value)
    return value


def _wrong(where: str, wanted: str, value: Json) -> NoReturn:
    raise RecordError(f"{where}: expected {wanted}, got {value!r}"[:200])
