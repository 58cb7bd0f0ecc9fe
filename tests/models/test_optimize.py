"""Optimized models: the same outputs for every head and form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kappaplace.errors import KappaPlaceError
from kappaplace.models import fast as module
from kappaplace.models.aggregation import normalize_channels
from kappaplace.models.encoder import unit
from kappaplace.models.fast import ENOUGH, OptimizedModel, fidelity, for_many
from kappaplace.models.fast.fused import FusedResNet, InPrecision, Tail, fold_batch_norms
from kappaplace.models.network import with_spread
from kappaplace.models.place_model import PlaceModel


def with_statistics(model: PlaceModel) -> PlaceModel:
    """Random BatchNorm statistics: untrained BatchNorms are nearly the identity."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.3, 0.3)
            layer.running_var.uniform_(0.5, 2.0)
            layer.weight.data.uniform_(0.6, 1.4)
            layer.bias.data.uniform_(-0.2, 0.2)
    return model.eval()


@pytest.mark.parametrize("backbone", ["resnet_tiny", "resnet50_v1", "efficientnet_lite0"])
def test_folding_leaves_no_batch_norm_and_the_same_output(backbone: str) -> None:
    plain = with_statistics(PlaceModel.create(backbone, dim=8)).backbone
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = plain(images)
        norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in plain.modules())
        assert fold_batch_norms(plain, images) == norms > 0
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in plain.modules())
        torch.testing.assert_close(
            plain(images), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())
        )


@pytest.mark.parametrize("head", ["mirrored", "folded-tied", "layers", "stun", "dropout", "variance", "none"])
def test_an_optimized_model_answers_as_the_model_does(head: str) -> None:
    model = with_statistics(PlaceModel.create("resnet_tiny", dim=16, head=head))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = model.optimize("cpu")
    for shape in ((1, 64, 64), (3, 64, 96)):
        images = torch.randn(shape[0], 3, *shape[1:])
        with torch.no_grad():
            expected = model(images)
        actual = fast(images)
        assert [None if x is None else x.shape for x in actual] == [
            None if x is None else x.shape for x in expected
        ]
        difference = fidelity(expected, actual)
        assert difference.cosine > 0.999999
        assert difference.spread < 1e-4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_embeds_and_shows_patches_as_the_model_does(tiny: PlaceModel, pictures: np.ndarray) -> None:
    fast = with_statistics(tiny).optimize()
    result, expected = (m.embed(pictures, batch_size=4, progress=False) for m in (fast, tiny))
    np.testing.assert_allclose(result.descriptor, expected.descriptor, atol=1e-5)
    np.testing.assert_allclose(result.kappa, expected.kappa, rtol=1e-4)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(fast.patch_maps(images), tiny.patch_maps(images), rtol=1e-3, atol=1e-4)
    assert (fast.dim, fast.preprocessing, fast.shows_patches) == (tiny.dim, tiny.preprocessing, True)
    assert not fast.train().training


def test_fidelity_sees_every_difference(tiny: PlaceModel) -> None:
    with torch.no_grad():
        result = tiny(torch.randn(3, 3, 64, 64))
    assert fidelity(result, result).good
    rotated = result._replace(descriptor=result.descriptor.roll(1, dims=1))
    assert not fidelity(result, rotated).good
    assert not fidelity(result, result._replace(kappa=result.kappa * 1.011)).good
    assert fidelity(result, result._replace(kappa=result.kappa * 1.009)).good
    assert not fidelity(result, result._replace(kappa=result.kappa * torch.nan)).good
    assert not fidelity(result, result._replace(descriptor=result.descriptor[:, :-1])).good


def test_a_backbone_that_cannot_be_folded_stays_as_it_is(
    tiny: PlaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(backbone: nn.Module, example: torch.Tensor) -> int:
        next(backbone.parameters()).data.mul_(-1)
        return 1

    monkeypatch.setattr(module, "fold_batch_norms", spoil)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert fidelity(tiny(images), tiny.optimize()(images)).good


@pytest.mark.parametrize("backbone", ["resnet_tiny", "resnet50_v1"])
def test_the_fused_form_is_the_same_network(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's kernels need a GPU; this test replaces them by their definitions."""
    from kappaplace.models.fast import fused as fused_resnet

    def plain_relu(conv: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        return conv(x).relu()

    def plain_sum(conv: nn.Conv2d, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (conv(x) + other).relu()

    monkeypatch.setattr(fused_resnet, "_relu_after", plain_relu)
    monkeypatch.setattr(fused_resnet, "_relu_after_sum", plain_sum)
    resnet = with_statistics(PlaceModel.create(backbone, dim=8)).backbone
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected, maps = resnet.forward_stages(images)
        fold_batch_norms(resnet, images)
        actual, fused_maps = InPrecision(FusedResNet(resnet), torch.float32).forward_stages(images)
    for target, have in zip([expected, *maps], [actual, *fused_maps], strict=True):
        torch.testing.assert_close(have, target, rtol=1e-3, atol=1e-3 * float(target.abs().max()))


class CountedCall:
    """Stand-in for a CUDA graph: one function for one shape, whose results belong to the caller."""

    shapes: list[tuple[int, ...]] = []  # noqa: RUF012

    def __init__(self, call, example: torch.Tensor) -> None:
        self.call, self.shape = call, example.shape
        CountedCall.shapes.append(tuple(example.shape))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape == self.shape
        return self.call(x)


def test_shapes_are_recorded_once_and_a_short_batch_is_filled_up(
    tiny: PlaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GraphedCall", CountedCall)
    monkeypatch.setattr(CountedCall, "shapes", [])
    monkeypatch.setattr(module, "MOST_SHAPES", 3)
    fast = tiny.optimize()
    monkeypatch.setattr(fast, "_run", lambda batch: fast._recorded(tuple(batch.shape), batch))
    for count in (4, 3, 4, 3, 1, 6, 7):  # 3 is padded to 4 only the first time; 7 is one shape too many
        images = torch.randn(count, 3, 64, 64)
        with torch.no_grad():
            assert fidelity(tiny(images), fast(images)).good
    assert [shape[0] for shape in CountedCall.shapes] == [4, 3, 6]
    fast.to("cpu")
    assert len(fast._graphs) == 3  # no weight has moved
    fast.double()
    assert not fast._graphs


def test_ways_for_cuda_are_refused_elsewhere(tiny: PlaceModel) -> None:
    with pytest.raises(KappaPlaceError, match="for CUDA"):
        tiny.optimize("cpu", form="graph")


def test_only_many_images_are_worth_optimizing_for(tiny: PlaceModel) -> None:
    assert for_many(tiny, "cpu", ENOUGH - 1) is tiny
    assert isinstance(for_many(tiny, "cpu", ENOUGH), OptimizedModel)
    other = nn.Conv2d(3, 3, 1)
    assert for_many(other, "cpu", ENOUGH) is other


@pytest.mark.parametrize("head", ["folded", "folded-tied", "none"])
def test_the_tail_is_aggregation_and_head_in_one(head: str) -> None:
    model = PlaceModel.create("resnet_tiny", dim=24, head=head).eval()
    model.aggregation.gem.p.data.fill_(4.1)
    if head == "folded":
        model.head.gem.p.data.fill_(2.3)
    if head != "none":
        model.head.start_at(321.0)
    features = torch.randn(3, 192, 4, 5).relu().to(memory_format=torch.channels_last)
    with torch.no_grad():
        pooled = model.aggregation.gem(normalize_channels(features))
        raw = model.aggregation.from_pooled(pooled)
        expected = with_spread(
            unit(raw), model.head, model.head and model.head(normalize_channels(features), pooled, raw)
        )
        actual = Tail(model.aggregation, model.head)(features)
    torch.testing.assert_close(actual.descriptor, expected.descriptor, rtol=0, atol=1e-6)
    if head == "none":
        assert actual.kappa is None
    else:
        torch.testing.assert_close(actual.kappa, expected.kappa, rtol=1e-5, atol=0)
