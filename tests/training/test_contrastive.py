"""Multi-similarity loss and miner against NumPy loops and against pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.training.losses import Pairs, all_pairs, multi_similarity_loss, multi_similarity_pairs


def batch(places: list[int], dim: int = 6, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Unit descriptors; the smaller `spread`, the closer are those of a place."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(places) + 1, dim, generator=g, dtype=torch.float64)
    z = centres[places] + spread * torch.randn(len(places), dim, generator=g, dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1), torch.tensor(places)


BATCHES = {
    "balanced": batch([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
    "tight": batch([0, 0, 0, 1, 1, 1, 2, 2, 2], spread=0.2),
    "uneven": batch([4, 0, 0, 1, 2, 2, 2, 2, 3], seed=1),
    "larger": batch([i % 12 for i in range(48)], dim=32, seed=2, spread=0.8),
}
DEGENERATE = {
    "no positives": batch([0, 1, 2, 3]),
    "one place": batch([0, 0, 0]),
    "one image": batch([0]),
}


def mine_by_hand(z: np.ndarray, places: list[int], epsilon: float) -> tuple[set, set]:
    positive, negative = set(), set()
    for a in range(len(z)):
        same = [j for j in range(len(z)) if j != a and places[j] == places[a]]
        other = [j for j in range(len(z)) if places[j] != places[a]]
        if same and other:
            hardest_negative = max(z[a] @ z[j] for j in other)
            hardest_positive = min(z[a] @ z[j] for j in same)
            positive |= {(a, j) for j in same if z[a] @ z[j] < hardest_negative + epsilon}
            negative |= {(a, j) for j in other if z[a] @ z[j] > hardest_positive - epsilon}
    return positive, negative


def loss_by_hand(
    z: np.ndarray, positive: set, negative: set, alpha: float, beta: float, base: float
) -> float:
    total = 0.0
    for a in range(len(z)):
        pull = sum(math.exp(-alpha * (z[a] @ z[j] - base)) for i, j in positive if i == a)
        push = sum(math.exp(beta * (z[a] @ z[j] - base)) for i, j in negative if i == a)
        total += math.log(1 + pull) / alpha + math.log(1 + push) / beta
    return total / len(z)


def as_set(mask: Tensor) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in torch.nonzero(mask)}


@pytest.mark.parametrize("name", [*BATCHES, *DEGENERATE])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_miner_and_loss_by_hand(name: str, epsilon: float) -> None:
    z, places = (BATCHES | DEGENERATE)[name]
    pairs = multi_similarity_pairs(z, places, epsilon)
    positive, negative = mine_by_hand(z.numpy(), places.tolist(), epsilon)
    assert as_set(pairs.positive) == positive
    assert as_set(pairs.negative) == negative
    for selection, settings in ((pairs, (2.0, 50.0, 0.5)), (None, (1.0, 30.0, 0.3))):
        used = all_pairs(places) if selection is None else selection
        expected = loss_by_hand(z.numpy(), as_set(used.positive), as_set(used.negative), *settings)
        ours = multi_similarity_loss(z, places, selection, *settings)
        assert float(ours) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [*BATCHES, *DEGENERATE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_pytorch_metric_learning(name: str, dtype: torch.dtype) -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    z, places = (BATCHES | DEGENERATE)[name]
    ours, theirs = (z.to(dtype).clone().requires_grad_() for _ in range(2))
    pairs, mined = multi_similarity_pairs(ours, places), miners.MultiSimilarityMiner()(theirs, places)
    assert as_set(pairs.positive) == set(zip(mined[0].tolist(), mined[1].tolist(), strict=True))
    assert as_set(pairs.negative) == set(zip(mined[2].tolist(), mined[3].tolist(), strict=True))
    reference = losses.MultiSimilarityLoss()
    for mine, their_pairs in ((None, None), (pairs, mined)):
        loss = multi_similarity_loss(ours, places, mine)
        expected = reference(theirs, places, their_pairs)
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
        # They normalise once more, so only the part of the gradient along the sphere is comparable.
        (gradient,), (their_gradient,) = (
            torch.autograd.grad(loss, ours),
            torch.autograd.grad(expected, theirs),
        )
        along = gradient - (gradient * ours).sum(1, keepdim=True) * ours
        torch.testing.assert_close(along, their_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["no positives", "one place", "one image"])
def test_mined_pairs_of_a_degenerate_batch_give_a_zero_that_backpropagates(name: str) -> None:
    z, places = DEGENERATE[name]
    z = z.clone().requires_grad_()
    pairs = multi_similarity_pairs(z, places)
    assert not pairs.positive.any()
    assert not pairs.negative.any()
    loss = multi_similarity_loss(z, places, pairs)
    loss.backward()
    assert float(loss.detach()) == 0
    assert z.grad is not None
    assert not z.grad.any()


def test_gradient_by_differences_and_in_extremes() -> None:
    z, places = BATCHES["uneven"]
    pairs = multi_similarity_pairs(z, places)
    assert torch.autograd.gradcheck(
        lambda x: multi_similarity_loss(x, places, pairs), z.clone().requires_grad_()
    )
    # All descriptors alike in half precision's range: exp(50·0.5) must not overflow on the way.
    same = torch.ones(6, 4, dtype=torch.float32).div(2).requires_grad_()
    loss = multi_similarity_loss(same, torch.tensor([0, 0, 1, 1, 2, 2]), beta=500.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert same.grad is not None
    assert torch.isfinite(same.grad).all()


def test_pairs_may_be_chosen_by_the_caller() -> None:
    z, places = BATCHES["balanced"]
    none = torch.zeros(16, 16, dtype=torch.bool)
    assert float(multi_similarity_loss(z, places, Pairs(none, none))) == 0


@pytest.mark.parametrize(
    ("descriptors", "places"),
    [
        (torch.ones(3), torch.arange(3)),
        (torch.ones(3, 2), torch.arange(2)),
        (torch.ones(0, 2), torch.arange(0)),
    ],
)
def test_bad_input_is_rejected(descriptors: Tensor, places: Tensor) -> None:
    with pytest.raises(KappaPlaceError, match="descriptors B×d"):
        multi_similarity_loss(descriptors, places)
    with pytest.raises(KappaPlaceError, match="descriptors B×d"):
        multi_similarity_pairs(descriptors, places)
