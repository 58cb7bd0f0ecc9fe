"""Damaged tables, or tables edited by mistake: one message each, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import recorded_hash
from kappaplace.errors import KappaPlaceError


def saved(file: Path) -> Path:
    table = PlaceImages.create(
        ["a.jpg", "b.jpg", "q.jpg"],
        [[0, 0], [3, 4], [1, 1]],
        is_query=[False, False, True],
        given_positives=Positives.from_lists([[0, 1]], 2),
    )
    table.save(file)
    return file


def with_csv_metadata(**changes: object) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        first, _, rest = file.read_text(encoding="utf-8").partition("\n")
        metadata = json.loads(first.removeprefix("# kappaplace ")) | changes
        file.write_text(f"# kappaplace {json.dumps(metadata)}\n{rest}", encoding="utf-8")

    return damage


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        data = file.read_bytes()
        assert data.count(old) >= 1
        file.write_bytes(data.replace(old, new, 1))

    return damage


def metadata_is(text: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        if file.suffix == ".csv":
            rest = file.read_text(encoding="utf-8").partition("\n")[2]
            file.write_text(f"# kappaplace {text}\n{rest}", encoding="utf-8")
            return
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata({"kappaplace": text}), file)

    return damage


def corrupt_body(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4:120] = bytes(b ^ 0xFF for b in data[4:120])
    file.write_bytes(bytes(data))


def text_column(name: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        table = pq.read_table(file)
        column = table.schema.get_field_index(name)
        pq.write_table(table.set_column(column, name, pa.array(["1", "2", "x"])), file)

    return damage


BAD: list[tuple[str, str, Callable[[Path], None], str]] = [
    ("body", ".parquet", corrupt_body, "cannot be read as Parquet"),
    ("truncated", ".parquet", lambda f: f.write_bytes(f.read_bytes()[:-9]), "cannot be read as Parquet"),
    ("JSON", ".parquet", metadata_is("{"), r"The metadata of .* is not valid JSON"),
    ("list", ".parquet", metadata_is("[1]"), r"metadata: expected an object, got \[1\]"),
    ("text x", ".parquet", text_column("x"), "column x must be numbers, got string"),
    ("text role", ".parquet", text_column("is_query"), "is_query must be true or false, got string"),
    ("Latin-1", ".csv", replaced(b"a.jpg", b"\xe9.jpg"), "cannot be read as a CSV table"),
    ("JSON", ".csv", metadata_is("{"), r"The metadata of .* is not valid JSON"),
    ("list", ".csv", metadata_is("[1]"), "metadata: expected an object"),
    ("radius", ".csv", with_csv_metadata(radius="abc"), "metadata.radius: expected a number, got 'abc'"),
    ("no radius", ".csv", metadata_is('{"version": 1, "root": ""}'), "the field 'frame' is missing"),
    ("root", ".csv", with_csv_metadata(root=None), "metadata.root: expected text, got None"),
    ("neighbourhood", ".csv", with_csv_metadata(neighbourhood={"a": 1}), "cannot be read as a CSV table"),
    ("newer", ".csv", with_csv_metadata(version=2), "a table of version 2.* Upgrade"),
    ("positives", ".csv", replaced(b"0 1\n", b"0 z\n"), "line 5: positives must be indices"),
    ("role", ".csv", replaced(b",1,0 1\n", b",7,0 1\n"), "'7' is neither 0 nor 1"),
    ("place", ".csv", replaced(b",-1,", b",99999999999999999999,"), "column place"),
]


@pytest.mark.parametrize(
    ("suffix", "damage", "words"), [b[1:] for b in BAD], ids=[b[1] + " " + b[0] for b in BAD]
)
def test_a_bad_table_raises_one_message(tmp_path, suffix, damage, words):
    file = saved(tmp_path / f"t{suffix}")
    PlaceImages.open(file)
    damage(file)
    with pytest.raises(KappaPlaceError, match=words) as caught:
        PlaceImages.open(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_the_recorded_hash_of_a_bad_table(tmp_path, suffix):
    file = tmp_path / f"t{suffix}"
    file.write_bytes(b"\xff\xfe no table")
    with pytest.raises(KappaPlaceError, match="cannot be read as"):
        recorded_hash(file)


def test_an_internal_error_is_not_reported_as_damage(tmp_path, monkeypatch):
    """Only exceptions that bad files raise become a message; others remain a traceback."""
    file = saved(tmp_path / "t.csv")

    def broken(*_: object) -> object:
        raise AssertionError("a mistake")

    monkeypatch.setattr("kappaplace.data.table_io._read_csv", broken)
    with pytest.raises(AssertionError):
        PlaceImages.open(file)
