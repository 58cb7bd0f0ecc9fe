"""Building and extending maps, and messages for bad input."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, PlaceMap, embed
from kappaplace.maps import references as distinctiveness
from kappaplace.models import encoder
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from tests.maps.fakes import Counting, assert_same


@pytest.fixture
def other() -> PlaceModel:
    torch.manual_seed(7)
    return PlaceModel.create("resnet_tiny", dim=32, preprocessing=Preprocessing(64, "exact")).eval()


def true_distinctiveness(place_map: PlaceMap) -> np.ndarray:
    """Compute distinctiveness by its definition: all similarities of different places."""
    z, at = place_map.store.descriptors[:], place_map.store.positions
    far = np.linalg.norm(at[:, None] - at[None], axis=2) > place_map.manifest.near.value
    return np.where(far, z @ z.T, -np.inf).max(axis=1)


def test_distinctiveness_is_the_highest_similarity_to_a_far_reference(town_map, town, tiny, tmp_path):
    np.testing.assert_allclose(town_map.store.distinctiveness, true_distinctiveness(town_map), atol=1e-6)
    rows = town.reference_rows
    grown = PlaceMap.build(
        town.select(rows[:25]), tmp_path / "g", tiny, options=BuildOptions(segment_rows=16)
    )
    first = grown.store.distinctiveness.copy()
    grown.add(town.select(rows[25:]))
    np.testing.assert_allclose(grown.store.distinctiveness, true_distinctiveness(grown), atol=1e-6)
    assert (grown.store.distinctiveness[:25] > first).any()  # new references change the values of old ones


def test_a_large_map_is_sampled_and_says_so(town, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(distinctiveness, "EXACT_LIMIT", 20)
    monkeypatch.setattr(distinctiveness, "SAMPLE", 24)
    made = PlaceMap.build(town, tmp_path / "m", tiny)
    assert made.info()["distinctiveness"] == "sampled 24"
    found, truth = made.store.distinctiveness, true_distinctiveness(made)
    assert (found <= truth + 1e-6).all()
    assert (np.abs(found - truth) < 1e-6).any()


def test_build_twice_and_in_pieces_gives_one_map(town, tiny, tmp_path):
    embedder = Counting(tmp_path / "log")
    whole = PlaceMap.build(
        town, tmp_path / "a", tiny, options=BuildOptions(embedder=embedder, segment_rows=16)
    )
    first = PlaceMap.build(
        town.select(np.arange(16)),
        tmp_path / "b",
        tiny,
        options=BuildOptions(embedder=embedder, segment_rows=16),
    )
    assert len(first) == 16
    assert first.report.added == 16
    both = PlaceMap.build(
        town, tmp_path / "b", tiny, options=BuildOptions(embedder=embedder, segment_rows=16)
    )
    assert both.report.already == 16
    np.testing.assert_array_equal(both.store.descriptors[:], whole.store.descriptors[:])
    both.compact()
    whole.compact()
    assert_same(both, whole)


def test_a_folder_of_photos_needs_no_poses(pictures, tiny, tmp_path):
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "a" / f"{i}.png")
    made = PlaceMap.build(folder, tmp_path / "m", tiny, options=BuildOptions(thumbnails=True))
    assert list(made.store.names()) == [f"a/{i}.png" for i in range(6)]
    assert made.report.unposed == made.info()["unposed"] == 6
    assert "6 have no position" in made.report.sentence
    assert made.manifest.neighborhood == "self"
    assert made.store.thumbnail(3).startswith(b"\xff\xd8")
    answer = made.localize(str(folder / "a" / "4.png"))
    assert answer.matches[0].name == "a/4.png"
    assert answer.pose is None
    assert any("6 of 6 references have no position" in note for note in answer.notes)
    files = PlaceMap.build([folder / "a" / "1.png", folder / "a" / "2.png"], tmp_path / "files", tiny)
    assert list(files.store.names()) == ["1.png", "2.png"]


def test_bad_images_are_left_out_or_end_the_work(pictures, tiny, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{i}.png")
    (folder / "3.png").write_bytes(b"not an image")
    with pytest.raises(KappaPlaceError, match=r"3.png"):
        PlaceMap.build(folder, tmp_path / "strict", tiny, options=BuildOptions(on_error="stop"))
    made = PlaceMap.build(folder, tmp_path / "m", tiny)
    assert len(made) == 5
    assert [name for name, _ in made.report.skipped] == ["3.png"]
    for i in range(6):
        (folder / f"{i}.png").write_bytes(b"not an image")
    with pytest.raises(KappaPlaceError, match="None of the 6 images could be read"):
        PlaceMap.build(folder, tmp_path / "none", tiny)


def test_a_model_is_loaded_and_hashed_once(town, tiny, tmp_path, queries, monkeypatch):
    folder = save_model(tiny, tmp_path / "model")
    calls: Counter[str] = Counter()
    load, digest = embed.load_model, encoder.state_digest
    monkeypatch.setattr(embed, "load_model", lambda *a, **k: (calls.update(["load"]), load(*a, **k))[1])
    monkeypatch.setattr(encoder, "state_digest", lambda state: (calls.update(["hash"]), digest(state))[1])
    made = PlaceMap.build(town, tmp_path / "town.map", folder)
    made.localize(queries[0])
    made.self_calibrate()
    assert calls == {"load": 1, "hash": 1}
    calls.clear()
    PlaceMap.open(tmp_path / "town.map").localize(queries)
    assert calls == {"load": 1, "hash": 1}


def test_names_that_come_twice(town, town_map, tiny, tmp_path):
    with pytest.raises(KappaPlaceError, match=r"'000.png' appears more than once"):
        PlaceMap.build(PlaceImages.create(["000.png", "000.png"], root=town.root), tmp_path / "twice", tiny)
    folder = tmp_path / "new"
    folder.mkdir()
    Image.new("RGB", (32, 32), "red").save(folder / "000.png")
    changed = PlaceImages.create(["000.png"], town.positions[:1], root=folder, frame=town.frame)
    with pytest.raises(KappaPlaceError, match=r"another image under the name '000.png'.*--prefix"):
        town_map.add(changed)
    assert town_map.add(changed, options=AddOptions(duplicates="skip")).skipped[0][0] == "000.png"
    count, old = len(town_map), town_map.store.descriptors[town_map.store.find(["000.png"])]
    report = town_map.add(changed, options=AddOptions(duplicates="replace"))
    assert (report.replaced, report.added, len(town_map)) == (1, 1, count)
    assert not np.allclose(town_map.store.descriptors[town_map.store.find(["000.png"])], old)
    town_map.add(changed, options=AddOptions(prefix="red/"))
    assert len(town_map) == count + 1
    assert town_map.store.image_path(count) == str(folder / "000.png")
    assert town_map.verify() == []


def test_images_that_moved_are_found_again(town, tiny, tmp_path):
    """Moved files are not embedded again, and the map records their new folder."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(town.root, old)
    made = PlaceMap.build(
        replace(town, root=old), tmp_path / "m", tiny, options=BuildOptions(segment_rows=16)
    )
    old.rename(new)
    assert made.add(replace(town, root=new)).already == 56
    assert made.store.image_path(20) == str(new / made.store.name(20))
    assert (
        made.manifest.version
        == PlaceMap.build(replace(town, root=new), tmp_path / "m", tiny).manifest.version
    )


def test_frames_of_a_route(town, tiny, tmp_path):
    rows = town.reference_rows
    table = PlaceImages.create(
        town.paths[rows], root=town.root, condition=["a"] * 30 + ["b"] * (len(rows) - 30)
    )
    made = PlaceMap.build(table, tmp_path / "m", tiny, options=BuildOptions(neighborhood="frames:2"))
    near = made.references.near
    assert near(5, np.array([2, 3, 5, 7, 8])).tolist() == [False, True, True, True, False]
    assert not near(29, np.array([30]))[0]  # another route


def test_another_model_is_refused_and_reembed_helps(town, town_map, tiny, other, queries, tmp_path):
    with pytest.raises(KappaPlaceError, match=r"built with another model.*map reembed"):
        PlaceMap.open(town_map.folder, other).localize(queries[0])
    with pytest.raises(KappaPlaceError, match="built with another model"):
        PlaceMap.open(town_map.folder, other).add(town)
    with pytest.raises(KappaPlaceError, match="built with another model"):
        PlaceMap.build(town, town_map.folder, other)
    town_map.remove(["005.png"])
    report = town_map.reembed(other, options=AddOptions(segment_rows=16))
    assert report.added == 55
    fresh = PlaceMap.open(town_map.folder)
    assert fresh.verify() == []
    direct = PlaceMap.build(
        town.select(np.delete(town.reference_rows, 5)),
        tmp_path / "direct",
        other,
        options=BuildOptions(segment_rows=16),
    )
    assert_same(fresh, direct, apart_from="routes")  # a part of a table numbers its frames from 0
    assert fresh.localize(queries[0]).matches[0].name == direct.localize(queries[0]).matches[0].name
    assert not (town_map.folder / "reembed").exists()
    with pytest.raises(KappaPlaceError, match="built with another model"):
        PlaceMap.open(town_map.folder, tiny).localize(queries[0])


def test_an_interrupted_reembedding_leaves_the_map_and_goes_on(town_map, other, queries, tmp_path):
    embedder, calls = Counting(tmp_path / "log"), []

    def breaks(paths):
        calls.append(paths)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return embedder(paths)

    before = town_map.localize(queries[0]).matches[0].name
    with pytest.raises(KeyboardInterrupt):
        town_map.reembed(other, options=AddOptions(segment_rows=16, embedder=breaks))
    again = PlaceMap.open(town_map.folder)
    assert again.localize(queries[0]).matches[0].name == before
    again.reembed(other, options=AddOptions(segment_rows=16, embedder=embedder))
    assert len(embedder.calls) == 56
    assert again.verify() == []


def test_settings_must_agree_when_a_build_goes_on(town, town_map, tiny, tmp_path):
    with pytest.raises(KappaPlaceError, match="with storage float32, got int8"):
        PlaceMap.build(town, town_map.folder, tiny, options=BuildOptions(storage="int8"))
    with pytest.raises(KappaPlaceError, match="with neighborhood metres:25"):
        PlaceMap.build(town, town_map.folder, tiny, options=BuildOptions(radius=10))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(KappaPlaceError, match=r"has other files \(thesis.tex\)"):
        PlaceMap.build(town, tmp_path / "full", tiny)


def test_bad_sources_are_told(town, town_map, tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = {
        "contains no images": tmp_path / "empty",
        "nowhere does not exist": tmp_path / "nowhere",
        "list of images to add is empty": [],
        "cannot be built from a int": 3,
        "only queries": town.queries,
    }
    for sentence, images in cases.items():
        with pytest.raises(KappaPlaceError, match=sentence):
            PlaceMap.build(images, tmp_path / "m", tiny)
    assert not (tmp_path / "m").exists()
    local = PlaceImages.create(["000.png"], [[0, 0]], root=town.root)
    with pytest.raises(KappaPlaceError, match="from the frame local to the map's frame EPSG:32610"):
        town_map.add(local, options=AddOptions(prefix="x/"))
    with pytest.raises(KappaPlaceError, match="only one of its two coordinates"):
        PlaceImages.create(["000.png"], [[np.nan, 0]], root=town.root)
    with pytest.raises(KappaPlaceError, match="Unknown storage 'float8'"):
        PlaceMap.build(town, tmp_path / "m", tiny, options=BuildOptions(storage="float8"))
    with pytest.raises(KappaPlaceError, match="Unknown duplicates 'both'"):
        PlaceMap.build(town, tmp_path / "m", tiny, options=BuildOptions(duplicates="both"))


def test_images_of_the_next_zone_are_brought_into_the_maps_frame(town, town_map):
    from pyproj import Transformer

    rows = town.reference_rows[:3]
    lon, lat = Transformer.from_crs(32610, 4326, always_xy=True).transform(*town.positions[rows].T)
    there = np.column_stack(Transformer.from_crs(4326, 32611, always_xy=True).transform(lon, lat))
    table = PlaceImages.create(town.paths[rows], there, root=town.root, frame="EPSG:32611")
    count = len(town_map)
    town_map.add(table, options=AddOptions(prefix="z11/"))
    np.testing.assert_allclose(town_map.store.positions[count:], town.positions[rows], atol=1e-3)


def test_a_model_without_kappa(town, tmp_path, queries):
    plain = PlaceModel.create(
        "resnet_tiny", dim=16, head="none", preprocessing=Preprocessing(32, "exact")
    ).eval()
    made = PlaceMap.build(town, tmp_path / "m", plain)
    assert not made.info()["kappa"]
    answer = made.localize(queries[0])
    assert np.isnan(answer.kappa)
    assert "kappaplace" not in answer.signals
    assert answer.to_dict()["kappa"] is None
    assert answer.uncertainty == pytest.approx(1 - answer.matches[0].similarity)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that is not there")
def test_a_device_that_is_not_there_leaves_no_map(town, tiny, tmp_path):
    with pytest.raises(KappaPlaceError, match="The device 'cuda' cannot be used on this machine"):
        PlaceMap.build(town, tmp_path / "m", tiny, BuildOptions(device="cuda"))
    assert not (tmp_path / "m").exists()
