"""Losses and anchors against loops and other implementations: classification, multi-similarity, triplets."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from kappaplace.training.losses import (
    Pairs,
    all_pairs,
    batch_centroids,
    bayesian_triplet_loss,
    class_anchors,
    gaussian_nll,
    large_margin_cosine_loss,
    multi_similarity_loss,
    multi_similarity_pairs,
    prior_divergence,
    stun_loss,
    triplet_moments,
    vmf_loss,
)


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def test_large_margin_cosine_loss_by_hand() -> None:
    z, w, labels = unit(5, 7), torch.randn(4, 7, dtype=torch.float64) * 3, torch.tensor([0, 3, 1, 1, 2])
    total = 0.0
    for image, label in zip(z.numpy(), labels.tolist(), strict=True):
        cosines = [float(image @ row / np.linalg.norm(row)) for row in w.numpy()]
        logits = [30.0 * (c - (0.4 if j == label else 0.0)) for j, c in enumerate(cosines)]
        total += math.log(sum(math.exp(x) for x in logits)) - logits[label]
    assert float(large_margin_cosine_loss(z, w, labels)) == pytest.approx(total / 5, rel=1e-9)


def test_vmf_loss_by_hand_and_the_releases_dimension() -> None:
    z, mu = unit(6, 512), unit(6, 512)
    kappa = torch.tensor([0.1, 1, 10, 100, 500, 2000], dtype=torch.float64)
    for dim, option in ((512, None), (256, 256)):
        v = mpmath.mpf(dim - 1) / 2
        losses = []
        for i in range(6):
            k, c = mpmath.mpf(float(kappa[i])), float(z[i] @ mu[i])
            root = mpmath.sqrt(k * k + v * v)
            at_zero = v - v * mpmath.log(2 * v)
            losses.append(root - v * mpmath.log(v + root) - at_zero - k * c)
        expected = float(sum(losses) / 6)
        assert float(vmf_loss(z, mu, kappa, option)) == pytest.approx(expected, rel=1e-9)


def test_class_anchors_are_normalized_prototypes() -> None:
    w = torch.randn(3, 4) * 5
    anchors = class_anchors(w, torch.tensor([2, 0]))
    np.testing.assert_allclose(anchors[0], w[2] / w[2].norm(), rtol=1e-6)
    np.testing.assert_allclose(anchors[1].norm(), 1.0, rtol=1e-6)


def test_batch_centroid_leaves_the_image_itself_out() -> None:
    z, places = unit(5, 4), torch.tensor([7, 7, 7, 2, 9])
    anchors, mask = batch_centroids(z, places)
    assert mask.tolist() == [True, True, True, False, False]
    for i in range(3):
        total = sum(z[j].numpy() for j in range(3) if j != i)
        np.testing.assert_allclose(anchors[i], total / np.linalg.norm(total), rtol=1e-9)
    assert not anchors[3:].any()


def test_gaussian_nll_by_hand_and_against_torch() -> None:
    z, mu = unit(5, 7), unit(5, 7)
    for variance in (torch.rand(5, dtype=torch.float64) + 0.1, torch.rand(5, 7, dtype=torch.float64) + 0.1):
        total = 0.0
        for i in range(5):
            for j in range(7):
                v = float(variance[i] if variance.ndim == 1 else variance[i, j])
                # The density of a Gaussian of variance v at √7·z, without its constant.
                gap = math.sqrt(7) * float(z[i, j]) - math.sqrt(7) * float(mu[i, j])
                total += -math.log(math.exp(-(gap**2) / (2 * v)) / math.sqrt(v))
        assert float(gaussian_nll(z, mu, variance)) == pytest.approx(total / 35, rel=1e-9)
        wide = variance.view(5, -1).expand(5, 7)
        theirs = torch.nn.functional.gaussian_nll_loss(math.sqrt(7) * z, math.sqrt(7) * mu, wide)
        torch.testing.assert_close(gaussian_nll(z, mu, variance), theirs)


def test_the_best_variance_of_the_gaussian_is_the_scaled_mean_square() -> None:
    z, mu = unit(3, 16), unit(3, 16)
    best = (16 * (z - mu).square()).mean(1).requires_grad_()
    gaussian_nll(z, mu, best).backward()
    np.testing.assert_allclose(best.grad, 0, atol=1e-12)


@pytest.mark.parametrize("squared", [False, True])
def test_stun_loss_by_hand(squared: bool) -> None:
    student, teacher, s = unit(4, 6), unit(4, 6), torch.rand(4, 6, dtype=torch.float64)
    total = 0.0
    for i in range(4):
        gap = np.linalg.norm(teacher[i].numpy() - student[i].numpy()) ** (2 if squared else 1)
        for x in s[i].tolist():
            total += gap / math.exp(x) + math.log(math.exp(x))
    assert float(stun_loss(student, teacher, s, squared)) == pytest.approx(total / 24, rel=1e-9)


@pytest.mark.parametrize("squared", [False, True])
def test_stun_starts_where_student_and_teacher_agree(squared: bool) -> None:
    teacher, s = unit(4, 6), torch.full((4, 6), 0.5, dtype=torch.float64)
    student = teacher.clone().requires_grad_()
    stun_loss(student, teacher, s, squared).backward()
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()


def batch(places: list[int], dim: int = 6, seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Unit descriptors; the smaller `spread`, the closer are those of a place."""
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(max(places) + 1, dim, generator=g, dtype=torch.float64)
    z = centers[places] + spread * torch.randn(len(places), dim, generator=g, dtype=torch.float64)
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


def gaussians(count: int, dim: int, seed: int = 0, scale: float = 0.2) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(count, dim, generator=g, dtype=torch.float64), dim=1)
    return z, scale * torch.rand(count, generator=g, dtype=torch.float64) + 0.01


def moments_by_hand(z: np.ndarray, v: np.ndarray, a: int, p: int, n: int) -> tuple[float, float]:
    """Dimension by dimension, with A = p − a and B = n − a, whose covariance is that of a."""
    mean = variance = 0.0
    for i in range(z.shape[1]):
        ma, mb = z[p, i] - z[a, i], z[n, i] - z[a, i]
        sa, sb, c = v[p] + v[a], v[n] + v[a], v[a]
        mean += ma**2 + sa - mb**2 - sb
        variance += 2 * (sa**2 + sb**2 - 2 * c**2) + 4 * (ma**2 * sa + mb**2 * sb - 2 * ma * mb * c)
    return mean, variance


def rows(*numbers: int) -> tuple[Tensor, Tensor, Tensor]:
    a, p, n = (torch.tensor([x]) for x in numbers)
    return a, p, n


@pytest.mark.parametrize("dim", [1, 3, 64])
def test_moments_against_a_loop(dim: int) -> None:
    z, v = gaussians(4, dim)
    for triplet in itertools.permutations(range(4), 3):
        mean, variance = triplet_moments(z, v, rows(*triplet))
        expected = moments_by_hand(z.numpy(), v.numpy(), *triplet)
        assert (float(mean), float(variance)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("dim", "scale"), [(2, 1.0), (16, 0.1), (64, 0.01)])
def test_moments_against_sampling(dim: int, scale: float) -> None:
    z, v = gaussians(3, dim, seed=dim, scale=scale)
    rng = np.random.default_rng(0)
    a, p, n = (
        m + np.sqrt(s) * rng.normal(size=(100_000, dim)) for m, s in zip(z.numpy(), v.numpy(), strict=True)
    )
    tau = ((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1)
    mean, variance = (float(x) for x in triplet_moments(z, v, rows(0, 1, 2)))
    assert mean == pytest.approx(tau.mean(), abs=5 * math.sqrt(variance / len(tau)))
    assert variance == pytest.approx(tau.var(), rel=0.04)


def test_divergence_from_the_prior_against_torch() -> None:
    z, v = gaussians(5, 8)
    ours = torch.distributions.Independent(torch.distributions.Normal(z, v.sqrt()[:, None].expand(5, 8)), 1)
    prior = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros_like(z), torch.full_like(z, 8**-0.5)), 1
    )
    torch.testing.assert_close(prior_divergence(z, v), torch.distributions.kl_divergence(ours, prior))


@pytest.mark.parametrize(("margin", "weight"), [(0.0, 1e-6), (0.1, 0.5)])
def test_loss_against_a_loop(margin: float, weight: float) -> None:
    z, v = gaussians(7, 5, scale=0.05)
    places = [3, 3, 0, 0, 0, 1, 2]
    terms = []
    for a, p, n in itertools.permutations(range(7), 3):
        if places[a] == places[p] != places[n]:
            mean, variance = moments_by_hand(z.numpy(), v.numpy(), a, p, n)
            terms.append(-stats.norm.logcdf((-margin - mean) / math.sqrt(variance)))
    assert len(terms) == 2 * 5 + 6 * 4
    divergence = [
        0.5 * (5 * 5 * s + 5 * float(m @ m) - 5 - 5 * math.log(5 * s))
        for m, s in zip(z, v.tolist(), strict=True)
    ]
    expected = float(np.mean(terms) + weight * np.mean(divergence))
    ours = bayesian_triplet_loss(z, v, torch.tensor(places), margin, weight)
    assert float(ours) == pytest.approx(expected, rel=1e-9)


def test_gradient_by_differences() -> None:
    z, v = gaussians(5, 4)
    places = torch.tensor([0, 0, 1, 1, 1])
    assert torch.autograd.gradcheck(
        lambda x, y: bayesian_triplet_loss(x, y, places, 0.1, 1e-2), (z.requires_grad_(), v.requires_grad_())
    )


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1.0, 100.0])
def test_gradient_is_finite_in_extremes(size: float) -> None:
    z = gaussians(6, 512)[0].float()
    z[1] = z[0]  # equal means of a positive pair, and of a negative pair
    z[3] = z[0]
    z.requires_grad_()
    v = torch.full((6,), size, requires_grad=True)
    loss = bayesian_triplet_loss(z, v, torch.tensor([0, 0, 0, 1, 1, 1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert z.grad is not None
    assert v.grad is not None
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(v.grad).all()


@pytest.mark.parametrize("places", [[0, 0, 0], [0, 1, 2]])
def test_no_triplet_is_a_zero_that_backpropagates(places: list[int]) -> None:
    z, v = (x.requires_grad_() for x in gaussians(3, 4))
    loss = bayesian_triplet_loss(z, v, torch.tensor(places))
    loss.backward()
    assert float(loss.detach()) == 0
    for x in (z, v):
        assert x.grad is not None
        assert not x.grad.any()
