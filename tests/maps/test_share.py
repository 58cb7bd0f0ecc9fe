"""Pushing and pulling maps: the same answers, no local folders, only files of the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed
from kappaplace.maps import PlaceMap
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.sharing import pull_map, push_map
from tests.cli.test_main import run
from tests.fake_hub import FakeHub, fake_hub
from tests.maps.fakes import contents


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def town_map(town: PlaceImages, tiny: PlaceModel, tmp_path: Path) -> PlaceMap:
    """A map with one segment, because every file is a request."""
    return PlaceMap.build(town, tmp_path / "town.map", tiny)


def same_answers(one: PlaceMap, other: PlaceMap, query: str) -> None:
    ours, theirs = contents(one), contents(other)
    for column, values in ours.items():
        np.testing.assert_array_equal(values, theirs[column], err_msg=column)
    assert [m.name for m in one.localize(query).matches] == [m.name for m in other.localize(query).matches]


def test_there_and_back(hub: FakeHub, town_map: PlaceMap, queries: list[str], tmp_path: Path) -> None:
    push_map(town_map.folder, "me/town")
    again = PlaceMap.open(pull_map("me/town", tmp_path / "again.map"))
    same_answers(town_map, again, queries[0])
    told = b"".join(
        c for f, c in hub.repositories["datasets/me/town"].items() if f.endswith((".json", ".md"))
    )
    assert str(tmp_path).encode() not in told
    assert b'"root": ""' in told
    assert not list((tmp_path / "again.map").rglob(".cache"))


def test_patches_go_with_the_map(
    hub: FakeHub, town_map: PlaceMap, queries: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = town_map.localize(queries, rerank=5)
    push_map(town_map.folder, "me/town")
    again = PlaceMap.open(pull_map("me/town", tmp_path / "again.map"))
    monkeypatch.setattr(type(again.store), "image_path", lambda *_: "")  # no image can be read
    for one, other in zip(before, again.localize(queries, rerank=5), strict=True):
        assert one.signals == other.signals
        assert [match.name for match in one.matches] == [match.name for match in other.matches]


def test_a_model_from_a_folder_goes_with_the_map(
    hub: FakeHub, town: PlaceImages, tiny: PlaceModel, queries: list[str], tmp_path: Path
) -> None:
    model = save_model(tiny, tmp_path / "model")
    built = PlaceMap.build(town, tmp_path / "town.map", model)
    push_map(built.folder, "me/town")
    again = PlaceMap.open(pull_map("me/town", tmp_path / "again.map"))
    same_answers(built, again, queries[0])
    assert again.manifest.model.source.startswith("./model-")


def changed(hub: FakeHub, **values: object) -> None:
    files = hub.repositories["datasets/me/town"]
    files["manifest.json"] = json.dumps(sealed(json.loads(files["manifest.json"]) | values)).encode()


def test_a_manifest_that_reaches_out_is_refused(hub: FakeHub, town_map: PlaceMap, tmp_path: Path) -> None:
    push_map(town_map.folder, "me/town")
    files = hub.repositories["datasets/me/town"]
    manifest = json.loads(files["manifest.json"])
    files["segments/../../../evil.npy"] = b"x"
    changed(hub, segments=[manifest["segments"][0] | {"name": "../../.."}])
    with pytest.raises(KappaPlaceError, match="is not a name"):
        pull_map("me/town", tmp_path / "again.map")
    changed(hub, segments=manifest["segments"], model=manifest["model"] | {"source": "/etc"})
    with pytest.raises(KappaPlaceError, match="neither in it nor a known name"):
        pull_map("me/town", tmp_path / "again.map")
    assert not [f for f in tmp_path.iterdir() if "again" in f.name]


def test_damage_is_noticed_on_both_ways(hub: FakeHub, town_map: PlaceMap, tmp_path: Path) -> None:
    push_map(town_map.folder, "me/town")
    files = hub.repositories["datasets/me/town"]
    name = next(name for name in files if name.endswith("kappa.npy"))
    files[name] = files[name][:-1] + b"\x7f"
    with pytest.raises(KappaPlaceError, match=r"downloaded map .* is damaged"):
        pull_map("me/town", tmp_path / "again.map")
    (town_map.folder / name).write_bytes(b"short")
    with pytest.raises(KappaPlaceError, match="is damaged, so it was not uploaded"):
        push_map(town_map.folder, "me/town")


def test_commands(
    hub: FakeHub,
    town_map: PlaceMap,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "map", "push", town_map.folder, "me/town") == 0
    assert f"Uploaded to {hub.address}/datasets/me/town" in capsys.readouterr().out
    assert run(monkeypatch, "map", "pull", "me/town", "--out", tmp_path / "again.map", "--json") == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(tmp_path / "again.map")
