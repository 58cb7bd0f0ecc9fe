"""Numbers, lists and arrays from a pickle, without running any of it.

Unpickling can run any code. Here no function of the pickle is called. Every name in it becomes a `_Standin`,
which only stores its arguments. Numbers, ranges and arrays are read from these arguments.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from kappaplace.files import reason
from kappaplace.types import Json

Value: TypeAlias = Any
"""A value of a pickle: numbers, text, containers, and stand-ins for all else."""

_NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8"}
_LONGEST_RANGE = 10_000_000  # more references than any such dataset has; a damaged file may claim any number


class _Standin:
    """Replacement of numpy.ndarray, numpy.dtype, their constructors and range: only stores its arguments."""

    def __init__(self, *arguments: Value) -> None:
        self.arguments = arguments
        self.state: Value = None

    def __setstate__(self, state: Value) -> None:
        self.state = state


class _Encode(_Standin):
    """Replacement of _codecs.encode, which pickles of protocol 2 use for bytes."""


class _Unpickler(pickle._Unpickler):
    """Pure-Python unpickler: the C version preallocates a memo of whatever size the file claims.

    A damaged byte can claim four billion entries, which would take 64 GB.
    """

    def find_class(self, module: str, name: str) -> type[_Standin]:
        if module.startswith("numpy") and name in (
            "_reconstruct",
            "scalar",
            "ndarray",
            "dtype",
            "_frombuffer",
        ):
            return type(name, (_Standin,), {})
        if (module, name) == ("_codecs", "encode"):
            return _Encode
        if module in ("builtins", "__builtin__") and name in ("range", "xrange"):
            return type("range", (_Standin,), {})
        if (module, name) in (("builtins", "bytes"), ("__builtin__", "bytes")):
            return _Encode
        raise ValueError(f"it requires {module}.{name}, which is not a number, a list or an array")


def pickled(stream: BinaryIO) -> Value:
    """Read one pickle.

    Args:
        stream: Content of the file, from memory: a damaged length then requests no more bytes than there are.

    Returns:
        Numbers, text, lists, dictionaries, and stand-ins for all else, which `plain` converts.

    Raises:
        ValueError: If the pickle is damaged, or needs more than numbers, lists and arrays.
    """
    try:
        return _Unpickler(stream, encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise any error
        raise ValueError(reason(error)) from None


def plain(value: Value) -> Value:
    """Return an unpickled value as numbers and lists.

    Args:
        value: Value of `pickled`, or a part of it.

    Returns:
        Numbers, text and lists; an array becomes a list of its numbers or of its rows.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if not isinstance(value, _Standin):
        return value
    name = type(value).__name__
    if name == "range":
        numbers = range(*(int(a) for a in value.arguments))
        if len(numbers) > _LONGEST_RANGE:
            raise ValueError(f"a range of {len(numbers):,} indices")
        return list(numbers)
    if name == "scalar":
        return _numbers(value.arguments[0], value.arguments[1])[0]
    if name == "_frombuffer":  # protocol 5
        data, kind, shape, order = value.arguments
        return _shaped(_numbers(kind, bytes(data)), [int(n) for n in shape], order == "F")
    if name == "_reconstruct" and value.state is not None:
        _, shape, kind, fortran, data = value.state
        flat = [plain(item) for item in data] if isinstance(data, list) else _numbers(kind, data)
        return _shaped(flat, [int(n) for n in shape], bool(fortran))
    raise ValueError(f"unexpected {name} in the pickle")


def _numbers(kind: _Standin, data: _Encode | str | bytes) -> list[Json]:
    code = str(kind.arguments[0])
    order = str(kind.state[1]) if kind.state else "|"
    if code not in _NUMBERS:
        raise ValueError(f"numbers of type {code}")
    if isinstance(data, _Encode):
        data = str(data.arguments[0]).encode(str(data.arguments[1])) if data.arguments else b""
    if isinstance(data, str):
        data = data.encode("latin1")
    return np.frombuffer(data, dtype=("<" if order in "|=" else order) + code).tolist()


def _shaped(flat: list[Json], shape: list[int], fortran: bool) -> list[Json]:
    if len(shape) == 1:
        return flat
    if len(shape) != 2 or shape[0] * shape[1] != len(flat):
        raise ValueError(f"an array of shape {tuple(shape)}")
    rows, columns = shape
    if fortran:
        return [[flat[c * rows + r] for c in range(columns)] for r in range(rows)]
    return [flat[r * columns : (r + 1) * columns] for r in range(rows)]
