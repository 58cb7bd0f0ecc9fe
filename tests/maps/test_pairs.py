"""Comparing pairs of images: one embedding per image, notes instead of guesses, lists in and out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kappaplace
from kappaplace.calibration import save_pairs
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import (
    PairOptions,
    PlaceMap,
    calibrate_pairs,
    compare_pairs,
    pair_probability,
    pairs,
    read_pairs,
    save_answers,
)
from kappaplace.models import load_model
from kappaplace_city import SyntheticCity


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two views of each of four places."""
    folder, city = tmp_path_factory.mktemp("street"), SyntheticCity(1, (1, 1), aliased=0.0, featureless=0.0)
    poses = city.views("val", spacing=30.0, queries=0, seed=0).poses[[0, 5, 10, 15]]
    poses = np.repeat(poses, 2, axis=0)
    poses[1::2, 2] += 4.0
    files = []
    for number, image in enumerate(city.render(poses, size=160)):
        files.append(str(folder / f"{number}.png"))
        Image.fromarray(image).save(files[-1])
    return files


@pytest.fixture(scope="module")
def shipped():
    return load_model()


def test_two_views_of_a_place_are_more_probable_than_two_places(street: list[str], shipped) -> None:
    same = [(street[row], street[row + 1]) for row in range(0, 8, 2)]
    other = [(street[row], street[(row + 3) % 8]) for row in range(0, 8, 2)]
    answers = compare_pairs([*same, *other], shipped)
    probabilities = [answer.probability for answer in answers]
    assert min(probabilities[:4]) > max(probabilities[4:])
    assert answers[0].sentence.endswith(f"with probability {probabilities[0]:.2f}.")
    assert pair_probability(*same[0], shipped) == pytest.approx(probabilities[0], abs=1e-6)
    assert kappaplace.pair_probability is pair_probability
    swapped = compare_pairs([(b, a) for a, b in same], shipped)
    assert [answer.probability for answer in swapped] == pytest.approx(probabilities[:4], abs=1e-5)


def test_fewer_same_places_are_less_probable(street: list[str], shipped) -> None:
    rare = pair_probability(street[0], street[1], shipped, PairOptions(same_rate=0.01))
    assert rare < pair_probability(street[0], street[1], shipped)


def test_evidence_is_returned_on_request(street: list[str], shipped) -> None:
    (answer,) = compare_pairs([(street[0], street[1])], shipped, PairOptions(evidence=True))
    assert answer.evidence is not None
    assert answer.evidence.weights.sum() == pytest.approx(answer.patches, abs=1e-6)
    assert compare_pairs([(street[0], street[1])], shipped)[0].evidence is None


def test_every_image_is_embedded_once(street: list[str], shipped, monkeypatch) -> None:
    seen: list[str] = []
    embed = type(shipped).embed

    def counting(self, images, **options):
        seen.extend(map(str, images))
        return embed(self, images, **options)

    monkeypatch.setattr(type(shipped), "embed", counting)
    monkeypatch.setattr(pairs, "BLOCK", 2)
    listed = [(street[0], street[row]) for row in range(1, 6)]
    answers = compare_pairs(listed, shipped, PairOptions(batch_size=2))
    assert sorted(seen) == sorted(street[:6])
    assert [answer.b for answer in answers] == street[1:6]


def test_old_images_are_forgotten_and_embedded_again(street: list[str], shipped, monkeypatch) -> None:
    whole = compare_pairs([(street[0], street[1]), (street[2], street[3])] * 2, shipped)
    monkeypatch.setattr(pairs, "BLOCK", 1)
    monkeypatch.setattr(pairs, "CACHED_MAPS", 2)
    again = compare_pairs([(street[0], street[1]), (street[2], street[3])] * 2, shipped)
    assert [one.probability for one in again] == pytest.approx([one.probability for one in whole], abs=1e-5)


def test_an_unreadable_image_gets_a_note_and_the_others_an_answer(
    street: list[str], shipped, tmp_path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    first, second = compare_pairs([(street[0], str(broken)), (street[0], street[1])], shipped)
    assert first.probability is None
    assert "broken.jpg" in first.note
    assert math.isnan(first.similarity)
    assert first.to_dict()["probability"] is None
    assert second.probability is not None
    with pytest.raises(KappaPlaceError, match=r"broken\.jpg"):
        pair_probability(street[0], broken, shipped)


def test_a_blank_image_has_no_probability(street: list[str], shipped) -> None:
    blank = np.full((160, 160, 3), 128, np.uint8)
    assert math.isnan(pair_probability(blank, blank, shipped))
    (answer,) = compare_pairs([(street[0], blank)], shipped)
    assert "unlike the images of the calibration" in answer.note
    assert answer.b == "image 1b"


def test_a_model_without_calibration_says_how_to_get_one(street: list[str], tiny, tmp_path) -> None:
    with pytest.raises(KappaPlaceError, match="--fit"):
        pair_probability(street[0], street[1], tiny)
    same = [(street[row], street[row + 1]) for row in range(0, 8, 2)] * 15
    other = [(street[row], street[(row + 3) % 8]) for row in range(0, 8, 2)] * 15
    calibration = calibrate_pairs([*same, *other], [True] * 60 + [False] * 60, tiny)
    save_pairs(calibration, tmp_path / "pairs.json")
    options = PairOptions(calibration=tmp_path / "pairs.json")
    answers = compare_pairs([same[0], other[0]], tiny, options)
    assert answers[0].probability > answers[1].probability


def test_a_map_changes_the_probability(street: list[str], shipped, tmp_path) -> None:
    place_map = PlaceMap.build(street[1::2], tmp_path / "town.map", shipped)
    plain, informed = (
        compare_pairs([(street[0], street[1])], shipped, place_map=opened)[0] for opened in (None, place_map)
    )
    assert "patch-margin" in informed.signals
    assert "patch-margin" not in plain.signals
    assert informed.similarity == pytest.approx(plain.similarity, abs=1e-5)


def test_lists_are_read_and_written(tmp_path: Path) -> None:
    text = tmp_path / "pairs.txt"
    text.write_text("# for COLMAP\na.jpg b.jpg\n\nc.jpg  d.jpg\n")
    assert read_pairs(text) == ([("a.jpg", "b.jpg"), ("c.jpg", "d.jpg")], [])
    text.write_text("a.jpg b.jpg 0.5\n")
    with pytest.raises(KappaPlaceError, match="line 1: expected two image names"):
        read_pairs(text)
    table = tmp_path / "pairs.csv"
    table.write_text("first,second,same\na b.jpg,c.jpg,1\nd.jpg,e.jpg,false\n")
    assert read_pairs(table) == ([("a b.jpg", "c.jpg"), ("d.jpg", "e.jpg")], [True, False])
    table.write_text("first,second,same\na.jpg,c.jpg,maybe\n")
    with pytest.raises(KappaPlaceError, match='line 2: same must be 1 or 0, got "maybe"'):
        read_pairs(table)
    for content in ("", "one\na.jpg\n"):
        table.write_text(content)
        with pytest.raises(KappaPlaceError, match="two columns"):
            read_pairs(table)
    with pytest.raises(KappaPlaceError, match="is not a list of pairs"):
        read_pairs(tmp_path / "none.csv")


def test_answers_are_written_for_spreadsheets_and_for_colmap(
    street: list[str], shipped, tmp_path: Path
) -> None:
    answers = compare_pairs([(street[0], street[1])], shipped)
    save_answers(answers, tmp_path / "out.csv")
    head, row = (tmp_path / "out.csv").read_text().splitlines()
    assert head == "a,b,probability,similarity,patches,kappa_a,kappa_b,note"
    assert float(row.split(",")[2]) == pytest.approx(answers[0].probability, abs=1e-6)
    save_answers(answers, tmp_path / "out.txt")
    assert read_pairs(tmp_path / "out.txt") == ([(street[0], street[1])], [])
    spaced = [type(answers[0])(**{**vars(answers[0]), "a": "a b.jpg"})]
    with pytest.raises(KappaPlaceError, match="spaces"):
        save_answers(spaced, tmp_path / "out.txt")
