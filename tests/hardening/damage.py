"""Ways to damage a file, repeatable by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

NONSENSE = (
    None,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\0ü",
    "../../etc",
    True,
    [],
    {},
    [[]],
)


def damaged_bytes(whole: bytes, times: int, seed: int = 0) -> Iterator[bytes]:
    """Flipped bytes, cut ends, blocks of zeros, doubled pieces."""
    chance = random.Random(seed)
    yield b""
    yield whole[: len(whole) // 2]
    yield whole + whole
    for _ in range(times):
        copy = bytearray(whole)
        kind = chance.choice(("flip", "flip", "flip", "cut", "zero", "swap"))
        at = chance.randrange(len(copy))
        if chance.random() < 0.5:  # headers and footers are where the sense is
            at = chance.choice((at % 200, len(copy) - 1 - at % 200)) % len(copy)
        if kind == "flip":
            for _ in range(chance.choice((1, 1, 4))):
                copy[(at + chance.randrange(8)) % len(copy)] = chance.randrange(256)
        elif kind == "cut":
            del copy[at:]
        elif kind == "zero":
            copy[at : at + 16] = bytes(len(copy[at : at + 16]))
        else:
            copy[at : at + 8], copy[-8:] = copy[-8:], copy[at : at + 8]
        yield bytes(copy)


def damaged_json(whole: str, times: int, seed: int = 0) -> Iterator[bytes]:
    """Well-formed JSON with one value exchanged for nonsense, one left out, or one more."""
    chance = random.Random(seed)
    for _ in range(times):
        values = json.loads(whole)
        places = list(_places(values))
        if not places:
            return
        holder, key = chance.choice(places)
        if chance.random() < 0.2:
            del holder[key]
        elif chance.random() < 0.1 and isinstance(holder, dict):
            holder["no such key"] = 1
        else:
            holder[key] = chance.choice(NONSENSE)
        yield json.dumps(values).encode()


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Everything that could be exchanged: (dictionary or list, key)."""
    keys = (
        values.keys() if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
    )
    for key in list(keys):
        yield values, key
        yield from _places(values[key])
