"""Heads: shapes, positivity, exact folding, starting values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.models.aggregation import Aggregation, normalize_channels
from kappaplace.models.heads import (
    DropoutHead,
    FoldedKappaHead,
    LayersKappaHead,
    LinearKappaHead,
    MirroredKappaHead,
    StunHead,
    VarianceHead,
    build_head,
    inverse_softplus,
    stage_statistics,
)
from kappaplace.models.place_model import PlaceModel

CHANNELS, DIM = 48, 16


def inputs(seed: int = 0, batch: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(batch, CHANNELS, 4, 6, generator=generator)
    normalized = normalize_channels(features)
    aggregation = Aggregation(CHANNELS, DIM)
    pooled = aggregation.gem(normalized)
    return normalized, pooled, aggregation.project(pooled)


def by_hand(head: MirroredKappaHead, normalized: torch.Tensor) -> np.ndarray:
    """The mirrored head re-derived with NumPy loops over images and channels."""
    p = float(head.aggregation.gem.p.detach())
    first = [
        x.detach().double().numpy() for x in (head.aggregation.project.weight, head.aggregation.project.bias)
    ]
    last = [x.detach().double().numpy() for x in (head.last.weight, head.last.bias)]
    kappa = []
    for image in normalized.double().numpy():
        pooled = [np.mean(np.maximum(channel, 1e-6) ** p) ** (1 / p) for channel in image]
        x = float((last[0] @ (first[0] @ pooled + first[1]) + last[1])[0])
        kappa.append(math.log1p(math.exp(x)) + 1e-6)
    return np.array(kappa)


def test_mirrored_head_matches_its_definition() -> None:
    head = MirroredKappaHead(CHANNELS, DIM)
    normalized, pooled, raw = inputs()
    np.testing.assert_allclose(head(normalized, pooled, raw).detach(), by_hand(head, normalized), rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(p=st.floats(1.0, 8.0), kappa=st.floats(0.01, 2000.0), seed=st.integers(0, 1000), tied=st.booleans())
def test_folded_equals_unfolded(p: float, kappa: float, seed: int, tied: bool) -> None:
    """Relative error of at most 1e-5 in float32, also for trained exponents and biases."""
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
    normalized = inputs()[0]
    torch.testing.assert_close(head.aggregation(normalized), source(normalized))
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
    with pytest.raises(KappaPlaceError, match="must be positive"):
        FoldedKappaHead(CHANNELS).start_at(0.0)


@pytest.mark.parametrize(
    "name", ["mirrored", "mirrored-tied", "folded", "folded-tied", "linear", "variance", "stun"]
)
def test_a_pass_is_what_the_head_reads_and_then_the_rest(name: str) -> None:
    head = build_head(name, CHANNELS, DIM)
    values = inputs()
    reduced = head.reduce(*values)
    assert reduced.shape == (5, DIM if name in ("linear", "stun") else CHANNELS)
    assert not any(parameter.shape == (1,) and "gem" in key for key, parameter in _used_after(head, reduced))
    torch.testing.assert_close(head.from_reduced(reduced), head(*values), rtol=0, atol=0)


def _used_after(head: torch.nn.Module, reduced: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Parameters of the second step only: features of the first step stay valid while these train."""
    head.zero_grad()
    head.from_reduced(reduced.detach()).sum().backward()
    return [(name, p) for name, p in head.named_parameters() if p.grad is not None]


def test_heads_say_what_they_mean_and_models_pass_it_on() -> None:
    images = torch.randn(3, 3, 64, 64)
    for name, spread in (
        ("mirrored", "kappa"),
        ("linear", "kappa"),
        ("variance", "variance"),
        ("stun", "log-variance"),
    ):
        model = PlaceModel.create("resnet_tiny", DIM, name).eval()  # type: ignore[arg-type]
        assert model.head.spread == spread
        output, own = model(images), model.outputs(images)[1]
        assert (output.kappa is None, output.variance is None) == (spread != "kappa", spread == "kappa")
        if spread == "log-variance":
            np.testing.assert_allclose(output.variance.detach(), own.detach().exp().mean(1), rtol=1e-6)
        else:
            torch.testing.assert_close(output.kappa if spread == "kappa" else output.variance, own)


def test_variance_head_is_the_mirrored_one_under_another_meaning() -> None:
    head = VarianceHead(CHANNELS, DIM)
    normalized, pooled, raw = inputs()
    variance = head(normalized, pooled, raw)
    np.testing.assert_allclose(variance.detach(), by_hand(head, normalized), rtol=1e-5)
    assert (variance > 0).all()
    head.start_at(0.3)
    assert float(head(normalized, pooled, raw).detach().mean()) == pytest.approx(0.3, abs=0.2)


def test_a_variance_is_not_folded_into_a_kappa() -> None:
    with pytest.raises(KappaPlaceError, match="Only a mirrored kappa head can be folded"):
        PlaceModel.create("resnet_tiny", DIM, "variance").fold()


def dropout_model() -> PlaceModel:
    return PlaceModel.create("resnet_tiny", DIM, "dropout").eval()


def test_dropout_spread_by_hand() -> None:
    """Mean and variance over the masks, image by image and mask by mask."""
    head, aggregation = DropoutHead(CHANNELS, p=0.3, samples=5), Aggregation(CHANNELS, DIM)
    pooled = torch.rand(4, CHANNELS)
    descriptor, variance = head.spread_of(pooled, aggregation)
    weight, bias = (
        x.detach().double().numpy() for x in (aggregation.project.weight, aggregation.project.bias)
    )
    for image in range(4):
        samples = []
        for mask in head.masks.double().numpy():
            raw = weight @ (pooled[image].double().numpy() * mask) + bias
            samples.append(raw / np.linalg.norm(raw))
        mean = np.mean(samples, axis=0)
        np.testing.assert_allclose(descriptor[image].detach(), mean / np.linalg.norm(mean), atol=1e-5)
        by_dimension = np.mean((np.array(samples) - mean) ** 2, axis=0)
        assert float(variance[image].detach()) == pytest.approx(by_dimension.mean(), rel=1e-3)


def test_dropout_masks_keep_their_share_and_the_expectation() -> None:
    head = DropoutHead(20_000, p=0.2, samples=4)
    assert head.masks.unique().tolist() == pytest.approx([0.0, 1 / 0.8])
    np.testing.assert_allclose(head.masks.mean(1), 1, atol=0.02)
    assert not torch.equal(head.masks[0], head.masks[1])
    assert not list(head.parameters())


def test_dropout_depends_on_nothing_but_the_image() -> None:
    model, images = dropout_model(), torch.randn(5, 3, 64, 64)
    with torch.no_grad():
        together = model(images)
        torch.manual_seed(77)
        again = model(images)
        alone = [model(image[None]) for image in images]
    torch.testing.assert_close(again.variance, together.variance, rtol=0, atol=0)
    np.testing.assert_allclose(torch.cat([one.variance for one in alone]), together.variance, rtol=1e-4)
    np.testing.assert_allclose(torch.cat([one.descriptor for one in alone]), together.descriptor, atol=1e-5)
    assert together.kappa is None
    assert (together.variance > 0).all()
    np.testing.assert_allclose(together.descriptor.norm(dim=1), 1, rtol=1e-5)


def test_dropout_masks_travel_with_the_weights() -> None:
    torch.manual_seed(1)
    source, images = dropout_model(), torch.randn(2, 3, 64, 64)
    source.head.masks.copy_(source.head.masks.flip(1))
    copy = dropout_model()
    copy.load_state_dict(source.state_dict())
    torch.testing.assert_close(copy(images).variance, source(images).variance, rtol=0, atol=0)


def test_training_drops_at_random_and_evaluation_does_not() -> None:
    model, images = dropout_model(), torch.randn(2, 3, 64, 64)
    pooled = torch.ones(400, CHANNELS)
    head = DropoutHead(CHANNELS, p=0.2)
    dropped = head.train().drop(pooled)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.2, abs=0.02)
    torch.testing.assert_close(dropped[dropped > 0].unique(), torch.tensor([1.25]))
    torch.testing.assert_close(head.eval().drop(pooled), pooled, rtol=0, atol=0)
    torch.testing.assert_close(model.outputs(images)[0], model.outputs(images)[0], rtol=0, atol=0)
    assert model.outputs(images)[1] is None
    model.head.train()
    first, second = (model.outputs(images)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_stage_statistics_are_mean_and_deviation_of_every_channel() -> None:
    maps = [torch.randn(2, 3, 4, 5), torch.randn(2, 2, 2, 2)]
    statistics = stage_statistics(maps).numpy()
    for image in range(2):
        expected = []
        for one in maps:
            channels = one[image].double().numpy()
            expected += [channel.mean() for channel in channels]
            expected += [math.sqrt(channel.var() + 1e-6) for channel in channels]
        np.testing.assert_allclose(statistics[image], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["layers", "layers-mlp"])
@pytest.mark.parametrize("backbone", ["resnet_tiny", "efficientnet_lite0"])
def test_layers_head_reads_pooled_features_and_stages(backbone: str, name: str) -> None:
    torch.manual_seed(0)
    model = PlaceModel.create(backbone, 16, name).eval()  # type: ignore[arg-type]
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        model.head.scale.running_mean.normal_()
        model.head.scale.running_var.uniform_(0.5, 2.0)
        features = model.features(images)
        read = torch.cat([features.pooled, features.stages], 1)
        x = (read - model.head.scale.running_mean) / (
            model.head.scale.running_var + model.head.scale.eps
        ).sqrt()
        if model.head.hidden is not None:
            x = x @ model.head.hidden.weight.T + model.head.hidden.bias
            x = x * torch.sigmoid(x)
        x = (x @ model.head.last.weight.T + model.head.last.bias).squeeze(1)
        np.testing.assert_allclose(model(images).kappa, torch.log1p(x.exp()) + 1e-6, rtol=1e-4)
        plain = PlaceModel.create(backbone, 16, "none").eval()
        plain.load_state_dict(model.state_dict(), strict=False)
        torch.testing.assert_close(plain(images).descriptor, model(images).descriptor)


def test_layers_head_is_refused_where_stages_are_hidden() -> None:
    with pytest.raises(KappaPlaceError, match="which vgg16 does not provide"):
        PlaceModel.create("vgg16", 16, "layers")
    head = LayersKappaHead(4, 6)
    with pytest.raises(KappaPlaceError, match="reads the stages of a backbone"):
        head(torch.zeros(1, 4, 2, 2), torch.zeros(1, 4), torch.zeros(1, 8))


def test_patch_maps_are_a_stage_at_a_sixteenth() -> None:
    model = PlaceModel.create("efficientnet_lite0", 16, "none").eval()
    assert model.patch_maps(torch.zeros(1, 3, 64, 96)).shape == (1, 112, 4, 6)
    with pytest.raises(KappaPlaceError, match="does not provide patch maps"):
        PlaceModel.create("vgg16", 16, "none").patch_maps(torch.zeros(1, 3, 64, 64))
