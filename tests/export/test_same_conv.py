"""The strided convolution of EfficientNet-Lite as one operator: in torch and in ONNX."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kappaplace.models.backbones.convolutional import SameConv2d
from kappaplace.models.checkpoint import load_model
from kappaplace.models.export.formats import OPSET, translations, with_one_operator

SIZES = [(64, 64), (65, 64), (33, 47), (40, 51)]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(SameConv2d(3, 8, 3, 2), SameConv2d(8, 8, 5, 2, groups=8, bias=False)).eval()


@pytest.mark.parametrize("size", SIZES)
def test_operator_is_the_layer(size):
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(with_one_operator(layers())(images), layers()(images))


def test_onnx_pads_alike_at_odd_and_even_sizes(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    file, sides = tmp_path / "m.onnx", {0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=32)}
    torch.onnx.export(
        with_one_operator(layers()),
        (torch.randn(2, 3, 64, 80),),
        file,
        dynamo=True,
        opset_version=OPSET,
        input_names=["x"],
        dynamic_shapes=({**sides, 3: torch.export.Dim("w", min=32)},),
        custom_translation_table=translations(OPSET),
        verbose=False,
    )
    session = ort.InferenceSession(file)
    for size in SIZES:
        images = torch.randn(1, 3, *size)
        (actual,) = session.run(None, {"x": images.numpy()})
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(actual), layers()(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_the_shipped_model(kind, tmp_path):
    from kappaplace.models.export import SUFFIXES, export_model

    result = export_model(load_model(), tmp_path / f"m{SUFFIXES[kind]}", kind)
    assert result.record.outputs == ("descriptor", "kappa", "patches")
    assert max(gap.descriptor for gap in result.gaps) <= 1e-5
