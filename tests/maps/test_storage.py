"""Maps with codes: `compact --storage pq`, and all commands on the result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kappaplace.cli.main import app
from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed
from kappaplace.maps import LocalizeOptions, PlaceMap, rewrite
from kappaplace.maps import references as distinctiveness
from kappaplace.maps.exchange import export_map, import_map
from kappaplace.maps.store.manifest import Manifest, ModelRecord, read_manifest
from kappaplace.maps.store.segments import Rows
from kappaplace.maps.store.writer import writer_of
from kappaplace.retrieval import codes
from kappaplace.retrieval.columns import decode, encode
from kappaplace.types import Embeddings
from tests.maps.fakes import SOME_CALIBRATION

DIM, PLACES, EACH = 24, 260, 4
MODEL = ModelRecord("0" * 64, "", DIM, True, {})
SIGNALS = {"cosine", "pa", "margin", "aliasing", "z-score", "inverse-kappa", "kappaplace"}


def town() -> tuple[Rows, np.ndarray]:
    """A thousand references, four per place on a line, and a query at each of twenty places."""
    rng = np.random.default_rng(0)
    energy = 1 / np.sqrt(np.arange(1, DIM + 1))
    centers = rng.standard_normal((PLACES, DIM)) * energy

    def views(of: np.ndarray) -> np.ndarray:
        wide = of + 0.4 * energy * rng.standard_normal(of.shape)
        return (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)

    count = PLACES * EACH
    poses = np.full((count, 4), np.nan)
    poses[:, 0], poses[:, 1] = np.repeat(np.arange(PLACES), EACH) * 100.0, np.tile(np.arange(EACH), PLACES)
    rows = Rows(
        [f"{i:04d}.jpg" for i in range(count)],
        views(np.repeat(centers, EACH, 0)),
        rng.uniform(10, 100, count).astype(np.float32),
        poses,
        np.zeros((count, 2), np.int64),
        np.full((count, 2), -1, np.int64),
        np.zeros((count, 16), np.uint8),
    )
    return rows, views(centers[:20])


@pytest.fixture
def made(tmp_path: Path) -> PlaceMap:
    rows, _ = town()
    with writer_of(tmp_path / "m", create=Manifest(MODEL, name="town")) as writer:
        for start in range(0, len(rows), 400):
            writer.append(rows.take(np.arange(start, min(start + 400, len(rows)))))
        distinctiveness.finish(writer)
    return PlaceMap.open(tmp_path / "m")


def answers(place_map: PlaceMap, **options: object) -> list:
    queries = town()[1]
    embeddings = Embeddings(queries, np.full(len(queries), 50, np.float32))
    return place_map.localize_embeddings(
        embeddings, [str(i) for i in range(20)], LocalizeOptions(k=5, **options)
    )


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_what_is_encoded_is_decoded(storage: str) -> None:
    rows, _ = town()
    np.testing.assert_allclose(decode(encode(rows.descriptors, storage)), rows.descriptors, atol=6e-3)
    with pytest.raises(KappaPlaceError, match="row 3 is NaN"):
        encode(np.where(np.arange(9)[:, None] == 3, np.nan, 1.0), storage)


def test_a_map_of_codes_answers_with_every_signal(made: PlaceMap) -> None:
    before, descriptors = answers(made), made.store.descriptors[:]
    made.compact("pq")
    assert made.info()["storage"] == "pq"
    stored = made.store.segments[0].array("descriptors")
    assert (stored.dtype, stored.shape) == (np.uint8, (1040, DIM + 1))
    decoded = made.store.descriptors[:]
    assert np.einsum("nd,nd->n", decoded, descriptors).mean() > 0.995
    np.testing.assert_allclose(made.store.descriptors[np.array([[5, 900]])], decoded[[[5, 900]]], atol=1e-6)
    assert made.verify() == []
    for old, new in zip(before, answers(made), strict=True):
        assert new.matches[0].x == old.matches[0].x
        assert set(new.signals) == set(old.signals) == SIGNALS
        assert all(np.isfinite(value) for value in new.signals.values())
        # Distinctiveness depends on which of the four nearly equal references of a place is the best match.
        same = new.matches[0].name == old.matches[0].name
        for name in SIGNALS if same else SIGNALS - {"aliasing"}:
            assert new.signals[name] == pytest.approx(old.signals[name], abs=0.05, rel=0.2), name
    near = answers(made, area=(100.0, 0.0, 50.0))[1]
    assert {match.x for match in near.matches} == {100.0}


def test_margin_beyond_the_list_is_found_among_codes(made: PlaceMap, monkeypatch) -> None:
    made.compact("pq")
    direct = answers(made)
    monkeypatch.setattr(
        "kappaplace.maps.localize.DEEP", 1
    )  # the list ends within the place, so all references are compared
    asked = PlaceMap.open(made.folder)
    few = asked.localize_embeddings(
        Embeddings(town()[1], np.full(20, 50, np.float32)), [str(i) for i in range(20)], LocalizeOptions(k=1)
    )
    for one, other in zip(direct, few, strict=True):
        assert one.signals["margin"] == pytest.approx(other.signals["margin"], abs=1e-5)


def test_codes_are_rounded_once_and_new_references_join(made: PlaceMap) -> None:
    made.compact("pq")
    codes_then = np.array(made.store.segments[0].array("descriptors"))
    book = (made.folder / made.manifest.codebook.file).read_bytes()
    names = list(made.store.names())
    made.remove(names[:3])
    made.compact()
    np.testing.assert_array_equal(made.store.segments[0].array("descriptors"), codes_then[3:])
    assert (made.folder / made.manifest.codebook.file).read_bytes() == book
    rows, _ = town()
    with writer_of(made.folder) as writer:
        writer.append(rows.take(np.arange(3)))
        distinctiveness.finish(writer)
    made.refresh()
    assert len(made.store.segments) == 2
    np.testing.assert_array_equal(made.store.segments[1].array("descriptors"), codes_then[:3])
    assert made.verify() == []
    assert len(answers(made)) == 20


def test_any_storage_becomes_any_other_and_what_rounds_takes_the_calibration(made: PlaceMap) -> None:
    with writer_of(made.folder) as writer:
        writer.commit(calibration=SOME_CALIBRATION)
    for storage, kept in [("float16", True), ("int8", False), ("pq", False), ("float32", False)]:
        made.compact(storage)
        manifest = read_manifest(made.folder)
        assert (manifest.storage, manifest.calibration is not None) == (storage, kept)
        assert (manifest.codebook is not None) == (storage == "pq")
        assert made.verify() == []
    assert np.abs(made.store.descriptors[:] - town()[0].descriptors).mean() < 0.01
    assert not list((made.folder / "extras").glob("codebook*"))


@pytest.mark.parametrize("kind", ["ivf-pq", "exact"])
def test_engines_search_codes_and_build_anew_when_the_map_has_changed(made: PlaceMap, kind: str) -> None:
    if kind != "exact":
        pytest.importorskip("faiss")
    made.compact("pq")
    want = [answer.matches[0].x for answer in answers(made)]
    opened = PlaceMap.open(made.folder, engine=kind)
    assert [answer.matches[0].x for answer in answers(opened)] == want
    if kind == "ivf-pq":
        opened.compact("float16")  # other descriptors: the index of the codes is stale
        assert [answer.matches[0].x for answer in answers(PlaceMap.open(made.folder, engine=kind))] == want


def test_an_index_is_told_by_the_manifest_alone(made: PlaceMap) -> None:
    first = made.store.fingerprint
    made.compact("float16")
    second = made.store.fingerprint
    made.compact("pq")
    assert len({first, second, made.store.fingerprint}) == 3


def test_an_exported_map_of_codes_is_one_of_numbers(made: PlaceMap, tmp_path: Path) -> None:
    made.compact("pq")
    export_map(made.store, tmp_path / "m.parquet")
    import_map(tmp_path / "m.parquet", tmp_path / "again", None)
    again = PlaceMap.open(tmp_path / "again")
    assert again.manifest.storage == "float16"
    coded = made.store.descriptors[:]
    unit = coded / np.linalg.norm(coded, axis=1, keepdims=True)
    np.testing.assert_allclose(again.store.descriptors[:], unit, atol=1e-3)


def test_lengthened_codes_are_sound_and_numbers_again_have_unit_length(
    made: PlaceMap, tmp_path: Path, monkeypatch
) -> None:
    made.compact("pq")
    true = codes.Codebook.decode

    def longer(self: codes.Codebook, *args: object, **options: object) -> np.ndarray:
        return 1.04 * true(self, *args, **options)  # like descriptors of many dimensions

    monkeypatch.setattr(codes.Codebook, "decode", longer)
    assert np.linalg.norm(made.store.descriptors[:], axis=1).mean() > 1.02
    assert made.verify() == []
    export_map(made.store, tmp_path / "m.npz")
    import_map(tmp_path / "m.npz", tmp_path / "again", None)
    made.compact("float16")
    for numbers in (PlaceMap.open(tmp_path / "again"), made):
        assert numbers.verify() == []
        np.testing.assert_allclose(np.linalg.norm(numbers.store.descriptors[:], axis=1), 1, atol=1e-3)


def test_single_queries_of_a_map_are_looked_up(made: PlaceMap, monkeypatch) -> None:
    made.compact("pq")
    made.remove(["0003.jpg", "0500.jpg"])
    queries = town()[1]
    many = made.references.engine.search(queries, 6)
    monkeypatch.setattr(codes.Codebook, "decode", None)  # it must not be called
    for i, query in enumerate(queries):
        one = made.references.engine.search(query[None], 6)
        np.testing.assert_array_equal(one.indices[0], many.indices[i])
        np.testing.assert_allclose(one.similarities[0], many.similarities[i], atol=1e-6)


def test_an_older_package_is_told_to_upgrade_before_it_reads_codes(made: PlaceMap) -> None:
    assert json.loads((made.folder / "manifest.json").read_text())["features"] == []
    made.compact("pq")
    file = made.folder / "manifest.json"
    assert json.loads(file.read_text())["features"] == ["codes"]
    file.write_text(json.dumps(sealed(json.loads(file.read_text()) | {"features": ["codes", "sounds"]})))
    with pytest.raises(KappaPlaceError, match=r"needs 'sounds', which .*does not support.*upgrade"):
        PlaceMap.open(made.folder)


def test_what_cannot_be_is_told_and_nothing_is_lost(made: PlaceMap, monkeypatch) -> None:
    with pytest.raises(KappaPlaceError, match=r"Build it as float16.*map compact MAP --storage pq"):
        Manifest(MODEL, storage="pq")
    with pytest.raises(KappaPlaceError, match=r"'zip'\. Choose from: float32, float16, int8, pq"):
        made.compact("zip")
    monkeypatch.setattr(codes, "FEWEST", 5000)
    with pytest.raises(KappaPlaceError, match="at least 5,000 references, got 1,040"):
        made.compact("pq")
    monkeypatch.undo()
    monkeypatch.setattr(
        rewrite, "write_segment", lambda *_, **__: (_ for _ in ()).throw(KappaPlaceError("full"))
    )
    with pytest.raises(KappaPlaceError, match="full"):
        made.compact("pq")
    monkeypatch.undo()
    again = PlaceMap.open(made.folder)
    assert again.verify() == []
    assert (again.manifest.storage, len(again)) == ("float32", 1040)


def test_a_damaged_codebook_is_named(made: PlaceMap) -> None:
    made.compact("pq")
    file = made.folder / made.manifest.codebook.file
    whole = file.read_bytes()
    for damaged in (whole[:-4], whole[:-4] + b"\x00\x00\xc0\x7f"):
        file.write_bytes(damaged)
        with pytest.raises(KappaPlaceError, match=r"codebook.*cannot be read.*map reembed"):
            answers(PlaceMap.open(made.folder))
    file.write_bytes(whole[:-4])
    assert any("codebook" in sentence for sentence in made.verify())
    file.write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
    assert any("codebook" in sentence and "checksum" in sentence for sentence in made.verify())
    file.unlink()
    assert any("codebook" in sentence and "missing" in sentence for sentence in made.verify())


def test_maps_from_before_codes_are_read(made: PlaceMap) -> None:
    file = made.folder / "manifest.json"
    values = json.loads(file.read_text())
    del values["codebook"]
    del values["checksum"], values["features"]
    file.write_text(json.dumps(values | {"format": 1}))
    assert read_manifest(made.folder) == replace(made.manifest, codebook=None, format=1)
    made.remove([next(made.store.names())])  # the next writer adds what is new
    values = json.loads(file.read_text())
    assert (values["format"], len(values["checksum"])) == (3, 64)


def test_the_command_converts_and_tells(made: PlaceMap) -> None:
    with writer_of(made.folder) as writer:
        writer.commit(calibration=SOME_CALIBRATION)
    result = CliRunner().invoke(app, ["map", "compact", str(made.folder), "--storage", "pq"])
    assert result.exit_code == 0, result.output
    assert "does not match the new descriptors" in result.output
    assert read_manifest(made.folder).storage == "pq"


def test_another_model_gets_a_codebook_of_its_own(town_map, queries, monkeypatch) -> None:
    from kappaplace.data.images import Preprocessing
    from kappaplace.models.place_model import PlaceModel

    monkeypatch.setattr(codes, "FEWEST", 50)
    monkeypatch.setattr(codes, "VALUES", 32)  # so that a few dozen references are enough
    other = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(48, "exact")).eval()
    town_map.compact("pq")
    town_map.remove([next(town_map.store.names())])
    town_map.reembed(other)
    fresh = PlaceMap.open(town_map.folder, other)
    assert (fresh.manifest.storage, len(fresh), fresh.store.codebook.width) == ("pq", 55, 17)
    assert fresh.verify() == []
    assert fresh.localize(queries[0]).matches[0].similarity > 0.5
    assert len(list((fresh.folder / "extras").glob("codebook*"))) == 1
