"""Ways to damage a file that keep its structure: JSON, TOML, CSV, Parquet, NumPy arrays, text and EXIF.

`mutated` returns a file that a parser mostly accepts, with a value that makes no sense.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from kappaplace.files import SEAL, sealed
from tests.hardening.damage import NONSENSE, damaged_bytes, damaged_json

CELLS = (
    *("", " ", "nan", "inf", "-inf", "1e308", "-1", "999", "0", "none", "true", "1;2", "1,2", "1.2.3", "ü東"),
    *("../../etc/passwd", "/", "a" * 200_000, '"', "'", "\0", "\n", "=1+1", "9" * 400, "2026-13-45", "{}"),
)
VALUES = (
    *('""', "-1", "nan", "inf", "1e400", "[]", "{}", "[1, [2]]", "true", "1979-05-27", '"\\u0000"', "0"),
    *("99999999999999999999", '"../../x"', '"a b"', "'''\n'''", "[[", "= ="),
)
TYPES = (pa.string(), pa.float64(), pa.int8(), pa.bool_(), pa.list_(pa.float64()), pa.null(), pa.binary())
GPS, LATITUDE, LONGITUDE, STAMP, DATE, DIRECTION, ACCURACY = 0x8825, 2, 4, 7, 29, 17, 31
RATIONALS: tuple[Any, ...] = (
    *(999.0, -1.0, 0.0, (1.0,), (1.0, 2.0), (999.0, 0.0, 0.0), (float(2**31), 1.0, 1.0), (1.0,) * 200),
    *("", "N", "\0", b"\xff\xff", (0.0, 99.0, 99.0)),
)


def mutated(data: bytes, suffix: str, chance: random.Random) -> bytes:
    """Return a damaged copy of a file's content.

    Args:
        data: The content.
        suffix: Suffix of the file, which tells its structure.
        chance: Source of random numbers.

    Returns:
        The damaged content; in one of four tries with changed bytes instead of changed values.
    """
    mutate = STRUCTURES.get(suffix)
    if mutate is None or chance.random() < 0.25:
        return chance.choice(list(damaged_bytes(data, 4, chance.randrange(1 << 30)))) if data else b"\0"
    return mutate(data, chance)


def _json(data: bytes, chance: random.Random) -> bytes:
    copies = list(damaged_json(data.decode(), chance.choice((1, 1, 3)), chance.randrange(1 << 30)))
    if not copies:
        return b"null"
    values = json.loads(copies[-1])
    if isinstance(values, dict) and SEAL in values and chance.random() < 0.8:
        return json.dumps(sealed(values)).encode()  # a wrong checksum would hide the change
    return copies[-1]


def _lines(data: bytes, chance: random.Random) -> bytes:
    """JSON, one value per line."""
    lines = data.splitlines() or [b"{}"]
    at = chance.randrange(len(lines))
    lines[at] = _json(lines[at], chance) if chance.random() < 0.8 else chance.choice((b"", b"[]", b"1", b"{"))
    return b"\n".join(lines) + b"\n"


def _toml(data: bytes, chance: random.Random) -> bytes:
    lines = data.decode().splitlines()
    at = chance.choice([i for i, line in enumerate(lines) if "=" in line])
    kind = chance.random()
    if kind < 0.7:
        lines[at] = lines[at].partition("=")[0] + "= " + chance.choice(VALUES)
    elif kind < 0.85:
        lines.insert(at, lines[at])
    else:
        lines.insert(at, chance.choice(("[run]", "[[run]]", "[", "unknown = 1", "[unknown]")))
    return "\n".join(lines).encode()


def _csv(data: bytes, chance: random.Random) -> bytes:
    rows = [line.split(",") for line in data.decode("utf-8", "surrogateescape").splitlines()] or [[""]]
    row = chance.choice(rows[: 1 if chance.random() < 0.2 else None])
    kind = chance.random()
    at = chance.randrange(len(row))
    if kind < 0.6:
        row[at] = chance.choice(CELLS)
    elif kind < 0.7:
        del row[at]
    elif kind < 0.8:
        row.insert(at, chance.choice(CELLS))
    elif kind < 0.9:
        rows.append(list(chance.choice(rows)))
    else:
        rows = rows[:1]
    text = "\n".join(",".join(row) for row in rows)
    return chance.choice(("", "", "", "\ufeff")).encode() + text.encode("utf-8", "surrogateescape")


def _words(data: bytes, chance: random.Random) -> bytes:
    """Text of numbers: a word is replaced."""
    words = re.split(rb"(\s+)", data)
    for _ in range(chance.choice((1, 1, 5))):
        words[chance.randrange(len(words))] = chance.choice(CELLS).encode()
    return b"".join(words)


def _parquet(data: bytes, chance: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    at, kind = chance.randrange(table.num_columns), chance.random()
    name, column = table.column_names[at], table.column(at)
    if kind < 0.25:
        table = table.set_column(at, name, pa.nulls(table.num_rows, chance.choice(TYPES)))
    elif kind < 0.35:
        table = table.drop_columns([name])
    elif kind < 0.42:
        table = table.append_column(name, column)
    elif kind < 0.5:
        table = table.slice(0, chance.choice((0, 1)))
    elif kind < 0.6:
        text = chance.choice(("", "[]", "{}", "null", "\0", '{"format": 99}'))
        table = table.replace_schema_metadata(dict.fromkeys(table.schema.metadata or {b"x": b""}, text))
    elif kind < 0.7:
        table = pa.concat_tables([table, table])
    else:
        values = column.to_pylist()
        if values:
            values[chance.randrange(len(values))] = chance.choice((None, *NONSENSE))
        try:
            changed = pa.array(values, column.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            changed = pa.array([str(value) for value in values])
        table = table.set_column(at, name, changed)
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _array(values: np.ndarray, chance: random.Random) -> np.ndarray:
    kind = chance.random() if values.dtype.kind != "O" else chance.uniform(0.2, 0.65)
    if kind < 0.2:
        kinds = (np.int8, np.float16, np.complex128, np.bool_, "U8", "S3")
        return values.astype(chance.choice(kinds if values.dtype.kind in "fiub" else ("S3", "U8")))
    if kind < 0.4:
        return values.reshape(-1) if values.ndim > 1 else np.stack([values, values])
    if kind < 0.55:
        return values[: chance.choice((0, 1))]
    if kind < 0.65:
        return np.array(chance.choice((0.0, np.nan)))
    copy = np.array(values)
    if copy.size and copy.dtype.kind in "fiu":
        last = 255 if copy.dtype.kind in "iu" else np.inf
        copy.reshape(-1)[chance.randrange(copy.size)] = chance.choice((np.nan, last)) if last == np.inf else 0
    return np.concatenate([copy, copy]) if kind > 0.9 and copy.ndim else copy


def _npy(data: bytes, chance: random.Random) -> bytes:
    out = io.BytesIO()
    np.save(out, _array(np.load(io.BytesIO(data), allow_pickle=True), chance), allow_pickle=True)
    return out.getvalue()


def _npz(data: bytes, chance: random.Random) -> bytes:
    with np.load(io.BytesIO(data)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name, kind = chance.choice(list(arrays)), chance.random()
    if kind < 0.2:
        del arrays[name]
    elif kind < 0.3:
        arrays["unknown"] = arrays[name]
    else:
        arrays[name] = _array(arrays[name], chance)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _exif(data: bytes, chance: random.Random) -> bytes:
    """An image whose position, time and direction make no sense."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
    exif = Image.Exif()
    place: dict[int, Any] = {1: "N", LATITUDE: (47.0, 1.0, 2.0), 3: "E", LONGITUDE: (8.0, 1.0, 2.0)}
    place |= {STAMP: (1.0, 2.0, 3.0), DATE: "2024:01:02", DIRECTION: 10.0, ACCURACY: 3.0}
    for _ in range(chance.choice((1, 1, 3))):
        place[chance.choice((1, 3, LATITUDE, LONGITUDE, STAMP, DATE, DIRECTION, ACCURACY))] = chance.choice(
            RATIONALS
        )
    exif._ifds[GPS] = place  # type: ignore[attr-defined]
    exif[0x0112] = chance.choice((0, 1, 6, 9, 65535))
    exif[0x9003] = chance.choice(("2024:01:02 03:04:05", "0000:00:00 00:00:00", "", "\0"))
    out = io.BytesIO()
    try:
        image.convert("RGB").save(out, "JPEG", exif=exif)
    except (ValueError, TypeError, OverflowError, struct.error, AttributeError):  # Pillow cannot write it
        return data[: len(data) // 2]
    return out.getvalue()


STRUCTURES = {
    ".json": _json,
    ".jsonl": _lines,
    ".toml": _toml,
    ".csv": _csv,
    ".tum": _words,
    ".txt": _words,
    ".gpx": _words,
    ".parquet": _parquet,
    ".npy": _npy,
    ".npz": _npz,
    ".png": _exif,
    ".jpg": _exif,
}
