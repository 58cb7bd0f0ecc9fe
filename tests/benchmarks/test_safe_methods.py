"""Thresholds for places without labels: no use of the new outcomes, and the risk on the training families."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "real"


@pytest.fixture(scope="module")
def safe() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        import safe_methods
    finally:
        sys.path.remove(str(SCRIPTS))
    return safe_methods


@pytest.fixture(scope="module")
def blocks(safe: ModuleType) -> list:
    """Four families of places, whose agreements have different levels."""
    rng = np.random.default_rng(0)
    out = []
    for name, level in (("st_lucia", 0.4), ("sped", 0.3), ("essex3in1", 0.3), ("berlin_kudamm", 0.15)):
        right = rng.random(300) < 0.5 + level
        top = np.clip(level * np.where(right, 1.0, 0.5) + rng.normal(0, 0.03, 300), 0.01, 1)
        far = np.clip(level * 0.4 + rng.normal(0, 0.03, (300, 5)), 0.001, 1)
        columns = {
            "cosine": 1 - top + rng.normal(0, 0.1, 300),
            "margin": far.max(1) - top + rng.normal(0, 0.05, 300),
            "patches": 1 - top,
            "patch-margin": far.max(1) - top,
            "contrast": np.log(far.max(1) / top),
            "map-contrast": (far.mean(1) - top) / far.std(),
            "mutual": 1 - top + rng.normal(0, 0.02, 300),
        }
        out.append(safe.Block(name, columns, far, right))
    return out


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=20), st.floats(0, 1))
def test_largest_threshold_within_a_risk(safe, pairs, risk):
    values, right = (np.array(part) for part in zip(*pairs, strict=True))
    limit = safe.largest_within(values.astype(float), right, risk)
    rates = {t: np.mean(~right[values <= t]) for t in set(values.tolist())}
    assert limit == max((t for t, rate in rates.items() if rate <= risk), default=-np.inf)


def test_outcomes_of_the_new_place_are_not_used(safe, blocks):
    here, training = blocks[-1], blocks[:-1]
    unlabeled = replace(here, right=~here.right)
    for title, method in safe.METHODS.items():
        pair = [method(each, training, 0.1)(here) for each in (here, unlabeled)]
        assert np.array_equal(*pair) == (title != "oracle"), title


def test_threshold_kept_on_every_family(safe, blocks):
    names = safe.SIGNALS["with contrast"]
    accept = safe.every_family("with contrast")(blocks[0], blocks[1:], 0.05)
    values = safe.uncertainty(blocks[0], blocks[1:], names)
    limit = values[accept(blocks[0])].max()
    for held in blocks[1:]:
        rest = [block for block in blocks[1:] if block is not held]
        accepted = safe.uncertainty(held, rest, names) <= limit
        assert (accepted & ~held.right).sum() <= 0.05 * accepted.sum()


def test_signals_are_selected_among_those_on_offer(safe, blocks):
    offered = [safe.every_family(name)(blocks[0], blocks[1:], 0.1)(blocks[0]) for name in safe.SIGNALS]
    chosen = safe.selected(blocks[0], blocks[1:], 0.1)(blocks[0])
    assert any(np.array_equal(chosen, each) for each in offered)


def test_mixture_of_two_gaussians(safe):
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(0.2, 0.02, 3000), rng.normal(0.6, 0.05, 1000)])
    weights, means, spreads = safe.gaussian_mixture(values)
    assert weights == pytest.approx([0.75, 0.25], abs=0.02)
    assert means == pytest.approx([0.2, 0.6], abs=0.01)
    assert spreads == pytest.approx([0.02, 0.05], abs=0.005)


def test_safe_vpr_abstains_on_few_labels_and_accepts_clear_ones(safe, blocks):
    here = blocks[0]
    few = replace(
        here, right=here.right[:20], columns={name: column[:20] for name, column in here.columns.items()}
    )
    assert not safe.safe_vpr(here, [few], 0.1)(here).any()
    clear = replace(here, right=here.columns["mutual"] <= np.median(here.columns["mutual"]))
    accepted = safe.safe_vpr(here, [clear] * 4, 0.1)(clear)
    assert accepted.mean() > 0.3
    assert clear.right[accepted].mean() >= 0.9
