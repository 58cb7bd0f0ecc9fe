"""docs/parity.md: every row names a test, and the differences it states hold.

The formulas of the peers are derived again here, in float64 and one value at a time.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kappaplace import vmf
from kappaplace.metrics import (
    BOTH_TAILS,
    NO_CLAMP,
    UPPER_TAIL,
    auc_pr,
    expected_calibration_error,
    match_calibration_error,
)
from kappaplace.models.place_model import PlaceModel
from kappaplace.retrieval.exact import search
from kappaplace.training.losses import gaussian_nll, large_margin_cosine_loss, stun_loss, vmf_loss
from kappaplace.training.objectives import Classification, Step
from kappaplace.training.optimizers import Optimizers
from kappaplace.training.settings import LossSettings, OptimizerSettings
from kappaplace.types import Embeddings
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence
from tests.docs.markdown import ROOT
from tests.uncertainty.helpers import evidence_of

PAGE = (ROOT / "docs/parity.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "::test_" in line
]
STATED = {row[0]: row for row in ROWS}


def bound(quantity: str) -> float:
    """The largest difference that the page states."""
    return float(STATED[quantity][2])


def of(matrix: torch.Tensor) -> np.ndarray:
    return matrix.detach().numpy().astype(np.float64)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_a_test_that_exists(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row)
    assert float(row[2]) >= 0
    [(file, name)] = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[3])
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_rows_are_different_and_tests_here_are_rows() -> None:
    assert len(STATED) == len(ROWS) >= 20
    own = {
        name for name in globals() if name.startswith("test_") and name.split("_")[1] not in ("every", "rows")
    }
    assert own == set(re.findall(r"`tests/docs/test_parity\.py::(test_\w+)`", PAGE))


def pooled(maps: np.ndarray, p: float, normalize: bool) -> np.ndarray:
    """GeM over the positions of feature maps B×C×H×W."""
    if normalize:
        maps = maps / np.sqrt((maps**2).sum(axis=1, keepdims=True))
    return (np.maximum(maps, 1e-6) ** p).mean(axis=(2, 3)) ** (1 / p)


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    torch.manual_seed(0)
    model = PlaceModel.create("resnet18", 64).eval()
    model.head.last.bias.data += 3.0
    return model


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(6, 3, 96, 96, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_descriptor(model: PlaceModel, images: torch.Tensor) -> None:
    project = model.aggregation.project
    raw = pooled(of(model.backbone(images)), 3.0, True) @ of(project.weight).T + of(project.bias)
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(of(model(images).descriptor) - expected).max() <= bound("descriptor")


@torch.no_grad()
def test_kappa(model: PlaceModel, images: torch.Tensor) -> None:
    first, last = model.head.aggregation.project, model.head.last
    x = pooled(of(model.backbone(images)), 3.0, True) @ of(first.weight).T + of(first.bias)
    expected = np.log1p(np.exp(x @ of(last.weight).T + of(last.bias)))[:, 0] + 1e-6
    difference = np.abs(of(model(images).kappa) / expected - 1).max()
    assert difference <= bound("κ (relative)")
    folded = np.abs(of(model.fold()(images).kappa) / expected - 1).max()
    assert folded <= bound("κ of the folded head (relative)")


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    x = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(x, dim=1)


def test_large_margin_loss() -> None:
    z, prototypes, labels = unit(8, 16, 0), 3 * unit(5, 16, 1), torch.arange(8) % 5
    total = 0.0
    for row, label in zip(of(z), labels.tolist(), strict=True):
        cosines = [float(row @ (w / np.linalg.norm(w))) for w in of(prototypes)]
        logits = [30 * (c - 0.4 * (i == label)) for i, c in enumerate(cosines)]
        total += math.log(sum(math.exp(x) for x in logits)) - logits[label]
    ours = float(large_margin_cosine_loss(z, prototypes, labels))
    assert abs(ours - total / 8) <= bound("large-margin cosine loss")


def test_vmf_loss_of_the_release() -> None:
    """With d = 256 whatever the descriptor: v = (256 − 1)/2."""
    z, anchors = unit(8, 512, 0), unit(8, 512, 1)
    anchors = torch.nn.functional.normalize(z + 0.8 * anchors, dim=1)
    kappa = torch.linspace(5, 900, 8, dtype=torch.float64)
    v, total = 127.5, 0.0
    for a, b, k in zip(of(z), of(anchors), kappa.tolist(), strict=True):
        root = math.hypot(k, v)
        total += root - v * math.log(v + root) - k * float(a @ b)
    constant = float(vmf.nll(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), 256))
    zero = v - v * math.log(2 * v)  # the two may differ by a constant, which has no gradient
    ours = float(vmf_loss(z, anchors, kappa, dim=256)) - constant
    assert abs(ours - (total / 8 - zero)) <= bound("vMF loss with d = 256")


def test_joint_step() -> None:
    """Gradients of descriptors, κ and prototypes in joint training, and the step of Adam."""
    labels, group = torch.tensor([0, 2, 1, 2]), LossSettings(vmf_dim=256)
    objective = Classification([3], 64, group, weight=0.01).double()
    z = unit(4, 64, 5).requires_grad_()
    kappa = torch.tensor([3.0, 80.0, 200.0, 410.0], dtype=torch.float64, requires_grad=True)
    [prototypes] = objective.parameters_of(0)
    start = prototypes.detach().clone()
    loss = objective(Step(z, kappa, torch.arange(4), labels, 0, None))["loss"]
    loss.backward()

    own_z, own_kappa, own = (x.detach().clone().requires_grad_() for x in (z, kappa, start))
    directions = own / own.norm(dim=1, keepdim=True)
    logits = 30 * (own_z @ directions.T - 0.4 * torch.eye(3, dtype=torch.float64)[labels])
    classification = (logits.exp().sum(1).log() - logits[range(4), labels]).mean()
    v, root = 127.5, (own_kappa**2 + 127.5**2).sqrt()
    likelihood = root - v * (v + root).log() - own_kappa * (own_z * directions[labels]).sum(1)
    (classification + 0.01 * likelihood.mean()).backward()
    pairs = ((z, own_z), (kappa, own_kappa), (prototypes, own))
    assert max(float((a.grad - b.grad).abs().max()) for a, b in pairs) <= bound("gradients of a joint step")

    settings = OptimizerSettings(prototype_lr=1e-2)
    Optimizers(torch.nn.Linear(1, 1), objective, 1, settings, 10).step(0)
    assert own.grad is not None
    adam = start - 1e-2 * own.grad / (own.grad.abs() + 1e-8)  # the first step has no memory
    assert float((prototypes.detach() - adam).abs().max()) <= bound("first step of Adam on the prototypes")


def test_gaussian_loss_per_dimension() -> None:
    """The release calls `torch.nn.GaussianNLLLoss` with both vectors times √d."""
    z, anchors = unit(8, 32, 0), unit(8, 32, 1)
    variance = torch.linspace(0.1, 3, 256, dtype=torch.float64).view(8, 32)
    expected = torch.nn.GaussianNLLLoss()(z * math.sqrt(32), anchors * math.sqrt(32), variance)
    assert abs(float(gaussian_nll(z, anchors, variance) - expected)) <= bound("Gaussian loss per dimension")


def test_stun_loss() -> None:
    student, teacher = unit(4, 8, 0), unit(4, 8, 1)
    s = torch.linspace(0.05, 0.95, 32, dtype=torch.float64).view(4, 8)
    total = 0.0
    for a, b, row in zip(of(student), of(teacher), of(s), strict=True):
        gap = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
        total += sum(gap / math.exp(x) + x for x in row)
    assert abs(float(stun_loss(student, teacher, s)) - total / 32) <= bound("STUN's loss")


def ece_of_bins(bins: Iterator[list[int]], success: np.ndarray, count: int) -> float:
    total = 0.0
    for i, inside in enumerate(bins):
        if inside:
            accuracy = sum(bool(success[q]) for q in inside) / len(inside)
            total += len(inside) / count * abs(accuracy - (9 - i) / 9)
    return total


def bins_between(scores: np.ndarray, low: float, high: float) -> Iterator[list[int]]:
    edges = np.linspace(low, high, 11)
    for i in range(10):
        last = i == 9
        yield [
            q
            for q, u in enumerate(scores)
            if edges[i] <= u and (u < edges[i + 1] or (last and u <= edges[i + 1]))
        ]


def clamped_ece(scores: np.ndarray, success: np.ndarray, two_sided: bool) -> float:
    """The release's binning by percentiles."""
    low = float(np.percentile(scores, 1)) if two_sided else float(scores.min())
    high = float(np.percentile(scores, 99))
    high = float(scores.max()) if high <= low else high
    return ece_of_bins(bins_between(np.clip(scores, low, high), low, high), success, len(scores))


def zoomed_ece(scores: np.ndarray, success: np.ndarray) -> float:
    """STUN's binning, which the release shares: at most nine steps down the parent grid."""
    parent = np.linspace(scores.min(), scores.max(), 11)
    for k in range(10):
        bins = list(bins_between(scores, parent[0], parent[10 - k]))
        if len(bins[-1]) > int(len(scores) * 0.001):
            break
    return ece_of_bins(iter(bins), success, len(scores))


def score_cases() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for draw in (rng.gamma(2.0, size=1500), rng.lognormal(0, 2, 1500), np.r_[np.ones(1490), 2:12:10j]):
        yield draw, rng.random(len(draw)) < 1 / (1 + draw)
    yield np.r_[np.zeros(995), 1e2, 1e4, 1e6, 1e8, 1e10], np.ones(1000, bool)
    yield np.full(40, 0.3), np.arange(40) % 3 == 0


def test_ece_by_percentiles() -> None:
    gaps = [0.0]
    for scores, success in score_cases():
        for clamp, two_sided in ((BOTH_TAILS, True), (UPPER_TAIL, False)):
            ours = expected_calibration_error(scores, success, clamp)
            gaps.append(abs(ours - clamped_ece(scores, success, two_sided)))
    assert max(gaps) <= bound("ECE@K, percentile clamp")


def test_ece_by_zoom() -> None:
    gaps = [
        abs(expected_calibration_error(scores, success, NO_CLAMP, zoom=True) - zoomed_ece(scores, success))
        for scores, success in score_cases()
    ]
    assert max(gaps) <= bound("ECE@K, zoom")


def test_match_level_ece() -> None:
    rng = np.random.default_rng(3)
    scores, hits = rng.gamma(2.0, size=(300, 10)), rng.random((300, 10)) < 0.4
    for k in (1, 5, 10):
        expected = clamped_ece(scores[:, :k].ravel(), hits[:, :k].ravel(), True)
        assert abs(match_calibration_error(scores, hits, k) - expected) <= bound("match-level ECE@K")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """Similar descriptors, so that all ten matches have weights in SUE, at places up to 3 km apart."""
    rng = np.random.default_rng(4)

    def embeddings(rows: int) -> Embeddings:
        z = (np.eye(16)[0] + 0.004 * rng.standard_normal((rows, 16))).astype(np.float32)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        return Embeddings(z, rng.lognormal(5, 1, rows).astype(np.float32))

    query, reference = embeddings(20), embeddings(40)
    matches = search(query.descriptor, reference.descriptor, 10)
    return evidence_of(matches, query, reference, reference_positions=rng.uniform(0, 3000, (40, 2)))


def relative(ours: np.ndarray, expected: list[float]) -> float:
    return float(np.abs(ours / np.array(expected) - 1).max())


def test_l2_and_pa(evidence: Evidence) -> None:
    distances = [[math.sqrt(max(0.0, 2 - 2 * float(c))) for c in row] for row in evidence.cosines]
    l2, pa = (score_named(name).query(evidence) for name in ("l2", "pa"))
    assert relative(l2, [d[0] for d in distances]) <= bound("L2, PA-score (relative)")
    assert relative(pa, [d[0] / d[1] for d in distances]) <= bound("L2, PA-score (relative)")


def sue_of_the_release(distances: np.ndarray, poses: np.ndarray) -> float:
    """Weights without a shift, deviations capped upwards only."""
    weights = [math.exp(-350 * abs(d)) for d in distances]
    weights = [w / sum(weights) for w in weights]
    mean = [sum(w * p[axis] for w, p in zip(weights, poses, strict=True)) for axis in (0, 1)]
    variance = 0.0
    for axis in (0, 1):
        for w, p in zip(weights, poses, strict=True):
            variance += w * min(500.0, p[axis] - mean[axis]) ** 2 / 2
    return variance


def test_sue_of_the_release(evidence: Evidence) -> None:
    """In float64, as the release computes it, so that its weights do not underflow."""
    expected = [
        sue_of_the_release(d, p)
        for d, p in zip(evidence.distances[:, :10], evidence.match_positions[:, :10], strict=True)
    ]
    ours = score_named("sue-one-sided").query(evidence)
    assert (score_named("sue").query(evidence) < 0.99 * ours).any()  # the cap matters here
    assert np.abs(ours - np.array(expected)).max() <= bound("SUE, one-sided cap (m²)")
    logs = np.array([math.log(x + 1e-10) for x in expected])
    assert np.abs(score_named("log-sue-one-sided").query(evidence) - logs).max() <= bound(
        "log SUE, one-sided cap"
    )


def test_match_uncertainty(evidence: Evidence) -> None:
    """1/√(κ_Q² + κ_R² + 2κ_Qκ_R·cosine)."""
    expected = [
        [1 / math.sqrt(q * q + r * r + 2 * q * r * float(c)) for r, c in zip(kappas, cosines, strict=True)]
        for q, kappas, cosines in zip(
            evidence.query_kappa, evidence.match_kappa, evidence.cosines, strict=True
        )
    ]
    ours = score_named("kappaplace").match
    assert ours is not None
    assert relative(ours(evidence), expected) <= bound("U of query and match (relative)")  # type: ignore[arg-type]


def test_area_by_trapezoids() -> None:
    """Of precision and recall at every threshold, from recall 0 and precision 1."""
    rng = np.random.default_rng(0)
    scores, success = rng.random(400), rng.random(400) < 0.4
    order = np.argsort(scores)
    recall, precision, area, right = 0.0, 1.0, 0.0, 0
    for accepted, row in enumerate(order, 1):
        right += int(success[row])
        new = right / success.sum(), right / accepted
        area += (new[0] - recall) * (precision + new[1]) / 2
        recall, precision = new
    assert abs(auc_pr(scores, success, trapezoid=True) - area) <= bound("AUC-PR by trapezoids")
