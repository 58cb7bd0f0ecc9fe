"""Files that others wrote fail in a hundred ways: one border that turns each of them into one sentence."""

from __future__ import annotations

import csv
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from tokenize import TokenError

from kappaplace.errors import KappaPlaceError

DAMAGED_ARRAYS = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, ArithmeticError, RuntimeError),
    *(SyntaxError, TokenError, struct.error, zlib.error, zipfile.BadZipFile),
)
"""What NumPy raises at a file that is not whole: its header is Python text, an .npz is a zip file, and a
flipped bit may ask for more memory than there is or for a compression that nobody knows."""
_LONGEST = 200  # characters of a foreign message; libraries may quote a whole row


@contextmanager
def telling(what: str) -> Iterator[None]:
    """What damaged or foreign input raises inside becomes ``WHAT (reason).``; our own sentences pass.

    Only what bad input is known to raise is caught, so that most mistakes of ours stay visible, and the
    cause stays chained for those who debug.
    """
    try:
        yield
    except _failures() as error:
        raise KappaPlaceError(printable(f"{what} ({reason(error)}).")) from error


def reason(error: BaseException) -> str:
    """What an exception says, on one line; its kind where the words alone would be empty or a bare key."""
    words = " ".join(str(error).split()).rstrip(".")[:_LONGEST]
    kind = type(error).__name__
    return kind if not words else f"{kind} {words}" if isinstance(error, KeyError) else words


def printable(text: str) -> str:
    """Text that any terminal takes: a file name that is no UTF-8 carries bytes that cannot be printed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _failures() -> tuple[type[BaseException], ...]:
    """Evaluated only when something was raised, so that pyarrow and pyproj load no earlier than needed."""
    foreign: list[type[BaseException]] = []
    for module, name in (("pyarrow", "ArrowException"), ("pyproj.exceptions", "ProjError")):
        with suppress(ImportError):  # what is not installed has raised nothing
            foreign.append(getattr(import_module(module), name))
    return (*DAMAGED_ARRAYS, LookupError, AttributeError, csv.Error, *foreign)
