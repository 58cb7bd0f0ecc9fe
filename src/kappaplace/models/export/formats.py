"""Files for ONNX Runtime and OpenVINO.

OpenVINO has two files, .xml and .bin, which are stored in one uncompressed zip file. kappaplace reads the
zip; other programs need the files that ``unzip`` extracts.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import SMALL
from kappaplace.models.export.graph import INPUT, ExportGraph, translations, with_one_operator
from kappaplace.models.exported import BIN, KEY, XML, imported

if TYPE_CHECKING:
    from torch.export.dynamic_shapes import Dim

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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise KappaPlaceError(f"This model cannot be written as ONNX ({reason}).") from None


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
