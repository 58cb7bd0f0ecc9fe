"""Features with fused kernels equal those without; the kernels themselves are replaced by a reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kappaplace.models.place_model import PlaceModel
from kappaplace.training.features import feature_function, frozen_features, fused_features
from kappaplace.training.settings import RunSettings


def trained_looking(head: str) -> PlaceModel:
    """BatchNorms with random statistics: folding new ones would prove nothing."""
    torch.manual_seed(3)
    model = PlaceModel.create("resnet_tiny", 32, head).eval()  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    return model


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """cuDNN's two functions, written out."""
    calls = {"relu": 0, "sum": 0}

    def relu(x: Tensor, weight: Tensor, bias: Tensor, *options: Any) -> Tensor:
        calls["relu"] += 1
        stride, padding, dilation, groups = options
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups).relu()

    def sum_relu(
        x: Tensor, weight: Tensor, other: Tensor, alpha: float, bias: Tensor, *options: Any
    ) -> Tensor:
        calls["sum"] += 1
        stride, padding, dilation, groups = options
        return (
            nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups) + alpha * other
        ).relu()

    monkeypatch.setattr(torch, "cudnn_convolution_relu", relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", sum_relu)
    return calls


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied", "layers"])
def test_they_are_the_features_of_the_model_itself(head: str, kernels: dict[str, int]) -> None:
    model = trained_looking(head)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compute = fused_features(model, torch.float32)
    assert compute is not None
    images = torch.randn(3, 3, 64, 64)
    with torch.inference_mode():
        for got, expected in zip(compute(images), frozen_features(model, images), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
    assert kernels["relu"] > 0
    assert kernels["sum"] > 0
    for name, value in model.state_dict().items():  # folding happens in a copy
        assert torch.equal(value, before[name])


def test_nothing_is_fused_if_kernels_are_missing_or_incorrect(
    kernels: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained_looking("mirrored")
    monkeypatch.setattr(torch, "cudnn_convolution_relu", lambda x, weight, *_: x.new_zeros(1).expand(0))
    assert fused_features(model) is None  # a shape that does not fit
    monkeypatch.undo()
    assert fused_features(model) is None  # this machine's CPU has none
    assert fused_features(PlaceModel.create("vgg16", 32, "mirrored")) is None


def test_kernels_that_disagree_are_not_used(kernels: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.cudnn_convolution_relu
    monkeypatch.setattr(torch, "cudnn_convolution_relu", lambda *inputs: -right(*inputs))
    assert fused_features(trained_looking("mirrored")) is None


def test_on_a_cpu_the_plain_function_is_taken() -> None:
    model = trained_looking("mirrored")
    compute = feature_function(model, RunSettings(precision="bf16", compile=False))
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(compute(images)[1], frozen_features(model, images)[1])
