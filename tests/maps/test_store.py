"""Files of a map: reading what was written, and reporting damage."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed
from kappaplace.maps import BuildOptions, LocalizeOptions, PlaceMap, opened, store
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.store import find_damage, manifest, verify_folder
from kappaplace.maps.store.manifest import PROTOCOL, read_manifest
from kappaplace.maps.store.segments import Segment, StaleMap
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.embedding import embed_images
from kappaplace.models.place_model import PlaceModel
from tests.maps.fakes import Counting


@pytest.mark.parametrize(("storage", "tolerance"), [("float32", 0), ("float16", 1e-3), ("int8", 2e-2)])
def test_descriptors_come_back_as_they_were_stored(town, tiny, tmp_path, storage, tolerance):
    made = PlaceMap.build(town, tmp_path / "m", tiny, options=BuildOptions(storage=storage, segment_rows=20))
    rows = town.reference_rows
    direct = np.concatenate(
        [
            embed_images(tiny, tiny.preprocessing, town.image_paths(rows[i : i + 20])).descriptor
            for i in (0, 20, 40)
        ]
    )
    # The blocks of the build have other sizes, which changes the last bits.
    np.testing.assert_allclose(made.store.descriptors[:], direct, atol=max(tolerance, 1e-5))
    np.testing.assert_allclose(np.linalg.norm(made.store.descriptors[:], axis=1), 1, atol=1e-3)
    before = made.store.descriptors[:]
    made.compact()
    np.testing.assert_array_equal(made.store.descriptors[:], before)  # values are rounded only once
    assert made.verify() == []
    size = {"float32": 4, "float16": 2, "int8": 1}[storage]
    assert made.store.segments[0].array("descriptors").itemsize == size


def test_reading_by_slice_and_by_number_is_the_same(town_map):
    store = town_map.store
    whole, n = store.descriptors[:], len(store)
    assert len(store.segments) == 4
    for start, stop in [(0, 0), (0, 1), (15, 17), (3, 50), (n - 1, n), (40, 10**6)]:
        np.testing.assert_array_equal(store.descriptors[start:stop], whole[start:stop])
    rows = np.array([[5, 40], [0, 17]])
    np.testing.assert_array_equal(store.descriptors[rows], whole[rows])
    np.testing.assert_array_equal(store.gather("poses", rows), store.whole("poses")[rows])


def test_names_are_found_and_removed(town_map, town, queries):
    names = list(town_map.store.names())
    assert names == town.references.paths.tolist()
    assert town_map.store.find(["nobody", names[7], names[-1]]).tolist() == [-1, 7, len(names) - 1]
    gone = [names[0], names[20], names[21]]
    assert town_map.remove(gone) == 3
    left = [name for name in names if name not in gone]
    assert list(town_map.store.names()) == left
    assert town_map.store.find(gone).tolist() == [-1, -1, -1]
    assert [town_map.store.name(i) for i in range(3)] == left[:3]
    assert town_map.store.descriptors[:].shape[0] == len(left) == len(town_map)
    answer = town_map.localize(queries[0], k=100)
    assert {match.name for match in answer.matches} == set(left)
    with pytest.raises(KappaPlaceError, match=r"no reference 'zzz' .*Nothing was removed"):
        town_map.remove([names[1], "zzz"])
    assert len(town_map) == len(left)
    before = town_map.localize(queries[:3], k=5)
    town_map.compact()
    assert len(town_map.store.segments) == 1
    after = town_map.localize(queries[:3], k=5)
    assert [[m.name for m in a.matches] for a in before] == [[m.name for m in a.matches] for a in after]
    assert list(town_map.store.names()) == left


def test_an_emptied_map_says_so(town_map, queries):
    town_map.remove(list(town_map.store.names()))
    with pytest.raises(KappaPlaceError, match="is empty"):
        town_map.localize(queries[0])
    town_map.compact()
    assert len(PlaceMap.open(town_map.folder)) == 0
    assert town_map.verify() == []


def test_opening_reads_nothing_but_the_manifest(town_map, monkeypatch):
    opened = []
    real = np.load
    monkeypatch.setattr(np, "load", lambda file, *a, **k: (opened.append(file), real(file, *a, **k))[1])
    PlaceMap.open(town_map.folder)
    assert opened == []


def damaged(folder: Path, out: Path, file: str, change) -> Path:
    shutil.copytree(folder, out)
    found = next(out.glob(file))
    data = bytearray(found.read_bytes())
    found.write_bytes(change(data))
    return out


def flipped(data: bytearray) -> bytes:
    data[-5] ^= 0x10
    return bytes(data)


def test_a_map_compacted_while_it_is_opened_is_looked_at_again(town_map):
    before = read_manifest(town_map.folder)  # the version of a reader while another process compacts
    PlaceMap.open(town_map.folder).compact()
    late = PlaceMap(town_map.folder, before)
    assert late.manifest.version > before.version
    assert late.store.name(0) == next(iter(late.store.names()))
    for segment in late.store.segments:
        shutil.rmtree(segment.folder)
    with pytest.raises(StaleMap, match="no longer exists"):  # without a newer manifest, the files are lost
        PlaceMap(town_map.folder, late.manifest)


def test_a_map_compacted_between_size_and_content_is_looked_at_again(town_map, queries, monkeypatch):
    """A file that is deleted after its size was checked makes the map stale, not damaged."""
    reader, expected = PlaceMap.open(town_map.folder), town_map.localize(queries[0], 3)
    made, checked = reader.embed(queries[:1]), Segment.checked

    def compacted_meanwhile(segment, name):
        file = checked(segment, name)
        monkeypatch.setattr(Segment, "checked", checked)
        PlaceMap.open(town_map.folder).compact()
        assert not file.exists()
        return file

    for name in ("array", "_blobs"):
        monkeypatch.setattr(Segment, "checked", compacted_meanwhile)
        with pytest.raises(StaleMap, match="no longer exists"):
            getattr(reader.store.segments[0], name)("poses" if name == "array" else "names")
        reader.refresh()
    monkeypatch.setattr(Segment, "checked", compacted_meanwhile)
    (answer,) = reader.localize_embeddings(made, ["q"], LocalizeOptions(k=3))
    assert [m.name for m in answer.matches] == [m.name for m in expected.matches]


def test_a_map_compacted_while_it_is_verified_is_sound(town_map, monkeypatch):
    def compacted_first(folder, manifest):
        monkeypatch.setattr(store, "find_damage", find_damage)
        PlaceMap.open(folder).compact()
        return find_damage(folder, manifest)

    monkeypatch.setattr(store, "find_damage", compacted_first)
    assert town_map.verify() == []


def test_damage_is_found_and_told_where_it_matters(town_map, tiny, queries, tmp_path):
    cut = damaged(town_map.folder, tmp_path / "cut", "segments/000002/descriptors.npy", lambda d: d[:-64])
    with pytest.raises(KappaPlaceError, match=r"000002/descriptors.npy has .* bytes instead of .*map verify"):
        PlaceMap.open(cut)
    part = damaged(town_map.folder, tmp_path / "part", "segments/000001/poses.npy", lambda d: d[:-8])
    with pytest.raises(KappaPlaceError, match=r"000001/poses.npy has .* bytes instead of"):
        PlaceMap.open(part)
    for i, file in enumerate(("descriptors", "kappa", "names.starts", "poses", "keys")):
        name = f"segments/000001/{file}.npy"
        folder = damaged(town_map.folder, tmp_path / f"flip{i}", name, flipped)
        (sentence,) = PlaceMap.open(folder).verify()
        assert name in sentence
        assert "wrong checksum" in sentence
    names = damaged(town_map.folder, tmp_path / "names", "segments/000000/names.bin", flipped)
    assert "names.bin" in PlaceMap.open(names).verify()[0]
    extra = damaged(town_map.folder, tmp_path / "extra", "extras/distinctiveness*.npy", flipped)
    assert "distinctiveness" in PlaceMap.open(extra).verify()[0]
    shutil.copytree(town_map.folder, tmp_path / "gone")
    (tmp_path / "gone/segments/000003/kappa.npy").unlink()
    assert any("kappa.npy is missing" in sentence for sentence in verify_folder(tmp_path / "gone")[1])
    assert town_map.verify() == []


def test_bad_manifests_are_told(town_map, tmp_path):
    with pytest.raises(KappaPlaceError, match=r"No map at .*map build"):
        read_manifest(tmp_path / "nowhere")
    file = town_map.folder / "manifest.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"format": 99, "kappaplace": "9.0"}))
    with pytest.raises(KappaPlaceError, match=r"kappaplace 9.0, which is newer: its format is 99.*upgrade"):
        read_manifest(town_map.folder)
    for broken in ("{", "[]", json.dumps({"format": 1}), json.dumps(sealed(values | {"segments": 3}))):
        file.write_text(broken)
        with pytest.raises(KappaPlaceError, match="is damaged"):
            read_manifest(town_map.folder)


def test_a_map_of_a_newer_protocol_is_refused(town_map, queries):
    file = town_map.folder / "manifest.json"
    newer = json.loads(file.read_text()) | {"protocol": PROTOCOL + 1, "kappaplace": "9.0"}
    file.write_text(json.dumps(sealed(newer)))
    before = file.read_bytes()
    said = rf"town.map was written by kappaplace 9.0.*protocol is {PROTOCOL + 1}, and this version.*upgrade"
    for ask in (
        lambda: PlaceMap.open(town_map.folder),
        lambda: town_map.refresh(),
        lambda: town_map.compact(),
        lambda: town_map.remove(["000.png"]),
    ):
        with pytest.raises(KappaPlaceError, match=said):
            ask()
    assert file.read_bytes() == before
    for wrong in ("2", None, 1.5, -1):
        file.write_text(json.dumps(sealed(newer | {"protocol": wrong})))
        with pytest.raises(KappaPlaceError, match="is damaged"):
            PlaceMap.open(town_map.folder)


def test_a_map_of_an_older_protocol_opens_without_its_calibration(town_map, queries, monkeypatch):
    record = {"origin": "somewhere", "references": 56, "calibration": {}}
    with writer_of(town_map.folder) as writer:
        writer.commit(calibration=record)
    assert read_manifest(town_map.folder).calibration == record
    for module in (manifest, opened):
        monkeypatch.setattr(module, "PROTOCOL", PROTOCOL + 1)
    older = PlaceMap.open(town_map.folder)
    assert older.calibration is None
    answer = older.localize(queries[0])
    assert answer.matches
    assert answer.probability is None
    assert any("protocol 1 and this version uses 2" in note for note in answer.notes)
    older.remove(["000.png"])  # writers use the current format
    values = json.loads((town_map.folder / "manifest.json").read_text())
    assert (values["protocol"], values["calibration"]) == (PROTOCOL + 1, None)
    assert older.notes() == []


def test_a_model_that_the_map_no_longer_uses_goes(town_map, tiny, queries, town):
    (first,) = town_map.folder.glob("model-*")
    mine = town_map.folder / "model-mine"  # not a name of ours
    mine.mkdir()
    late, other = PlaceMap.open(town_map.folder), PlaceModel.create("resnet_tiny", dim=16).eval()
    other.preprocessing = tiny.preprocessing
    town_map.reembed(other)
    assert not first.exists()
    assert mine.exists()
    (second,) = set(town_map.folder.glob("model-*")) - {mine}
    assert town_map.manifest.model.source == f"./{second.name}"
    assert town_map.verify() == []
    # A map without a loaded model reads the manifest again, as after compacting.
    assert late.localize(queries[0]).matches[0].name == town_map.localize(queries[0]).matches[0].name
    assert late.manifest.model.dim == 16
    stale = PlaceMap.open(town_map.folder)
    shutil.rmtree(second)
    with pytest.raises(KappaPlaceError, match="cannot be loaded"):  # deleted without a replacement
        stale.localize(queries[0])


def test_a_model_left_by_a_killed_reembedding_goes_and_one_named_by_its_path_stays(town_map):
    (kept,) = town_map.folder.glob("model-*")
    left = town_map.folder / "model-0123456789ab"
    shutil.copytree(kept, left)
    with writer_of(town_map.folder) as writer:
        assert not left.exists()
        writer.commit(model=replace(writer.manifest.model, source=str(kept.resolve())))
    moved = town_map.folder.with_name("moved.map")
    town_map.folder.rename(moved)
    PlaceMap.open(moved, moved / kept.name).compact()
    assert (moved / kept.name).is_dir()


def test_a_model_of_another_map_is_copied(town_map, town, queries, tmp_path):
    (theirs,) = town_map.folder.glob("model-*")
    built = PlaceMap.build(town, tmp_path / "second.map", theirs)
    shutil.rmtree(town_map.folder)
    assert built.manifest.model.source == f"./{theirs.name}"
    assert PlaceMap.open(built.folder).localize(queries[0]).matches


def test_what_a_dead_writer_left_is_ignored_and_removed(town_map, town, tmp_path):
    orphan = town_map.folder / "segments" / "000004"
    shutil.copytree(town_map.folder / "segments" / "000000", orphan)
    (town_map.folder / "segments" / ".000005.part").mkdir()
    (town_map.folder / "extras" / "sample-999999.npy").write_bytes(b"half")
    opened = PlaceMap.open(town_map.folder)
    assert len(opened) == len(town_map)
    assert opened.verify() == []
    opened.remove([next(opened.store.names())])
    assert sorted(os.listdir(town_map.folder / "segments")) == ["000000", "000001", "000002", "000003"]
    assert not (town_map.folder / "extras" / "sample-999999.npy").exists()


@pytest.mark.parametrize("what", ["segment", "manifest", "pending"])
def test_a_full_disk_loses_nothing(town, tiny, tmp_path, monkeypatch, what):
    import errno

    from kappaplace import files
    from kappaplace.maps.store import segments, writer

    out, log = tmp_path / "m", tmp_path / "log"
    options = BuildOptions(segment_rows=16, embedder=Counting(log))
    real, calls = files.save_array, []

    def full(file: Path, values: np.ndarray) -> None:
        calls.append(file)
        if len(calls) > 20:
            Path(file).write_bytes(b"half of i")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, values)

    def full_text(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if what == "segment":
            patch.setattr(segments, "save_array", full)
        elif what == "manifest":
            patch.setattr(writer, "save_array", full_text)
        else:
            patch.setattr(np, "savez", full_text)
        with pytest.raises(KappaPlaceError, match="No space left on device"):
            PlaceMap.build(town, out, tiny, options)
    assert out.exists() == (what != "pending")  # an empty map is not left behind
    if out.exists():
        assert PlaceMap.open(out).verify() == []
        assert len(PlaceMap.open(out)) == {"segment": 32, "manifest": 56}[what]
    done = len(Counting(log).calls)
    made = PlaceMap.build(town, out, tiny, options)
    assert len(made) == 56
    assert len(Counting(log).calls) - done == {"segment": 8, "manifest": 0, "pending": 56}[what]


DEAD = 2**22 - 5
"""Number of a process that does not exist: the largest of Linux is 2²² − 1."""


def test_debris_of_killed_writers_goes_with_the_next_writer(town_map):
    folder = town_map.folder
    for name in ("pending", "index"):
        (folder / name).mkdir()
    debris = [
        folder / f".manifest.json.{DEAD}.part",
        folder / f".write-test-{DEAD}",
        folder / "extras" / f".removed-000009.npy.{DEAD}.part",
        folder / "index" / f".ivf-pq.index.{DEAD}.part",
        folder / "pending" / "000000.npz",
    ]
    alive = folder / "index" / f".ivf-pq.index.{os.getpid()}.part"
    for file in (*debris, alive):
        file.write_bytes(b"half of a file")
    town_map.remove(["000.png"])
    assert [file for file in debris if file.exists()] == []
    assert not (folder / "pending").exists()
    assert alive.exists()  # another process may be building an index


def test_pending_embeddings_that_are_in_the_map_go_with_the_next_addition(town_map, town):
    """A writer that is killed after its last segment leaves them, and there is nothing left to embed."""
    pending = town_map.folder / "pending"
    pending.mkdir()
    (pending / "000000.npz").write_bytes(b"a block")
    town_map.add(town)
    assert not pending.exists()


def test_removing_the_same_names_again_after_a_kill_succeeds(town_map):
    assert town_map.remove(["003.png", "004.png"]) == 2
    assert PlaceMap.open(town_map.folder).remove(["003.png", "004.png", "005.png"]) == 1
    with pytest.raises(KappaPlaceError, match=r"no reference 'nowhere.png' \(1 of 2 names"):
        town_map.remove(["003.png", "nowhere.png"])


def test_an_import_removes_what_a_killed_one_left(town_map, tiny, tmp_path):
    file = export_map(town_map.store, tmp_path / "town.npz")
    left = tmp_path / f".back.{DEAD}.part"
    left.mkdir()
    import_map(file, tmp_path / "back", tiny)
    assert not left.exists()
