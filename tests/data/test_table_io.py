"""Table files in two formats: exact round trip and atomic writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data import table_io
from kappaplace.data.columns import COLUMNS
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import recorded_hash
from kappaplace.errors import KappaPlaceError


def table(n: int = 40, seed: int = 0, **rest: object) -> PlaceImages:
    rng = np.random.default_rng(seed)
    positions = rng.uniform(-1e7, 1e7, (n, 2))
    positions[rng.random(n) < 0.2] = np.nan
    return PlaceImages.create(
        [f'some "folder", ü/{i}.jpg' for i in range(n)],
        positions,
        heading=np.where(rng.random(n) < 0.3, np.nan, rng.uniform(0, 360, n)),
        timestamp=np.where(rng.random(n) < 0.3, np.nan, rng.uniform(0, 2e9, n)),
        place=rng.integers(-1, 5, n),
        condition=[["day", "night, rain", ""][i % 3] for i in range(n)],
        is_query=rng.random(n) < 0.4,
        name="a set",
        frame="EPSG:32610",
        **rest,
    )


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.sampled_from([0, 1, 40]), optional=st.booleans(), listed=st.booleans()
)
def test_round_trip_is_exact(tmp_path_factory, suffix, seed, n, optional, listed):
    whole = table(n, seed)
    if optional:
        whole = replace(whole, frame_number=np.arange(n) * 3, accuracy=np.linspace(0, 9, n, dtype=np.float32))
    if listed:
        whole = replace(whole, given_positives=whole.positives(), neighborhood=Neighborhood("frames", 3))
    file = tmp_path_factory.mktemp("tables") / f"table{suffix}"
    whole.save(file)
    again = PlaceImages.open(file)
    for column in COLUMNS:
        a, b = getattr(whole, column), getattr(again, column)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    assert again.content_hash == whole.content_hash == recorded_hash(file)
    assert (again.name, again.frame, again.radius) == (whole.name, whole.frame, whole.radius)
    assert again.neighborhood == whole.neighborhood
    assert (again.given_positives is None) == (whole.given_positives is None)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_many_blocks(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(table_io, "_ROWS", 7)
    whole = table(50)
    whole = replace(
        whole,
        given_positives=Positives.from_lists([[0, 1]] * len(whole.query_rows), len(whole.reference_rows)),
    )
    whole.save(tmp_path / f"t{suffix}")
    assert PlaceImages.open(tmp_path / f"t{suffix}").content_hash == whole.content_hash


def test_images_next_to_the_table_move_with_it(tmp_path):
    home = tmp_path / "home"
    (home / "images").mkdir(parents=True)
    table(root=home / "images").save(home / "t.parquet")
    home.rename(tmp_path / "moved")
    assert PlaceImages.open(tmp_path / "moved" / "t.parquet").root == tmp_path / "moved" / "images"


def test_images_in_another_folder_have_an_absolute_path(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "tables").mkdir()
    table(root=tmp_path / "images").save(tmp_path / "tables" / "t.csv")
    assert PlaceImages.open(tmp_path / "tables" / "t.csv").root == tmp_path / "images"
    assert PlaceImages.open(tmp_path / "tables" / "t.csv", root="/disk").root.as_posix() == "/disk"


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_failed_write_leaves_the_old_table(tmp_path, monkeypatch, suffix):
    file = tmp_path / f"t{suffix}"
    table(5).save(file)
    before = file.read_bytes()

    def broken(*_: object) -> object:
        raise RuntimeError("power cut")

    monkeypatch.setattr(table_io, "_blocks", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        table(6).save(file)
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == [file.name]


def test_a_csv_may_be_edited_by_hand(tmp_path):
    file = tmp_path / "t.csv"
    table(5).save(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# kappaplace {")
    lines[1] += ",remark"
    lines[2:] = [line + ",mine" for line in lines[2:]]
    file.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    edited = PlaceImages.open(file)
    assert len(edited) == 4
    assert edited.content_hash != recorded_hash(file)


def test_bad_files_raise(tmp_path):
    with pytest.raises(KappaPlaceError, match="no table at"):
        PlaceImages.open(tmp_path / "none.parquet")
    with pytest.raises(KappaPlaceError, match=r"must end in \.parquet or \.csv"):
        table(2).save(tmp_path / "t.xlsx")
    (tmp_path / "own.csv").write_text("file,lat\na.jpg,3\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="data import csv"):
        PlaceImages.open(tmp_path / "own.csv")
    (tmp_path / "junk.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(KappaPlaceError, match="cannot be read as Parquet"):
        PlaceImages.open(tmp_path / "junk.parquet")
    table(3).save(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    (tmp_path / "t.csv").write_text(text + "too,few\n", encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="line 6 must have 8 cells"):
        PlaceImages.open(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(text.replace(",x,", ",z,"), encoding="utf-8")
    with pytest.raises(KappaPlaceError, match="lacks the column x"):
        PlaceImages.open(tmp_path / "t.csv")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(KappaPlaceError, match="not a kappaplace table"):
        PlaceImages.open(tmp_path / "foreign.parquet")
