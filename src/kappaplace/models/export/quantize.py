"""Post-training quantization to int8: weights per channel, activations by their range on sample images.

A few layers lose more precision than all others together, mostly the first layers and the depthwise layers.
If the whole backbone in int8 differs too much from the original, each layer is tried separately, and the
worst layers stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.errors import KappaPlaceError
from kappaplace.models.export.formats import INPUT, quiet
from kappaplace.models.exported import DESCRIPTOR, KAPPA, OnnxRuntime, imported

if TYPE_CHECKING:
    from onnx import GraphProto

Item = TypeVar("Item")
IMAGES, TESTS, TRIALS = 128, 48, 8
"""Number of images to measure ranges, to test the result, and to try each layer."""
LEAST_IMAGES = 16
PERCENTILE = 99.999
"""Percentage of activations inside a range; the others are clipped. Without clipping, most activations of a
ResNet-50 have too few steps to preserve the order of κ."""
COSINE, RANKS, KAPPA_ERROR = 0.995, 0.99, 0.005
"""Limits: mean cosine with the original, and rank correlation of κ (or its mean relative error, if κ hardly
varies)."""
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Fractions of the layers, the worst first, to try in float32."""
OPERATORS = ("Conv", "Add", "MaxPool")
"""Operators of the backbone. The others (norms, GeM, projection, κ) are cheap and stay in float32."""


class Loss(NamedTuple):
    """Difference between int8 and the original on the sample images."""

    cosine: float
    """Mean cosine with the original descriptors."""
    ranks: float
    """Rank correlation of κ; 1 without κ."""
    kappa: float
    """Mean relative error of κ."""

    @property
    def good(self) -> bool:
        return self.cosine >= COSINE and (self.ranks >= RANKS or self.kappa <= KAPPA_ERROR)


class Quantization(NamedTuple):
    """Result of a conversion to int8."""

    loss: Loss
    """Difference from the original."""
    layers: int
    """Number of convolutions."""
    float_layers: int
    """Number of convolutions in float32."""
    images: int
    """Number of sample images."""


def check_image_count(images: Sequence[Source]) -> None:
    """Raise an error if there are too few images to measure ranges."""
    if len(images) < LEAST_IMAGES:
        raise KappaPlaceError(
            f"int8 needs at least {LEAST_IMAGES} sample images (better {IMAGES}), got {len(images)}. Pass a "
            "folder or table of typical images with --calibration-images."
        )


def quantize(
    file: Path, out: Path, images: Sequence[Source], preprocessing: Preprocessing, kappa: bool
) -> Quantization:
    """Write an int8 model (QDQ form) of a float model.

    Args:
        file: The float model.
        out: The file to write.
        images: Sample images.
        preprocessing: Preprocessing of the sample images.
        kappa: Whether the model has κ.

    Returns:
        The result; an error is raised if it differs too much from the float model.
    """
    sample = subsample(images, IMAGES)
    batches = [batch.images.contiguous() for batch in ImageLoader(sample, preprocessing, 1, normalize=True)]
    with quiet():
        writer = _Writer(file, out, batches)
        test = _Comparison(file, subsample(batches, TESTS), kappa)
        loss = test.loss(writer.write(()))
        float_layers: tuple[str, ...] = ()
        if not loss.good:
            trial = _Comparison(file, subsample(batches, TRIALS), kappa)
            losses = {
                name: trial.loss(writer.write([other for other in writer.layers if other != name]))
                for name in writer.layers
            }
            worst = sorted(writer.layers, key=lambda name: losses[name].cosine)
            for fraction in FRACTIONS:
                float_layers = tuple(worst[: round(fraction * len(worst))])
                if (loss := test.loss(writer.write(float_layers))).good:
                    break
    if not loss.good:
        raise KappaPlaceError(
            f"int8 changes this model too much: mean cosine {loss.cosine:.3f}, rank correlation of κ "
            f"{loss.ranks:.3f} (required: {COSINE} and {RANKS}). Pass more typical images, or omit --int8."
        )
    return Quantization(loss, len(writer.layers), len(float_layers), len(batches))


class _Writer:
    """Writer of int8 files, which measures the value ranges once."""

    def __init__(self, file: Path, out: Path, batches: Sequence[Tensor]) -> None:
        tools, onnx = imported("onnxruntime.quantization"), imported("onnx")
        self.file, self.out = file, out
        graph = onnx.load(file).graph
        self.layers = [node.name for node in graph.node if node.op_type == "Conv"]
        self.excluded = _after_backbone(graph)

        widened = out.with_name(f"{out.name}.widened.onnx")
        meter = tools.calibrate.create_calibrator(
            file,
            [*OPERATORS, "Clip", "Relu"],
            str(widened),
            calibrate_method=tools.CalibrationMethod.Percentile,
            extra_options={"percentile": PERCENTILE},
        )
        try:
            # One by one: the outputs of all layers are in memory until they are counted, and sizes may
            # differ.
            for batch in batches:
                meter.collect_data(SimpleNamespace(get_next=iter([{INPUT: batch.numpy()}, None]).__next__))
            self.ranges = meter.compute_data()
        finally:
            del meter
            widened.unlink(missing_ok=True)

    def write(self, float_layers: Sequence[str]) -> Path:
        """Write the model with these layers in float32."""
        onnx, tools = imported("onnx"), imported("onnxruntime.quantization")
        quantizer = imported("onnxruntime.quantization.qdq_quantizer").QDQQuantizer(
            onnx.load(self.file),
            per_channel=True,
            reduce_range=False,
            weight_qType=tools.QuantType.QInt8,
            activation_qType=tools.QuantType.QUInt8,
            tensors_range=self.ranges,
            nodes_to_quantize=None,
            nodes_to_exclude=[*self.excluded, *float_layers],
            op_types_to_quantize=list(OPERATORS),
            extra_options={},
        )
        quantizer.quantize_model()
        onnx.save(quantizer.model.model, self.out)
        return self.out


class _Comparison:
    """Comparison of files with the float model on the same images."""

    def __init__(self, file: Path, batches: Sequence[Tensor], kappa: bool) -> None:
        self.batches, self.names = batches, [DESCRIPTOR, *([KAPPA] if kappa else [])]
        self.expected = self._outputs(file)

    def loss(self, file: Path) -> Loss:
        expected, actual = self.expected, self._outputs(file)
        cosine = float((expected[0] * actual[0]).sum(1).mean())
        if len(expected) == 1:
            return Loss(cosine, 1.0, 0.0)
        ranks = float(spearmanr(expected[1], actual[1]).statistic)
        error = float(((actual[1] - expected[1]) / expected[1]).abs().mean())
        return Loss(cosine, ranks if np.isfinite(ranks) else 0.0, error)

    def _outputs(self, file: Path) -> list[Tensor]:
        runtime = OnnxRuntime(file.read_bytes(), str(file))
        rows = [runtime.run(batch, self.names) for batch in self.batches]
        return [torch.cat(column).double() for column in zip(*rows, strict=True)]


def subsample(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``count`` evenly spaced items, because neighboring frames are redundant."""
    step = max(len(items) / count, 1.0)
    return [items[int(i * step)] for i in range(min(count, len(items)))]


def _after_backbone(graph: GraphProto) -> list[str]:
    """Return the additions that do not join two feature maps: in norms, statistics and the head."""
    operators = {name: node.op_type for node in graph.node for name in node.output}
    maps = {"Conv", "Add", "Clip", "Relu", "MaxPool"}
    return [
        node.name
        for node in graph.node
        if node.op_type == "Add" and not all(operators.get(name) in maps for name in node.input)
    ]
