"""Packing a trained model: half precision, a calibration that belongs to it, a card without open places."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kappaplace.errors import KappaPlaceError
from kappaplace.maps import PlaceMap
from kappaplace.models import shipped
from kappaplace.models.checkpoint import load_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import CALIBRATION, DEFAULT, PAGE
from kappaplace_city import SyntheticCity

RECIPE = Path(__file__).parents[2] / "recipes" / "kappaplace_lite0"
RESULTS = "set,queries,R@1,AUROC,smooth ECE\nsped,1607,0.51,0.834,0.0123\nmean,,0.6,,\n"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts, as if they were run from their folder."""
    monkeypatch.syspath_prepend(str(RECIPE))

    def load(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return __import__(name)

    yield load
    for name in ("pack", "calibrate"):
        sys.modules.pop(name, None)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results.csv").write_text(RESULTS)
    return tmp_path / "results.csv"


def town(folder: Path, split: str) -> Path:
    """A set in the layout gt-json: each reference asked again under other conditions."""
    views = SyntheticCity(0, (1, 1)).views(split, spacing=10.0, seed=0)
    harsh = SyntheticCity(0, (1, 1)).views(split, spacing=10.0, strength=0.7, seed=1)
    kinds = {"ref": views.render(32)[:40], "query": harsh.render(32)[:40]}
    for kind, images in kinds.items():
        (folder / kind).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(np.asarray(image)).save(folder / kind / f"{number:03d}.png")
    (folder / "gt.json").write_text(json.dumps({"positives": [[number] for number in range(40)]}))
    return folder


def test_calibrated_packed_and_lent(
    scripts: Any, results: Path, tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, from a model and sets to a map that answers with probabilities."""
    calibrate, pack = scripts("calibrate"), scripts("pack")
    sets = [
        (name, calibrate.read_table(town(tmp_path / name, split)))
        for name, split in (("one", "val"), ("two", "test"))
    ]
    examples = calibrate.gather(tiny, sets)
    assert examples.outside.sum() == 2 * 40  # each map is asked the queries of the other town
    made = calibrate.fit(examples, ["one", "two"])
    assert made.rule is None
    (tmp_path / "calibration.json").write_text(json.dumps(made.to_dict()))
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    folder = tmp_path / "shipped" / DEFAULT
    pack.pack(tiny, folder, tmp_path / "calibration.json", results, "two made-up towns", "A note.")
    model = load_model()
    assert isinstance(model, PlaceModel)
    assert model.architecture.head == "folded"
    facts = json.loads((folder / CALIBRATION).read_text())["facts"]
    assert facts["model"] == model.fingerprint
    card = json.loads((folder / "card.json").read_text())
    assert card["metrics"] == {"R@1 sped": 0.51, "AUROC sped": 0.834, "R@1 mean": 0.6}
    place_map = PlaceMap.build(sets[0][1], tmp_path / "m")
    answer = place_map.localize(sets[0][1].image_paths(sets[0][1].query_rows)[0])
    assert answer.probability is not None
    assert answer.inside is not None
    assert any("one, two" in note for note in answer.notes)
    page = (folder / PAGE).read_text()
    for part in ("two made-up towns", "A note.", "1,607", "0.834", "–", "one, two", "Do not use it"):
        assert part in page
    assert "{" not in page


def test_without_probabilities_the_card_says_so(
    scripts: Any, results: Path, tiny: PlaceModel, tmp_path: Path
) -> None:
    folder = scripts("pack").pack(tiny, tmp_path / "model", None, results, "nothing")
    assert "no shipped calibration" in (folder / PAGE).read_text()


def test_what_cannot_be_shipped_is_refused(
    scripts: Any, results: Path, tiny: PlaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = scripts("pack")
    with pytest.raises(KappaPlaceError, match="no kappa head"):
        pack.pack(PlaceModel.create("resnet_tiny", dim=16, head="none"), tmp_path / "a", None, results, "")
    monkeypatch.setattr(pack, "MOST_BYTES", 1000)
    with pytest.raises(KappaPlaceError, match="at most 1,000"):
        pack.pack(tiny, tmp_path / "b", None, results, "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "first column 'set'"),
        ("set,R@1\n", "one row per dataset"),
        ("name,R@1\nsped,0.5\n", "first column 'set'"),
        ("set,R@1\nsped,good\n", "'good' is not a number"),
        ("set,R@1\nsped\n", "one cell per column"),
        ("set,R@1\nsped,0.5,0.6\n", "one cell per column"),
        ("set,R@1\n,0.5\n", "one cell per column"),
    ],
)
def test_results_of_nonsense_are_one_sentence(text: str, sentence: str, scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(KappaPlaceError, match=sentence):
        scripts("pack").read_results(tmp_path / "r.csv")


def test_tables_and_folders_with_positives_are_read(scripts: Any, tmp_path: Path) -> None:
    read_table = scripts("calibrate").read_table
    folder = town(tmp_path / "town", "val")
    read_table(folder).save(tmp_path / "t.parquet")
    assert len(read_table(tmp_path / "t.parquet")) == len(read_table(folder)) == 80
    (folder / "gt.json").write_text(json.dumps({"positives": [[]] * 40}))
    with pytest.raises(KappaPlaceError, match=r"No query of .* has a positive"):
        read_table(folder)
    (folder / "gt.json").unlink()
    with pytest.raises(KappaPlaceError, match=r"has none of gt\.json"):
        read_table(folder)
    with pytest.raises(KappaPlaceError, match="no folder"):
        read_table(tmp_path / "nowhere")
