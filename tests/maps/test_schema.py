"""Changed bytes and contradictions in the files of a map are reported before they change an answer."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.files import BLOCK, sealed
from kappaplace.maps import LocalizeOptions, PlaceMap
from kappaplace.maps.exchange import import_map
from kappaplace.maps.store import verify_folder
from kappaplace.maps.store.manifest import read_manifest, write_manifest
from kappaplace.maps.store.segments import file_record
from kappaplace.models.place_model import PlaceModel
from kappaplace.records import to_plain
from kappaplace.types import Embeddings
from tests.attack import maps as attack
from tests.maps.fakes import SOME_CALIBRATION


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return attack.golden_maps(tmp_path_factory.mktemp("golden"))


def test_flipped_bits_change_no_answer(golden: list[Path]) -> None:
    rows = [attack.map_flips(folder, 25, random.Random(0)) for folder in golden]
    assert [row.attack for row in rows if row.bad] == []


def test_crafted_maps_end_in_a_message(golden: list[Path], tmp_path: Path) -> None:
    rows = [attack.crafted(folder, 8, random.Random(0), tmp_path) for folder in golden]
    assert [row.attack for row in rows if row.bad] == []


@pytest.mark.parametrize("kind", ["index_flips", "cache_flips", "calibration_flips"])
def test_flipped_bits_next_to_a_map_change_no_answer(tmp_path: Path, kind: str) -> None:
    if kind == "index_flips":
        pytest.importorskip("faiss")
    row = getattr(attack, kind)(tmp_path, 40, random.Random(0))
    assert row.bad == 0, row.result


@pytest.mark.slow
def test_thousands_of_tries() -> None:
    assert [row for row in attack.run(2000, 1) if row.bad] == []


def test_a_value_of_the_manifest_that_was_changed_by_hand_is_reported(town_map: PlaceMap) -> None:
    file = town_map.folder / "manifest.json"
    values = json.loads(file.read_text())
    values["calibration"] = SOME_CALIBRATION
    file.write_text(json.dumps(sealed(values)))
    text = file.read_text()
    accept = json.dumps(SOME_CALIBRATION["calibration"]["rule"]["accept_at"])
    assert f'"accept_at": {accept}' in text
    file.write_text(text.replace(f'"accept_at": {accept}', '"accept_at": 0.35'))
    for read in (read_manifest, PlaceMap.open):
        with pytest.raises(KappaPlaceError, match=r"manifest.json is damaged .*wrong checksum"):
            read(town_map.folder)
    file.write_text(json.dumps(json.loads(text), sort_keys=True))  # another order of the fields
    assert PlaceMap.open(town_map.folder).verify() == []
    del values["checksum"]
    file.write_text(json.dumps(values))
    with pytest.raises(KappaPlaceError, match="it has no checksum"):
        PlaceMap.open(town_map.folder)


def test_blocks_of_a_large_file_are_checked_when_they_are_first_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1500, 256)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    np.savez(tmp_path / "z.npz", name=np.array([f"{i}.jpg" for i in range(len(z))]), descriptors=z)
    import_map(tmp_path / "z.npz", tmp_path / "m", PlaceModel.create("resnet_tiny", dim=256).eval())
    file = tmp_path / "m/segments/000000/descriptors.npy"
    assert file.stat().st_size > BLOCK
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    columns = PlaceMap.open(tmp_path / "m").store.descriptors
    np.testing.assert_array_equal(columns[:900], z[:900])  # this block is as it was
    np.testing.assert_array_equal(columns[np.array([3, 7])], z[[3, 7]])
    for rows in (slice(1400, 1500), np.array([0, 1499]), slice(None)):
        with pytest.raises(KappaPlaceError, match=r"descriptors.npy cannot be read \(wrong checksum"):
            columns[rows]


CRAFTED = {
    "removed as float": ("removed", lambda a: a + 0.5, "float64"),
    "removed out of range": ("removed", lambda a: a + 10_000, "rows that the map does not have"),
    "removed negative": ("removed", lambda a: -a - 1, "rows that the map does not have"),
    "sample empty": ("sample", lambda a: a[:0], "lists 0 references"),
    "poses N×2": ("poses", lambda a: a[:, :2], "cannot have"),
    "poses as float32 N×8": ("poses", lambda a: np.tile(a.astype(np.float32), (1, 2)), "instead of float64"),
    "poses with one coordinate": ("poses", lambda a: a * [1, np.nan, 1, 1], "one coordinate only"),
    "starts 2-D": ("names.starts", lambda a: a[:, None], "instead of int64"),
    "starts NaN": ("names.starts", lambda a: a * np.nan, "instead of int64"),
    "starts beyond the file": ("names.starts", lambda a: a * 2, "do not fit the file"),
    "kappa negative": ("kappa", lambda a: -a, "zero or below"),
    "descriptors int64": ("descriptors", lambda a: a.astype(np.int64), "instead of float32"),
}


def _localize_and_name(folder: Path, embeddings: Embeddings) -> None:
    opened = PlaceMap.open(folder)
    opened.localize_embeddings(embeddings, ["q"], LocalizeOptions(k=3))
    list(opened.store.names())


@pytest.mark.parametrize("case", CRAFTED)
def test_contradictions_with_correct_checksums_are_one_message(town_map: PlaceMap, queries, case) -> None:
    kind, change, message = CRAFTED[case]
    folder = town_map.folder
    town_map.remove(["003.png"])
    plain = to_plain(read_manifest(folder))
    if kind in ("removed", "sample"):
        file, holder, key = folder / plain[kind]["file"], plain[kind], "record"
    else:
        segment = plain["segments"][0]
        file, holder, key = folder / "segments/000000" / f"{kind}.npy", segment["files"], f"{kind}.npy"
    np.save(file, change(np.load(file)))
    holder[key] = to_plain(file_record(file))
    (folder / "manifest.json").write_text(json.dumps(sealed(plain)))
    embeddings = town_map.embed(queries[:1])
    with pytest.raises(KappaPlaceError, match=message):
        _localize_and_name(folder, embeddings)
    assert any(re.search(message, problem) for problem in verify_folder(folder)[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", 0), ("count", -1), ("name", "abc"), ("name", "../000000"), ("files", {}), ("dim", 0)],
)
def test_contradictions_of_the_manifest_are_one_message(town_map: PlaceMap, field, value) -> None:
    file = town_map.folder / "manifest.json"
    values = json.loads(file.read_text())
    (values["model"] if field == "dim" else values["segments"][0])[field] = value
    file.write_text(json.dumps(sealed(values)))
    with pytest.raises(KappaPlaceError, match=r"is damaged|has no descriptors"):
        PlaceMap.open(town_map.folder)


def test_maps_of_the_first_release_open_and_get_checksums_with_the_next_write(tmp_path: Path) -> None:
    for name in attack.MAPS:
        values = json.loads((attack.GOLDEN / f"{name}.map" / "manifest.json").read_text())
        assert "checksum" not in values
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, read_manifest(attack.GOLDEN / f"{name}.map"))
        assert "checksum" in json.loads((tmp_path / name / "manifest.json").read_text())
        assert PlaceMap.open(attack.GOLDEN / f"{name}.map").verify() == []
