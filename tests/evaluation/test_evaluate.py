"""`kappaplace.evaluate` takes models, encoders of any kind and descriptors, with the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kappaplace
from kappaplace import Embeddings, FrozenEncoder, PlaceImages, Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import Choices, EvaluationResult
from kappaplace.models import plain_encoder

CHOICES = Choices(scores="l2,pa,inverse-kappa", k=5, resamples=0)


class Encoder(nn.Module):
    """Someone else's encoder: mean colors of a grid, which is no network of this package."""

    preprocessing = Preprocessing(32, "exact")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[2:] == (32, 32)
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


def numbers(result: EvaluationResult) -> dict[str, float]:
    [metrics] = [result.metrics[each.name] for each in result.sets]
    return metrics["scores"]["l2"] | metrics["recall"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))


def test_encoders_and_descriptors_give_the_same_result(table: PlaceImages) -> None:
    model = plain_encoder(Encoder())
    every = model.embed(table.image_paths()).descriptor
    query, reference = every[table.query_rows], every[table.reference_rows]
    expected = numbers(kappaplace.evaluate(Encoder(), table, CHOICES))
    cosines = query @ reference.T
    positives = table.positives()
    hits = [int(row.argmax()) in positives.of(i) for i, row in enumerate(cosines)]
    assert expected["R@1"] == pytest.approx(np.mean(hits))
    scaled = 3.0 * every.astype(np.float64)  # other lengths and types are normalized
    for source in (
        model,
        every,
        scaled,
        Embeddings(every),
        (query, reference),
        (Embeddings(query), reference),
    ):
        assert numbers(kappaplace.evaluate(source, table, CHOICES)) == pytest.approx(expected, abs=1e-6)


def test_an_encoder_without_a_trained_head_has_no_kappa(table: PlaceImages) -> None:
    result = kappaplace.evaluate(Encoder(), table, CHOICES)
    assert "κ of the queries" in result.sets[0].left_out["inverse-kappa"]
    frozen = FrozenEncoder(Encoder(), preprocessing=Encoder.preprocessing)
    assert plain_encoder(frozen).embed(table.image_paths()[:2]).kappa is None
    assert not plain_encoder(frozen).has_kappa
    with_kappa = Embeddings(np.eye(len(table), dtype=np.float32), np.full(len(table), 7.0, np.float32))
    assert "inverse-kappa" not in kappaplace.evaluate(with_kappa, table, CHOICES).sets[0].left_out


def test_descriptors_of_another_table_are_refused(table: PlaceImages) -> None:
    with pytest.raises(KappaPlaceError, match=rf"5 descriptors for a table of {len(table)} images"):
        kappaplace.evaluate(np.eye(5), table, CHOICES)
    with pytest.raises(KappaPlaceError, match="got 3 arrays"):
        kappaplace.evaluate((np.eye(5), np.eye(5), np.eye(5)), table, CHOICES)  # type: ignore[arg-type]
