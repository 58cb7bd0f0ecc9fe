"""Bayesian triplet loss against sampling and against loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.training.losses import bayesian_triplet_loss, prior_divergence, triplet_moments


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


def test_bad_input_is_rejected() -> None:
    z, v = gaussians(3, 4)
    with pytest.raises(KappaPlaceError, match="descriptors B×d"):
        bayesian_triplet_loss(z, v[:, None], torch.arange(3))
