"""The exported graph, and its files for ONNX Runtime and OpenVINO.

The graph maps normalized images to descriptor, κ and patch maps. OpenVINO has two files, .xml and .bin, which
are stored in one uncompressed zip file. KappaPlace reads the zip file; other programs need the two files that
``unzip`` extracts.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason
from kappaplace.models.backbones.convolutional import SameConv2d, same_conv
from kappaplace.models.checkpoint import SMALL
from kappaplace.models.exported import BIN, DESCRIPTOR, KAPPA, KEY, PATCHES, VARIANCE, XML, imported
from kappaplace.models.fast import probe_images
from kappaplace.models.fast.fused import fold_batch_norms
from kappaplace.models.heads import Head, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel

if TYPE_CHECKING:
    from onnxscript.tensor import Tensor as Symbol
    from torch.export.dynamic_shapes import Dim

INPUT = "images"


class ExportGraph(nn.Module):
    """A copy of a model in its inference form; its outputs are a tuple, named by ``outputs``."""

    def __init__(self, model: PlaceModel, patches: bool) -> None:
        super().__init__()
        self.outputs = output_names(model, patches)
        plain = copy.deepcopy(model).cpu().float().eval().requires_grad_(False)
        if isinstance(plain.head, MirroredKappaHead) and plain.head.spread == "kappa":
            plain = plain.fold().eval()
        fold_batch_norms(plain.backbone, probe_images(model.preprocessing, 1))
        self.recorder = RecordingBackbone(plain.backbone) if patches else None
        if self.recorder is not None:
            plain.backbone = self.recorder
        self.model = plain

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute descriptors B×d, κ (or variance) B, and patch maps B×C×h×w, if there are any."""
        outputs = tuple(part for part in self.model(images) if part is not None)
        return outputs if self.recorder is None else (*outputs, self.recorder.maps.pop())


class RecordingBackbone(nn.Module):
    """A backbone that records its patch map, so that its stages are computed once for both outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.maps: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_stages(images)[0]

    def forward_stages(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the feature map of every stage before it."""
        last, maps = self.backbone.forward_stages(images)  # type: ignore[operator]
        self.maps[:] = [maps[self.backbone.patch_stage]]
        return last, maps


def output_names(model: PlaceModel, patches: bool) -> tuple[str, ...]:
    """Return the names of the outputs, in order."""
    spread: tuple[str, ...] = ()
    if model.head is not None:
        kappa = isinstance(model.head, Head) and model.head.spread == "kappa"
        spread = (KAPPA,) if kappa else (VARIANCE,)
    return (DESCRIPTOR, *spread, *((PATCHES,) if patches else ()))


@torch.library.custom_op("kappaplace::same_conv2d", mutates_args=())
def same_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    """Compute a strided convolution with padding to ⌈size/stride⌉; see `same_conv`."""
    return same_conv(x, weight, bias, (stride, stride), groups)


@same_conv2d.register_fake
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, groups: int) -> Tensor:
    height, width = ((side + stride - 1) // stride for side in x.shape[-2:])
    return x.new_empty(x.shape[0], weight.shape[0], height, width)


class OneOperator(nn.Module):
    """A `SameConv2d` that exports as a single operator."""

    def __init__(self, layer: SameConv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.groups = layer.stride[0], layer.groups

    def forward(self, x: Tensor) -> Tensor:
        return same_conv2d(x, self.weight, self.bias, self.stride, self.groups)


def with_one_operator(module: nn.Module) -> nn.Module:
    """Replace every `SameConv2d` of a module in place; return the module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SameConv2d):
                setattr(parent, name, OneOperator(child))
    return module


def translations(opset: int) -> dict[Callable[..., Tensor], Callable[..., Symbol]]:
    """Return the ONNX form of the operator: a Conv with auto_pad SAME_UPPER, which is equivalent."""
    import onnxscript

    op = getattr(onnxscript, f"opset{opset}")

    def conv(x: Symbol, weight: Symbol, bias: Symbol, stride: int, groups: int) -> Symbol:
        return op.Conv(x, weight, bias, auto_pad="SAME_UPPER", strides=[stride, stride], group=groups)

    return {torch.ops.kappaplace.same_conv2d.default: conv}


OPSET = 18
"""Opset that torch's exporter writes; runtimes since 2023 support it."""
LEAST_SIDE = 32
"""Smallest side of an image: smaller images have no feature map at stride 32."""


def write_onnx(graph: ExportGraph, example: Tensor, file: Path, *, dynamic_size: bool = True) -> None:
    """Write a graph for batches of any size.

    Args:
        graph: The graph.
        example: A batch of images.
        file: The file to write.
        dynamic_size: Whether the images may have any size.
    """
    imported("onnx")
    imported("onnxscript")
    dims: dict[int, Dim] = {0: torch.export.Dim("batch")}
    if dynamic_size:
        dims |= {
            2: torch.export.Dim("height", min=LEAST_SIDE),
            3: torch.export.Dim("width", min=LEAST_SIDE),
        }
    try:
        with quiet("torch.onnx"):
            torch.onnx.export(
                with_one_operator(graph),
                (example,),
                file,
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(graph.outputs),
                dynamic_shapes=(dims,),
                custom_translation_table=translations(OPSET),
                external_data=False,
                verbose=False,
            )
    except OSError:
        raise
    except Exception as error:  # the exporter has one class per step
        raise KappaPlaceError(
            f"Cannot export this model to ONNX ({reason(error)}). Choose another model."
        ) from None


def halve_weights(file: Path) -> None:
    """Store large weights in float16, each with a cast that runtimes run once, when they load the file."""
    onnx = imported("onnx")
    model = onnx.load(file)
    graph, casts = model.graph, []
    for weight in graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size <= SMALL:
            continue
        halved = values.astype(np.float16)
        if not np.isfinite(halved).all():
            continue
        name = weight.name
        weight.CopyFrom(onnx.numpy_helper.from_array(halved, f"{name}.half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, file)


def put_record(file: Path, text: str) -> None:
    """Write the record into the file's metadata."""
    onnx = imported("onnx")
    model = onnx.load(file)
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {KEY: text})
    model.producer_name = KEY
    onnx.save(model, file)


@contextlib.contextmanager
def quiet(name: str | None = None) -> Iterator[None]:
    """Hide the output of an exporter, which is for its developers; the parity check reports problems."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def convert(onnx_file: Path, file: Path, text: str, *, half: bool = False) -> None:
    """Convert an ONNX file to OpenVINO.

    Args:
        onnx_file: The ONNX file, in float32 or int8.
        file: The zip file to write.
        text: Record of the file as JSON.
        half: Whether to store the weights in float16.
    """
    ov = imported("openvino")
    model = ov.Core().read_model(onnx_file)
    model.set_rt_info(text, KEY)
    with TemporaryDirectory(dir=file.parent, prefix=".openvino-") as folder:
        ov.save_model(model, Path(folder) / XML, compress_to_fp16=half)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as parts:
            for name in (XML, BIN):
                parts.write(Path(folder) / name, name)
