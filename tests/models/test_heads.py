"""Heads: shapes, positivity, exact folding, starting values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, normalise_channels
from kappaplace.models.heads import (
    FoldedKappaHead,
    LinearKappaHead,
    MirroredKappaHead,
    StunHead,
    build_head,
    inverse_softplus,
)

CHANNELS, DIM = 48, 16


def inputs(seed: int = 0, batch: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(batch, CHANNELS, 4, 6, generator=generator)
    normalised = normalise_channels(features)
    aggregation = Aggregation(CHANNELS, DIM)
    pooled = aggregation.gem(normalised)
    return normalised, pooled, aggregation.project(pooled)


def by_hand(head: MirroredKappaHead, normalised: torch.Tensor) -> np.ndarray:
    """The mirrored head re-derived with NumPy loops over images and channels."""
    p = float(head.aggregation.gem.p.detach())
    first = [
        x.detach().double().numpy() for x in (head.aggregation.project.weight, head.aggregation.project.bias)
    ]
    last = [x.detach().double().numpy() for x in (head.last.weight, head.last.bias)]
    kappa = []
    for image in normalised.double().numpy():
        pooled = [np.mean(np.maximum(channel, 1e-6) ** p) ** (1 / p) for channel in image]
        x = float((last[0] @ (first[0] @ pooled + first[1]) + last[1])[0])
        kappa.append(math.log1p(math.exp(x)) + 1e-6)
    return np.array(kappa)


def test_mirrored_head_matches_its_definition() -> None:
    head = MirroredKappaHead(CHANNELS, DIM)
    normalised, pooled, raw = inputs()
    np.testing.assert_allclose(head(normalised, pooled, raw).detach(), by_hand(head, normalised), rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(p=st.floats(1.0, 8.0), kappa=st.floats(0.01, 2000.0), seed=st.integers(0, 1000), tied=st.booleans())
def test_folded_equals_unfolded(p: float, kappa: float, seed: int, tied: bool) -> None:
    """To 1e-5 relative in float32, for trained exponents and biases too."""
    torch.manual_seed(seed)
    head = MirroredKappaHead(CHANNELS, DIM, tied)
    head.start_at(kappa)
    if not tied:
        head.aggregation.gem.p.data.fill_(p)
    values = inputs(seed)
    torch.testing.assert_close(head.fold()(*values), head(*values), rtol=1e-5, atol=1e-7)


def test_folded_head_of_resnet50_has_2050_parameters() -> None:
    own = sum(p.numel() for p in MirroredKappaHead(2048, 512).fold().parameters())
    tied = sum(p.numel() for p in MirroredKappaHead(2048, 512, tied=True).fold().parameters())
    assert (own, tied) == (2050, 2049)
    assert sum(p.numel() for p in MirroredKappaHead(2048, 512).parameters()) == 1_049_602


@pytest.mark.parametrize("name", ["mirrored", "mirrored-tied", "folded", "folded-tied", "linear"])
def test_kappa_is_positive_even_where_softplus_underflows(name: str) -> None:
    head = build_head(name, CHANNELS, DIM)
    with torch.no_grad():
        head.last.bias.fill_(-500.0)
        kappa = head(*inputs())
    assert kappa.shape == (5,)
    assert (kappa > 0).all()


@pytest.mark.parametrize("kappa", [1e-4, 0.7, 30.0, 1e5])
def test_start_at_sets_kappa_of_a_zero_feature(kappa: float) -> None:
    head = LinearKappaHead(DIM)
    head.start_at(kappa)
    zero = torch.zeros(1, DIM)
    assert float(head(zero, zero, zero).detach()) == pytest.approx(kappa + 1e-6, rel=1e-4)
    assert math.log1p(math.exp(inverse_softplus(0.3))) == pytest.approx(0.3)


def test_copy_aggregation_takes_over_trained_weights() -> None:
    source, head = Aggregation(CHANNELS, DIM), MirroredKappaHead(CHANNELS, DIM)
    source.gem.p.data.fill_(2.2)
    head.copy_aggregation(source)
    normalised = inputs()[0]
    torch.testing.assert_close(head.aggregation(normalised), source(normalised))
    tied = MirroredKappaHead(CHANNELS, DIM, tied=True)
    tied.copy_aggregation(source)
    torch.testing.assert_close(tied.aggregation.weight, source.project.weight)


def test_stun_head_gives_a_sigmoid_per_dimension() -> None:
    spread = StunHead(DIM)(*inputs())
    assert spread.shape == (5, DIM)
    assert ((spread > 0) & (spread < 1)).all()


def test_unknown_head_names_the_known_ones() -> None:
    with pytest.raises(KappaPlaceError, match="mirrored, mirrored-tied, folded"):
        build_head("square", CHANNELS, DIM)  # type: ignore[arg-type]


def test_start_at_refuses_zero() -> None:
    with pytest.raises(KappaPlaceError, match="above zero"):
        FoldedKappaHead(CHANNELS).start_at(0.0)
