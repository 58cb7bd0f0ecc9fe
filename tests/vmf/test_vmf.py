"""The von Mises-Fisher functions: invariants, gradients, precision in float32, fusion and sampling."""

import doctest
import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kappaplace import vmf
from kappaplace.errors import KappaPlaceError

DIMS = [2, 3, 8, 64, 256, 512, 2048, 8192]
PARTITIONS = [vmf.log_partition, vmf.exact_log_partition]
RATIOS = [vmf.bessel_ratio, vmf.exact_bessel_ratio]
BOTH = pytest.mark.parametrize("exact", [False, True], ids=["amos", "exact"])

dims = st.integers(2, 8192)
kappas = st.floats(-6, 6).map(lambda power: 10.0**power)
cosines = st.floats(-1, 1)
few = settings(max_examples=40, deadline=None)


def grid(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.logspace(-6, 6, 121, dtype=torch.float64).to(dtype)


def unit(dim: int, seed: int = 0) -> Tensor:
    vector = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return vector / vector.norm()


def amos_reference(kappa: float, dim: int) -> tuple[float, float]:
    """Ratio and log-partition of the Amos form as the paper writes them, in NumPy's long double."""
    half, k = np.longdouble(dim - 1) / 2, np.longdouble(kappa)
    s = np.sqrt(k * k + half * half)
    return k / (half + s), (s - half * np.log(half + s)) - (half - half * np.log(2 * half))


@pytest.mark.parametrize("name", ["bessel", "distribution"])
def test_doctests(name: str) -> None:
    module = importlib.import_module(f"kappaplace.vmf.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("dim", DIMS)
def test_amos_form_is_the_papers_formula(dim: int) -> None:
    for kappa in [0.5, 3.0, 40.0, 900.0, 1e4, 1e6]:
        ratio, partition = amos_reference(kappa, dim)
        assert vmf.bessel_ratio(kappa, dim).item() == pytest.approx(float(ratio), rel=1e-13)
        # The reference subtracts numbers of the size of d·log d, hence the absolute tolerance.
        assert vmf.log_partition(kappa, dim).item() == pytest.approx(
            float(partition), rel=1e-12, abs=1e-12 * dim
        )


@pytest.mark.parametrize("dim", DIMS)
def test_small_kappa_limit(dim: int) -> None:
    kappa = 1e-6
    assert vmf.log_partition(kappa, dim).item() == pytest.approx(kappa**2 / (2 * (dim - 1)), rel=1e-10)
    assert vmf.exact_log_partition(kappa, dim).item() == pytest.approx(kappa**2 / (2 * dim), rel=1e-10)
    assert vmf.bessel_ratio(kappa, dim).item() == pytest.approx(kappa / (dim - 1), rel=1e-10)
    assert vmf.exact_bessel_ratio(kappa, dim).item() == pytest.approx(kappa / dim, rel=1e-10)


@pytest.mark.parametrize("function", PARTITIONS + RATIOS)
@pytest.mark.parametrize("dim", [2, 512])
def test_zero_kappa(function, dim: int) -> None:
    kappa = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    value = function(kappa, dim)
    (slope,) = torch.autograd.grad(value, kappa)
    slopes = {"bessel_ratio": 1 / (dim - 1), "exact_bessel_ratio": 1 / dim}
    assert 0 <= value.item() < 1e-99
    assert slope.item() == pytest.approx(slopes.get(function.__name__, 0.0), rel=1e-12)


@few
@given(dims, kappas, kappas)
def test_ratio_rises_within_the_unit_interval_and_partition_is_convex(dim, a, b) -> None:
    low, high = sorted([a, b])
    middle = (low + high) / 2
    for ratio, partition in zip(RATIOS, PARTITIONS, strict=True):
        r_low, r_high = ratio(low, dim).item(), ratio(high, dim).item()
        assert 0 < r_low <= r_high < 1
        p_low, p_middle, p_high = (partition(k, dim).item() for k in (low, middle, high))
        assert 0 < p_low <= p_high < high
        assert p_middle <= (p_low + p_high) / 2 * (1 + 1e-12)


@few
@given(dims, kappas)
def test_amos_bounds_the_exact_ratio_from_above(dim, kappa) -> None:
    amos, exact = vmf.bessel_ratio(kappa, dim).item(), vmf.exact_bessel_ratio(kappa, dim).item()
    assert amos >= exact * (1 - 1e-15)
    # Amos's lower bound has ṽ + 1 under the root.
    assert exact >= kappa / ((dim - 1) / 2 + math.hypot(kappa, (dim + 1) / 2)) * (1 - 1e-15)
    if kappa < 1e4:  # beyond, the two agree to the last digits
        assert amos > exact


@few
@given(dims, st.floats(1e-3, 0.999), st.floats(0.5, 0.99), st.booleans())
def test_nll_is_least_at_best_kappa(dim, cosine, factor, exact) -> None:
    best = vmf.best_kappa(cosine, dim, exact=exact, max_kappa=1e9)
    at_best = vmf.nll(cosine, best, dim, exact=exact)
    assert at_best <= vmf.nll(cosine, best * factor, dim, exact=exact)
    assert at_best <= vmf.nll(cosine, best / factor, dim, exact=exact)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_best_kappa_at_its_limits(exact: bool, dtype: torch.dtype) -> None:
    cosine = torch.tensor([-1.0, -0.2, 0.0, 1.0, 1.0 + 1e-6], dtype=dtype, requires_grad=True)
    for dim in DIMS:
        kappa = vmf.best_kappa(cosine, dim, exact=exact)
        assert torch.allclose(kappa, torch.tensor([0, 0, 0, 1e6, 1e6], dtype=dtype))
        assert kappa[:3].tolist() == [0.0, 0.0, 0.0]  # not merely close: there is no direction
        (slope,) = torch.autograd.grad(kappa.sum(), cosine)
        assert slope.isfinite().all()
        assert (slope >= 0).all()


def test_best_kappa_gradients() -> None:
    cosine = torch.tensor([0.05, 0.4, 0.9], dtype=torch.float64, requires_grad=True)
    for dim in (2, 512):
        assert torch.autograd.gradcheck(lambda c, dim=dim: vmf.best_kappa(c, dim), cosine)
        assert torch.autograd.gradcheck(lambda c, dim=dim: vmf.best_kappa(c, dim, exact=True), cosine)


@BOTH
@pytest.mark.parametrize("dim", DIMS)
def test_best_kappa_inverts_the_ratio(exact: bool, dim: int) -> None:
    kappa = torch.logspace(-6, 5, 40, dtype=torch.float64)
    ratio = vmf.exact_bessel_ratio if exact else vmf.bessel_ratio
    again = vmf.best_kappa(ratio(kappa, dim), dim, exact=exact)
    assert torch.allclose(again, kappa, rtol=1e-8)


@pytest.mark.parametrize("function", PARTITIONS + RATIOS)
@pytest.mark.parametrize("dim", [2, 64, 512])
def test_gradients_of_first_and_second_order(function, dim: int) -> None:
    kappa = torch.tensor([0.2, 5.0, 60.0, 700.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k: function(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: function(k, dim), kappa)


@BOTH
def test_nll_gradients_of_first_and_second_order(exact: bool) -> None:
    cosine = torch.tensor([[-0.9], [0.1], [0.45], [0.95]], dtype=torch.float64, requires_grad=True)
    kappa = torch.tensor([0.3, 20.0, 500.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c, k: vmf.nll(c, k, 48, exact=exact), (cosine, kappa))
    assert torch.autograd.gradgradcheck(lambda c, k: vmf.nll(c, k, 48, exact=exact), (cosine, kappa))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_gradient_of_the_partition_is_the_ratio_over_the_whole_range(partition, dim: int) -> None:
    ratio = RATIOS[PARTITIONS.index(partition)]
    for dtype in (torch.float32, torch.float64):
        kappa = grid(dtype).requires_grad_()
        (slope,) = torch.autograd.grad(partition(kappa, dim).sum(), kappa, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), kappa)
        assert torch.equal(slope, ratio(kappa, dim))
        assert (curvature > 0).all()
        assert curvature.isfinite().all()


@pytest.mark.parametrize("dim", DIMS)
def test_float32_agrees_with_float64(dim: int) -> None:
    kappa = grid(torch.float32)
    for function in PARTITIONS + RATIOS:
        value = function(kappa, dim)
        assert value.dtype == torch.float32
        assert torch.allclose(value.double(), function(kappa.double(), dim), rtol=1e-6, atol=0)


@BOTH
@pytest.mark.parametrize("dim", DIMS)
def test_float32_nll_keeps_value_and_sign_of_the_gradient(exact: bool, dim: int) -> None:
    kappa = grid(torch.float32)[:, None]
    # Cosines from all of [-1, 1], and the closest float32 neighbours of 1.
    cosine = torch.cat([torch.linspace(-1, 1, 41), 1 - 2.0 ** -torch.arange(8, 25)]).float()
    value = vmf.nll(cosine, kappa, dim, exact=exact)
    each = torch.func.vmap(
        torch.func.vmap(torch.func.grad(lambda k, c: vmf.nll(c, k, dim, exact=exact)), (None, 0)), (0, None)
    )
    slope = each(kappa[:, 0], cosine).double()
    ratio = vmf.exact_bessel_ratio if exact else vmf.bessel_ratio
    k, c = kappa.double(), cosine.double()
    expected = ratio(k, dim) - c
    assert torch.allclose(slope, expected, rtol=1e-4, atol=1e-8)
    clear = expected.abs() > 1e-6 * torch.minimum(ratio(k, dim), 1 - ratio(k, dim))
    assert torch.equal(slope.sign()[clear], expected.sign()[clear])
    partition = vmf.exact_log_partition if exact else vmf.log_partition
    expected = partition(k, dim) - k * c
    scale = torch.minimum(k, partition(k, dim) + k * (1 - c).abs())
    assert ((value.double() - expected).abs() <= 1e-6 * torch.maximum(expected.abs(), scale)).all()


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_and_autocast_compute_in_float32(exact: bool, dtype: torch.dtype) -> None:
    kappa = torch.tensor([0.5, 30.0, 2000.0], dtype=dtype)
    cosine = torch.tensor([0.25, 0.5, 0.875], dtype=dtype)
    expected = vmf.nll(cosine.float(), kappa.float(), 512, exact=exact)
    assert torch.equal(vmf.nll(cosine, kappa, 512, exact=exact), expected)
    leaf = kappa.float().requires_grad_()
    directions = torch.eye(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = vmf.nll(cosine, leaf, 512, exact=exact)
        total = vmf.resultant(kappa, leaf, cosine)
        direction, fused = vmf.fuse(directions, leaf)
        drawn = vmf.sample(directions, leaf.detach(), 2)
        fitted = vmf.fit_kappa(drawn)
    value.sum().backward()
    assert torch.equal(value, expected)
    assert {x.dtype for x in (value, total, direction, fused, drawn, fitted, leaf.grad)} == {torch.float32}
    assert fused.item() == pytest.approx(leaf.norm().item(), rel=1e-6)


def test_normalizer_makes_the_density_integrate_to_one() -> None:
    theta = np.linspace(0, math.pi, 20001)
    for dim in (2, 3, 8, 40):
        # Area of the sphere one dimension down: the rim of a cap of angle θ, before sin θ scales it.
        rim = 2 * math.pi ** ((dim - 1) / 2) / math.gamma((dim - 1) / 2)
        for kappa in (0.1, 3.0, 80.0):
            log_c = vmf.log_normalizer(kappa, dim, exact=True).item()
            mass = np.trapezoid(
                np.exp(log_c + kappa * np.cos(theta)) * rim * np.sin(theta) ** (dim - 2), theta
            )
            assert mass == pytest.approx(1, rel=1e-6)


def test_constant_makes_nll_minus_the_log_density() -> None:
    for exact in (False, True):
        value = vmf.nll(0.3, 25.0, 16, exact=exact, constant=True)
        assert -value.item() == pytest.approx(
            (vmf.log_normalizer(25.0, 16, exact) + 25.0 * 0.3).item(), rel=1e-12
        )


def test_dim_256_reproduces_the_release() -> None:
    """The released loss is the same formula with d = 256: its best κ is smaller by 127.5/255.5."""
    scale = vmf.best_kappa(0.4, 256) / vmf.best_kappa(0.4, 512)
    assert scale.item() == pytest.approx(127.5 / 255.5, rel=1e-12)


def test_nll_compiles_whole_and_maps() -> None:
    kappa, cosine = torch.tensor([0.5, 40.0, 3e5]), torch.tensor([0.1, 0.7, 0.999])
    compiled = torch.compile(lambda c, k: vmf.nll(c, k, 64).sum(), fullgraph=True, backend="aot_eager")
    leaf = kappa.clone().requires_grad_()
    compiled(cosine, leaf).backward()
    slope = torch.func.vmap(torch.func.grad(lambda k, c: vmf.nll(c, k, 64)))(kappa, cosine)
    assert torch.allclose(leaf.grad, slope)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_agrees_with_cpu() -> None:
    kappa, cosine = grid(torch.float32), torch.linspace(-1, 1, 121)
    for exact in (False, True):
        on_gpu = vmf.nll(cosine.cuda(), kappa.cuda(), 512, exact=exact).cpu()
        assert torch.allclose(on_gpu, vmf.nll(cosine, kappa, 512, exact=exact), rtol=1e-5, atol=1e-12)
    drawn = vmf.sample(torch.eye(8, device="cuda"), 20.0, 2000, torch.Generator("cuda").manual_seed(0))
    assert torch.allclose(vmf.fit_kappa(drawn).cpu(), torch.full((8,), 20.0), rtol=0.1)
    assert vmf.fuse(torch.eye(8, device="cuda"), 2.0)[1].item() == pytest.approx(2 * math.sqrt(8))


@few
@given(kappas, kappas, cosines)
def test_resultant_lies_between_difference_and_sum(a, b, cosine) -> None:
    value = vmf.resultant(a, b, cosine).item()
    assert abs(a - b) * (1 - 1e-14) <= value <= (a + b) * (1 + 1e-14)


def test_resultant_keeps_its_digits_for_opposed_directions() -> None:
    gap = 2.0**-23
    cosine = torch.tensor(-1 + gap)
    assert vmf.resultant(torch.tensor(1e6), 1e6, cosine).item() == pytest.approx(
        1e6 * math.sqrt(2 * gap), rel=1e-6
    )
    kappa = torch.tensor([5.0, 7.0], requires_grad=True)
    value = vmf.resultant(kappa, 5.0, torch.tensor(-1.0 - 1e-7))
    value.sum().backward()
    assert value.tolist() == [0.0, 2.0]
    assert kappa.grad.tolist() == [0.0, 1.0]


@few
@given(st.integers(2, 64), kappas, kappas, st.integers(0, 1000))
def test_fuse_of_two_is_the_resultant(dim, a, b, seed) -> None:
    first, second = unit(dim, seed), unit(dim, seed + 1)
    direction, kappa = vmf.fuse(torch.stack([first, second]), torch.tensor([a, b], dtype=torch.float64))
    assert kappa.item() == pytest.approx(vmf.resultant(a, b, (first * second).sum()).item(), rel=1e-7)
    assert torch.allclose(direction * kappa, a * first + b * second, rtol=1e-9, atol=1e-12 * (a + b))


def test_fuse_along_another_axis_and_without_direction() -> None:
    directions = torch.nn.functional.normalize(torch.randn(3, 4, 5, dtype=torch.float64), dim=-1)
    kappas = torch.rand(3, 4, dtype=torch.float64)
    direction, kappa = vmf.fuse(directions, kappas, axis=0)
    expected, _ = vmf.fuse(directions.transpose(0, 1), kappas.T)
    assert direction.shape == (4, 5)
    assert kappa.shape == (4,)
    assert torch.allclose(direction, expected)
    opposed = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    direction, kappa = vmf.fuse(opposed, 3.0)
    (direction.sum() + kappa).backward()
    assert kappa.item() == 0
    assert direction.tolist() == [0.0, 0.0]
    assert opposed.grad.isfinite().all()


@pytest.mark.parametrize(("dim", "n"), [(2, 4000), (3, 4000), (64, 4000), (512, 2000), (8192, 100)])
@pytest.mark.parametrize("kappa", [1e-6, 1.0, 100.0, 1e4, 1e6])
def test_samples_are_unit_and_have_the_exact_mean_cosine(dim: int, n: int, kappa: float) -> None:
    mean = unit(dim)
    drawn = vmf.sample(mean, kappa, n, torch.Generator().manual_seed(3))
    gap = ((drawn - mean) ** 2).sum(-1) / 2  # 1 − cosine, without cancellation
    assert drawn.shape == (n, dim)
    assert ((drawn.norm(dim=-1) - 1).abs() < 1e-13).all()
    error = gap.mean().item() - (1 - vmf.exact_bessel_ratio(kappa, dim).item())
    assert abs(error) < 4 * gap.std().item() / math.sqrt(n)


@pytest.mark.parametrize(("dim", "kappa"), [(3, 0.8), (3, 50.0), (128, 30.0), (128, 4000.0)])
def test_sampled_cosines_follow_the_density(dim: int, kappa: float) -> None:
    """Kolmogorov-Smirnov distance to exp(κc)(1 − c²)^((d−3)/2), integrated by the trapezoid rule."""
    mean = unit(dim)
    cosine = np.sort((vmf.sample(mean, kappa, 5000, torch.Generator().manual_seed(1)) @ mean).numpy())
    points = np.linspace(-1, 1, 200001)[1:-1]
    log_density = kappa * (points - 1) + (dim - 3) / 2 * np.log1p(-points * points)
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    expected = np.interp(cosine, points, mass / mass[-1])
    distance = np.abs(expected - (np.arange(5000) + 0.5) / 5000).max()
    assert distance < 1.63 / math.sqrt(5000)  # the 1 % level


def test_samples_spread_evenly_about_the_mean_and_broadcast() -> None:
    means = torch.stack([unit(4, seed) for seed in range(3)])
    means[0] = torch.tensor([1.0, 0, 0, 0])
    means[1] = torch.tensor([-1.0, 0, 0, 0])
    kappa = torch.tensor([[5.0], [50.0]], dtype=torch.float64)
    drawn = vmf.sample(means, kappa, 4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 3, 4000, 4)
    assert torch.allclose(
        torch.nn.functional.normalize(drawn.mean(-2), dim=-1), means.expand(2, 3, 4), atol=0.03
    )
    assert torch.equal(drawn, vmf.sample(means, kappa, 4000, torch.Generator().manual_seed(0)))
    assert vmf.sample(means.float(), 2.0, 0).shape == (3, 0, 4)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 1e6), (64, 40.0), (512, 300.0), (512, 1e5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fitting_recovers_kappa(dim: int, kappa: float, dtype: torch.dtype) -> None:
    mean = unit(dim)
    n = 3000
    drawn = vmf.sample(mean, kappa, n, torch.Generator().manual_seed(5)).to(dtype)
    # Standard error of the MLE: 1/√(n·A′), with the slope of the ratio as Fisher information.
    leaf = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    (information,) = torch.autograd.grad(vmf.exact_bessel_ratio(leaf, dim), leaf)
    error = 4 / math.sqrt(n * information.item())
    assert vmf.fit_kappa(drawn, mean).item() == pytest.approx(kappa, abs=error)
    free = vmf.fit_kappa(torch.stack([drawn, drawn]))
    assert free.dtype == dtype
    assert free.shape == (2,)
    # Estimating the mean too removes d − 1 of n·(d − 1) degrees of freedom, and adds the mean's own length.
    assert free[0].item() == pytest.approx(kappa, abs=error + kappa / n + dim**2 / (kappa * n))


def test_each_set_of_samples_is_fitted_to_its_own_mean_direction() -> None:
    means = torch.stack([unit(5, seed) for seed in range(6)]).reshape(2, 3, 5)
    drawn = vmf.sample(means, 30.0, 7, torch.Generator().manual_seed(2))
    fitted = vmf.fit_kappa(3.0 * drawn, 2.0 * means)  # lengths do not matter
    for i in range(2):
        for j in range(3):
            cosine = sum(float(vector @ means[i, j]) for vector in drawn[i, j]) / 7
            expected = vmf.best_kappa(cosine, 5, exact=True).item()
            assert fitted[i, j].item() == pytest.approx(expected, rel=1e-9)


def test_samples_are_drawn_up_to_the_largest_kappa_and_from_none_at_all() -> None:
    mean = unit(3)
    sharp = vmf.sample(mean, 1e12, 5, torch.Generator().manual_seed(0))
    assert ((sharp - mean).norm(dim=-1) < 1e-5).all()
    with pytest.raises(KappaPlaceError, match="between 0 and 1e\\+12"):
        vmf.sample(mean, 1.001e12, 5)
    with pytest.raises(KappaPlaceError, match="and not NaN"):
        vmf.sample(mean, torch.tensor([1.0, -1e-3]), 5)  # one bad κ is enough
    even = vmf.sample(mean, 0.0, 4000, torch.Generator().manual_seed(0))
    assert even.mean(0).norm().item() < 0.06  # 1/√4000 is 0.016


def test_identical_samples_fit_the_largest_kappa() -> None:
    assert vmf.fit_kappa(torch.ones(4, 3)).item() == pytest.approx(1e9)
    assert vmf.fit_kappa(torch.ones(4, 3), max_kappa=50.0).item() == pytest.approx(50)


@pytest.mark.parametrize("dim", [1, 0, -3, 2.5])
def test_invalid_dim(dim) -> None:
    for function in (*PARTITIONS, *RATIOS, vmf.log_normalizer, vmf.best_kappa):
        with pytest.raises(KappaPlaceError, match="an integer of at least 2"):
            function(torch.ones(2), dim)
    with pytest.raises(KappaPlaceError, match="an integer of at least 2"):
        vmf.nll(torch.ones(2), torch.ones(2), dim)


def test_invalid_samples() -> None:
    with pytest.raises(KappaPlaceError, match="an integer of at least 2"):
        vmf.sample(torch.ones(1), 1.0, 3)
    with pytest.raises(KappaPlaceError, match="0 or more"):
        vmf.sample(torch.ones(3), 1.0, -1)
    with pytest.raises(KappaPlaceError, match="shape"):
        vmf.fit_kappa(torch.ones(3))


def test_the_log_normalizer_is_the_closed_form_unless_exact() -> None:
    closed, exact = (float(vmf.log_normalizer(2.0, 3, exact=value)) for value in (False, True))
    assert float(vmf.log_normalizer(2.0, 3)) == closed != exact
    # C_3(κ) = κ / (4π·sinh κ)
    assert exact == pytest.approx(math.log(2.0 / (4 * math.pi * math.sinh(2.0))), rel=1e-6)
