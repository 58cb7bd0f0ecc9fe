"""GeM against a NumPy loop, and its limits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.models.aggregation import gem, normalize_channels


@settings(deadline=None, max_examples=25)
@given(p=st.floats(1.0, 10.0), seed=st.integers(0, 99))
def test_gem_is_the_power_mean(p: float, seed: int) -> None:
    features = np.random.default_rng(seed).random((2, 3, 4, 5))
    expected = np.array([[np.mean(channel**p) ** (1 / p) for channel in image] for image in features])
    np.testing.assert_allclose(gem(torch.from_numpy(features), p), expected, rtol=1e-9)


def test_gem_lies_between_mean_and_maximum_and_grows_with_p() -> None:
    features = torch.rand(2, 3, 8, 8)
    values = [gem(features, p) for p in (1.0, 3.0, 9.0, 40.0)]
    torch.testing.assert_close(values[0], features.mean((-2, -1)))
    for lower, upper in pairwise(values):
        assert (lower <= upper + 1e-6).all()
    assert (values[-1] <= features.amax((-2, -1))).all()


def test_gem_stays_in_float32_under_autocast() -> None:
    features = torch.full((1, 2, 3, 3), 1e-4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = gem(features, 3.0)
    assert pooled.dtype == torch.float32
    assert pooled.flatten().tolist() == pytest.approx([1e-4, 1e-4], rel=1e-2)


def test_channels_have_unit_length() -> None:
    normalized = normalize_channels(torch.randn(2, 7, 3, 4))
    torch.testing.assert_close(normalized.norm(dim=1), torch.ones(2, 3, 4))
