"""The exact Bessel forms against mpmath, at 40 digits, over the whole supported range."""

from functools import cache

import mpmath
import pytest
import scipy.special
import torch

from kappaplace import vmf
from kappaplace.errors import KappaPlaceError

DIMS = [2, 3, 5, 8, 64, 129, 130, 256, 512, 2048, 8192]
KAPPAS = [1e-6, 1e-3, 0.1, 1.0, 7.3, 50.0, 300.0, 1e3, 1e4, 1e5, 1e6]
# mpmath's series needs a quarter of a minute at this one point; scipy has it to 1e-12.
SLOW = (8192, 1e5)
GRID = [(dim, kappa) for dim in DIMS for kappa in KAPPAS if (dim, kappa) != SLOW]


@cache
def reference(dim: int, kappa: float) -> tuple[float, float, float]:
    """A_d(κ), its slope and log(Γ(d/2)(2/κ)^v I_v(κ)), straight from their definitions."""
    with mpmath.workdps(40):
        order, x = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        low, high = mpmath.besseli(order, x), mpmath.besseli(order + 1, x)
        ratio = high / low
        slope = 1 - ratio**2 - (dim - 1) * ratio / x
        partition = mpmath.loggamma(order + 1) + order * mpmath.log(2 / x) + mpmath.log(low)
        return float(ratio), float(slope), float(partition)


@pytest.mark.parametrize(("dim", "kappa"), GRID)
def test_float64_against_mpmath(dim: int, kappa: float) -> None:
    ratio, slope, partition = reference(dim, kappa)
    leaf = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    value = vmf.exact_log_partition(leaf, dim)
    (first,) = torch.autograd.grad(value, leaf, create_graph=True)
    (second,) = torch.autograd.grad(first, leaf)
    assert value.item() == pytest.approx(partition, rel=1e-13, abs=0)
    assert vmf.exact_bessel_ratio(kappa, dim).item() == pytest.approx(ratio, rel=1e-13, abs=0)
    assert first.item() == pytest.approx(ratio, rel=1e-13, abs=0)
    assert second.item() == pytest.approx(slope, rel=1e-11, abs=0)


@pytest.mark.parametrize(("dim", "kappa"), GRID)
def test_float32_against_mpmath(dim: int, kappa: float) -> None:
    single = torch.tensor(kappa, dtype=torch.float32)
    ratio, slope, partition = reference(dim, kappa)
    # float32 cannot hold every κ of the grid: carry the reference over to the number it does hold.
    shift = single.item() - kappa
    wanted_ratio, wanted_partition = ratio + slope * shift, partition + ratio * shift
    assert vmf.exact_bessel_ratio(single, dim).item() == pytest.approx(wanted_ratio, rel=2e-7, abs=0)
    assert vmf.exact_log_partition(single, dim).item() == pytest.approx(wanted_partition, rel=2e-7, abs=0)


@pytest.mark.parametrize("dim", [8191, 8192])
def test_ratio_against_scipy_where_mpmath_is_slow(dim: int) -> None:
    order = dim / 2 - 1
    expected = scipy.special.ive(order + 1, 1e5) / scipy.special.ive(order, 1e5)
    assert vmf.exact_bessel_ratio(1e5, dim).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kappa", [1e-6, 0.3, 12.0, 700.0])
def test_three_dimensions_have_a_closed_form(kappa: float) -> None:
    with mpmath.workdps(40):
        x = mpmath.mpf(kappa)
        ratio, partition = mpmath.coth(x) - 1 / x, mpmath.log(mpmath.sinh(x) / x)
    assert vmf.exact_bessel_ratio(kappa, 3).item() == pytest.approx(float(ratio), rel=1e-13)
    assert vmf.exact_log_partition(kappa, 3).item() == pytest.approx(float(partition), rel=1e-13)


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 0.01), (2, 30.0), (8, 5.0), (64, 1e4), (512, 200.0), (8192, 50.0)]
)
def test_best_kappa_solves_for_the_ratio(dim: int, kappa: float) -> None:
    ratio = torch.tensor(reference(dim, kappa)[0], dtype=torch.float64)
    assert vmf.best_kappa(ratio, dim, exact=True).item() == pytest.approx(kappa, rel=1e-10)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3e5), (64, 1e6), (512, 4e5)])
def test_best_kappa_and_its_slope_where_the_ratio_is_nearly_one(dim: int, kappa: float) -> None:
    ratio, slope, _ = reference(dim, kappa)
    cosine = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    best = vmf.best_kappa(cosine, dim, exact=True, max_kappa=1e9)
    (gradient,) = torch.autograd.grad(best, cosine)
    # A rounding of the cosine moves κ by its share of 1 − c ≈ (d − 1)/2κ.
    assert best.item() == pytest.approx(kappa, rel=1e-14 * kappa)
    assert gradient.item() == pytest.approx(1 / slope, rel=1e-3)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (64, 20.0), (512, 300.0), (8192, 1e4)])
def test_log_normalizer_is_the_textbook_constant(dim: int, kappa: float) -> None:
    with mpmath.workdps(40):
        order, x = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        area = mpmath.mpf(dim) / 2 * mpmath.log(2 * mpmath.pi)
        expected = float(order * mpmath.log(x) - area - mpmath.log(mpmath.besseli(order, x)))
    assert vmf.log_normalizer(kappa, dim, exact=True).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kappa", [float("nan"), float("inf"), -1.0])
def test_sampling_refuses_what_would_never_end(kappa: float) -> None:
    with pytest.raises(KappaPlaceError, match="kappa must be between 0"):
        vmf.sample(torch.eye(3)[0], kappa, 2)


def test_fusing_along_the_components_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="axis must not be the last axis"):
        vmf.fuse(torch.eye(3), torch.ones(3), axis=-1)
