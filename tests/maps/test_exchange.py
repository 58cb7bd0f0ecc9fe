"""Export and import of maps and answers."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, LocalizeOptions, PlaceMap, exchange
from kappaplace.maps.answer import write_csv, write_pairs
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.store import manifest
from kappaplace.maps.store.manifest import read_manifest
from kappaplace.maps.store.writer import writer_of
from kappaplace.reports import write_answers
from tests.maps.fakes import assert_same


@pytest.mark.parametrize(("suffix", "storage"), [(".parquet", "int8"), (".npz", "float32")])
def test_there_and_back(town, tiny, queries, tmp_path, suffix, storage):
    made = PlaceMap.build(
        town, tmp_path / "m", tiny, options=BuildOptions(storage=storage, segment_rows=16, thumbnails=True)
    )
    made.add(town.select(town.reference_rows[:5]), options=AddOptions(prefix="again/"))
    made.remove(["003.png"])
    made.compact()
    file = export_map(made.store, tmp_path / f"town{suffix}")
    import_map(file, tmp_path / "back", tiny, town.root)
    back = PlaceMap.open(tmp_path / "back")
    assert_same(back, made)
    assert back.manifest.frame == made.manifest.frame
    assert back.verify() == []
    assert back.manifest.thumbnails
    assert [back.store.thumbnail(i) for i in (0, 57)] == [made.store.thumbnail(i) for i in (0, 57)]
    assert back.store.thumbnail(57) is not None
    assert back.store.image_path(57) == made.store.image_path(57)
    ours, theirs = made.localize(queries[0]), back.localize(queries[0])
    assert [m.name for m in ours.matches] == [m.name for m in theirs.matches]
    assert (
        back.build(
            town, tmp_path / "back", tiny, BuildOptions(storage=storage, thumbnails=True)
        ).report.already
        == 55
    )
    with pytest.raises(KappaPlaceError, match="already exists"):
        import_map(file, tmp_path / "back")


def test_an_imported_map_gets_a_copy_of_the_model_that_is_passed_once(town_map, tiny, queries, tmp_path):
    file = export_map(town_map.store, tmp_path / "town.npz")
    import_map(file, tmp_path / "back")
    assert PlaceMap.open(tmp_path / "back").manifest.model.source == ""
    with pytest.raises(KappaPlaceError, match=r"does not contain its model.* --model"):
        PlaceMap.open(tmp_path / "back").localize(queries[0])
    model = tmp_path / "model"
    shutil.copytree(town_map.folder / town_map.manifest.model.inside, model)
    assert PlaceMap.open(tmp_path / "back", model).localize(queries[0]).matches
    shutil.rmtree(model)
    assert PlaceMap.open(tmp_path / "back").localize(queries[0]).matches


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_an_imported_map_reaches_no_file_outside_the_folder_that_the_user_names(
    town, tiny, tmp_path, monkeypatch, suffix
):
    """The file names /, and has names with .. and absolute ones: those of images that are private."""
    secret = tmp_path / "secret.png"
    shutil.copy(town.image_path(0), secret)
    names = [f"../{secret.name}", str(secret), "000.png", "link.png"]
    photos = tmp_path / "photos"
    photos.mkdir()
    shutil.copy(town.image_path(0), photos / "000.png")
    (photos / "link.png").symlink_to(secret)
    z = np.eye(4, 32, dtype=np.float32)
    arrays = {"name": np.array(names), "descriptors": z, "root": np.array(["/"] * 4)}
    np.savez(tmp_path / "evil.npz", **arrays)
    if suffix == ".parquet":
        import_map(tmp_path / "evil.npz", tmp_path / "npz.map", tiny, photos)
        with writer_of(tmp_path / "npz.map") as writer:
            writer.commit(segments=tuple(replace(s, root="/") for s in writer.manifest.segments))
        export_map(PlaceMap.open(tmp_path / "npz.map").store, tmp_path / "evil.parquet")
    import_map(tmp_path / f"evil{suffix}", tmp_path / "m", tiny)
    assert [PlaceMap.open(tmp_path / "m", tiny).store.image_path(row) for row in range(4)] == [""] * 4
    import_map(tmp_path / f"evil{suffix}", tmp_path / "stated", tiny, photos)
    store = PlaceMap.open(tmp_path / "stated", tiny).store
    assert [store.image_path(row) for row in range(4)] == ["", "", str(photos / "000.png"), ""]
    # The descriptors came without images, so the service shows no thumbnail of a file of this name.
    assert store.original(2) == ""


def test_the_user_names_the_folder_of_an_imported_map_by_adding_it(town, town_map, tiny, tmp_path):
    import_map(export_map(town_map.store, tmp_path / "town.parquet"), tmp_path / "back", tiny)
    back = PlaceMap.open(tmp_path / "back")
    assert back.store.image_path(0) == ""
    assert back.add(town).already == len(back)
    assert back.store.image_path(0) == back.store.original(0) == str(town.image_path(town.reference_rows[0]))


@pytest.mark.parametrize("said", [None, 1, 2, 3])
def test_a_calibration_is_imported_where_it_was_fitted_to_these_signals(
    town_map, tmp_path, monkeypatch, said
):
    record = {"origin": "somewhere", "references": 56, "calibration": {}}
    with writer_of(town_map.folder) as writer:
        writer.commit(calibration=record)
    town_map.refresh()
    facts = exchange._facts(town_map.store)
    assert facts["protocol"] == 1
    facts = {key: value for key, value in facts.items() if key != "protocol"}
    told = facts if said is None else facts | {"protocol": said}
    monkeypatch.setattr(exchange, "_facts", lambda store: told)
    file = export_map(town_map.store, tmp_path / "town.parquet")
    monkeypatch.setattr(manifest, "PROTOCOL", 2)
    if said == 3:
        with pytest.raises(KappaPlaceError, match=r"town.parquet was written by .*newer.*upgrade kappaplace"):
            import_map(file, tmp_path / "back")
        assert not (tmp_path / "back").exists()
    else:
        import_map(file, tmp_path / "back")
        assert read_manifest(tmp_path / "back").calibration == (record if said == 2 else None)


def test_descriptors_from_elsewhere(tiny, pictures, tmp_path):
    z = np.eye(4, 32, dtype=np.float32)
    np.savez(tmp_path / "a.npz", name=np.array(list("abcd")), descriptors=z, x=[0, 50, 100, 150], y=[0.0] * 4)
    with pytest.raises(KappaPlaceError, match="does not name the model"):
        import_map(tmp_path / "a.npz", tmp_path / "m")
    import_map(tmp_path / "a.npz", tmp_path / "m", tiny)
    made = PlaceMap.open(tmp_path / "m", tiny)
    assert made.localize(pictures[0]).matches[0].image == ""
    assert made.store.positions[2].tolist() == [100, 0]
    with pytest.raises(KappaPlaceError, match="without image files"):
        made.reembed(tiny)
    cases = {
        "not of unit length": {"descriptors": 2 * z},
        "'a' more than once": {"name": np.array(list("abca"))},
        "one coordinate only": {"y": [0, 1, np.nan, 2]},
        "must have shape": {"descriptors": z[:, :16]},
        "cannot be imported": {"x": np.array(list("abcd"))},
    }
    good = {"name": np.array(list("abcd")), "descriptors": z, "x": np.zeros(4), "y": np.zeros(4)}
    for i, (sentence, change) in enumerate(cases.items()):
        np.savez(tmp_path / f"{i}.npz", **(good | change))
        with pytest.raises(KappaPlaceError, match=sentence):
            import_map(tmp_path / f"{i}.npz", tmp_path / "bad", tiny)
    assert not (tmp_path / "bad").exists()
    (tmp_path / "x.npz").write_bytes(b"half a file")
    with pytest.raises(KappaPlaceError, match="cannot be imported as a map"):
        import_map(tmp_path / "x.npz", tmp_path / "bad", tiny)
    assert sorted(p.name for p in tmp_path.glob(".*")) == []  # no partial files remain


def test_geojson_lies_on_earth(town, town_map, tiny, tmp_path):
    export_map(town_map.store, tmp_path / "t.geojson")
    read = json.loads((tmp_path / "t.geojson").read_text())
    assert len(read["features"]) == 56
    lon, lat = read["features"][0]["geometry"]["coordinates"]
    assert 37 < lat < 38
    assert -123 < lon < -122
    assert read["features"][0]["properties"]["name"] == "000.png"
    with pytest.raises(KappaPlaceError, match=r"Choose from: .parquet, .npz, .geojson"):
        export_map(town_map.store, tmp_path / "t.kml")


def test_answers_as_files(town_map, queries, tmp_path):
    answers = town_map.localize(queries[:3], k=2)
    write_csv(answers, tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 6
    assert rows[0]["name"] == answers[0].matches[0].name
    assert rows[0]["probability"] == ""
    beside = write_pairs(answers, tmp_path / "pairs.txt")
    lines = (tmp_path / "pairs.txt").read_text().splitlines()
    assert lines == [f"{a.query} {m.name}" for a in answers for m in a.matches]
    scored = [line.split() for line in beside.read_text().splitlines()]
    assert [" ".join(words[:2]) for words in scored] == lines
    assert [words[2] for words in scored] == ["nan"] * 6
    assert float(scored[0][3]) == pytest.approx(answers[0].matches[0].similarity, abs=1e-6)
    spaced = town_map.localize_embeddings(town_map.embed(queries[:1]), ["a b.png"], LocalizeOptions(k=1))
    with pytest.raises(KappaPlaceError, match=r"spaces, got 'a b.png'"):
        write_pairs(spaced, tmp_path / "pairs.txt")
    raw = replace(answers[0], query="caf\udce9.png")  # a name that is not UTF-8
    assert write_pairs([raw], tmp_path / "raw.txt").read_bytes().startswith(b"caf\xe9.png ")
    assert (tmp_path / "raw.txt").read_bytes().startswith(b"caf\xe9.png ")
    write_answers(town_map, answers, tmp_path / "many.html")
    write_answers(town_map, answers[:1], tmp_path / "one.html")
    # icon and map; query, two matches and the evidence of each answer; the filmstrip of several
    for name, pictures in (("many.html", 2 + 3 * 4 + 3), ("one.html", 2 + 4)):
        text = (tmp_path / name).read_text()
        assert text.count("<img") == pictures
        assert "not calibrated" in text
        assert answers[0].matches[0].name in text
        assert "<script" not in text
