"""int8 after training: weights a channel, activations by the range of nearly all of them on a few images.

A few layers, mostly the first ones and those that see one channel at a time, lose more than all others
together. Where the whole backbone in int8 is too far from the original, each layer is tried alone, and the
worst ones stay in float32.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from kappaplace.data.images import Preprocessing, Source
from kappaplace.data.loader import ImageLoader
from kappaplace.errors import KappaPlaceError
from kappaplace.models.export.graph import INPUT
from kappaplace.models.exported import DESCRIPTOR, KAPPA, OnnxRuntime, imported

IMAGES, JUDGED, TRIED = 128, 48, 8
"""Images that ranges are taken from, that the result is judged by, and that each layer is tried on."""
LEAST_IMAGES = 16
PERCENTILE = 99.999
"""Of the activations that a range holds. The few beyond it are cut off: with room for the largest of all, a
ResNet-50's others would have so few steps that its κ lost its order."""
COSINE, RANKS, KAPPA_ERROR = 0.995, 0.99, 0.005
"""Good enough: mean cosine with the original, and rank correlation of κ (or its mean relative error, where
κ hardly varies)."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the layers that stay in float32, in the order of what they cost."""
OPERATORS = ("Conv", "Add", "MaxPool")
"""The backbone. What follows (norms, GeM, projection, κ) costs little and decides ranks: it stays float."""


class Loss(NamedTuple):
    """What int8 changes on the calibration images."""

    cosine: float
    """Mean cosine with the original descriptors."""
    ranks: float
    """Rank correlation of κ; 1 without κ."""
    kappa: float
    """Mean relative error of κ."""

    @property
    def good(self) -> bool:
        return self.cosine >= COSINE and (self.ranks >= RANKS or self.kappa <= KAPPA_ERROR)


class Quantised(NamedTuple):
    """How an int8 file came out."""

    loss: Loss
    layers: int
    kept: int
    """Convolutions in all, and those that stayed in float32."""
    images: int


def check_images(images: Sequence[Source]) -> None:
    """Refuse too few, before anything takes time."""
    if len(images) < LEAST_IMAGES:
        raise KappaPlaceError(
            f"int8 needs images to take its ranges from: at least {LEAST_IMAGES}, better {IMAGES}; got "
            f"{len(images)}. Give a folder or table of images like those in use with --calibration-images."
        )


def quantise(
    file: Path, out: Path, images: Sequence[Source], preprocessing: Preprocessing, kappa: bool
) -> Quantised:
    """Write an int8 model (QDQ form) beside a float one; refused where it is too far from it."""
    chosen = spread(images, IMAGES)
    batches = [batch.images.contiguous() for batch in ImageLoader(chosen, preprocessing, 1, normalise=True)]
    with _quiet():
        writer = _Writer(file, out, batches)
        judge = _Judge(file, spread(batches, JUDGED), kappa)
        loss = judge.of(writer.write(()))
        kept: tuple[str, ...] = ()
        if not loss.good:
            trial = _Judge(file, spread(batches, TRIED), kappa)
            alone = {
                name: trial.of(writer.write([other for other in writer.layers if other != name]))
                for name in writer.layers
            }
            worst = sorted(writer.layers, key=lambda name: alone[name].cosine)
            for share in SHARES:
                kept = tuple(worst[: round(share * len(worst))])
                if (loss := judge.of(writer.write(kept))).good:
                    break
    if not loss.good:
        raise KappaPlaceError(
            f"int8 changes this model too much: with half of its layers in float32 the mean cosine with the "
            f"original is {loss.cosine:.3f} and the rank correlation of κ {loss.ranks:.3f} on "
            f"{len(batches)} images (needed: {COSINE} and {RANKS}). Give more images like those in use, or "
            "export it without --int8."
        )
    return Quantised(loss, len(writer.layers), len(kept), len(batches))


class _Writer:
    """Ranges, measured once, and int8 files made with them."""

    def __init__(self, file: Path, out: Path, batches: Sequence[Tensor]) -> None:
        tools, onnx = imported("onnxruntime.quantization"), imported("onnx")
        self.file, self.out = file, out
        graph = onnx.load(file).graph
        self.layers = [node.name for node in graph.node if node.op_type == "Conv"]
        self.outside = _after_backbone(graph)

        class Reader(tools.CalibrationDataReader):  # type: ignore[name-defined]
            def __init__(self, batch: Tensor) -> None:
                self.left = iter([batch])

            def get_next(self) -> dict[str, Any] | None:
                batch = next(self.left, None)
                return None if batch is None else {INPUT: batch.numpy()}

        widened = out.with_name(f"{out.name}.widened.onnx")
        meter = tools.calibrate.create_calibrator(
            file,
            [*OPERATORS, "Clip", "Relu"],
            str(widened),
            calibrate_method=tools.CalibrationMethod.Percentile,
            extra_options={"percentile": PERCENTILE},
        )
        try:
            # One by one: all outputs of all layers are held until they are counted, and sizes may differ.
            for batch in batches:
                meter.collect_data(Reader(batch))
            self.ranges = meter.compute_data()
        finally:
            del meter
            widened.unlink(missing_ok=True)

    def write(self, kept: Sequence[str]) -> Path:
        """The model with these layers in float32."""
        onnx, tools = imported("onnx"), imported("onnxruntime.quantization")
        made = imported("onnxruntime.quantization.qdq_quantizer").QDQQuantizer(
            onnx.load(self.file),
            per_channel=True,
            reduce_range=False,
            weight_qType=tools.QuantType.QInt8,
            activation_qType=tools.QuantType.QUInt8,
            tensors_range=self.ranges,
            nodes_to_quantize=None,
            nodes_to_exclude=[*self.outside, *kept],
            op_types_to_quantize=list(OPERATORS),
            extra_options={},
        )
        made.quantize_model()
        onnx.save(made.model.model, self.out)
        return self.out


class _Judge:
    """Compares a file with the float one on the same images."""

    def __init__(self, file: Path, batches: Sequence[Tensor], kappa: bool) -> None:
        self.batches, self.names = batches, [DESCRIPTOR, *([KAPPA] if kappa else [])]
        self.expected = self._outputs(file)

    def of(self, file: Path) -> Loss:
        wanted, got = self.expected, self._outputs(file)
        cosine = float((wanted[0] * got[0]).sum(1).mean())
        if len(wanted) == 1:
            return Loss(cosine, 1.0, 0.0)
        ranks = float(spearmanr(wanted[1], got[1]).statistic)
        error = float(((got[1] - wanted[1]) / wanted[1]).abs().mean())
        return Loss(cosine, ranks if np.isfinite(ranks) else 0.0, error)

    def _outputs(self, file: Path) -> list[Tensor]:
        runtime = OnnxRuntime(file.read_bytes(), str(file))
        rows = [runtime.run(batch, self.names) for batch in self.batches]
        return [torch.cat(column).double() for column in zip(*rows, strict=True)]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """So many of them, evenly: neighbouring frames say the same."""
    step = max(len(items) / count, 1.0)
    return [items[int(i * step)] for i in range(min(count, len(items)))]


def _after_backbone(graph: Any) -> list[str]:
    """Additions that do not join two feature maps: those of norms, statistics and the head."""
    made_by = {name: node.op_type for node in graph.node for name in node.output}
    maps = {"Conv", "Add", "Clip", "Relu", "MaxPool"}
    return [
        node.name
        for node in graph.node
        if node.op_type == "Add" and not all(made_by.get(name) in maps for name in node.input)
    ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
