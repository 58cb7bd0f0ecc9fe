"""Models for other runtimes: one file each in ONNX, OpenVINO or TorchScript, checked against the original.

`export_model`: a model as one file for another runtime, checked before it appears.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, get_args

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, not_written, replace_file, sha256_of
from kappaplace.models.backbones import backbone_spec
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.export.formats import (
    OPSET,
    convert,
    halve_weights,
    put_record,
    write_onnx,
    write_torchscript,
)
from kappaplace.models.export.graph import ExportGraph, probe_images
from kappaplace.models.export.parity import Gap, check, gaps
from kappaplace.models.export.quantize import Quantised, check_images, quantise
from kappaplace.models.exported import KAPPA, ExportRecord, imported, load_exported
from kappaplace.models.place_model import PlaceModel
from kappaplace.version import package_version

Format = Literal["onnx", "openvino", "torchscript"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "openvino": ".zip", "torchscript": ".pt"}


class Exported(NamedTuple):
    """A finished file."""

    file: Path
    record: ExportRecord
    gaps: list[Gap]
    """Empty for int8, which `quantised` judges."""
    quantised: Quantised | None


def export_model(
    model: AnyModel,
    out: str | Path,
    format: Format = "onnx",
    *,
    half: bool = False,
    int8_images: Sequence[Source] | None = None,
    patches: bool = True,
    calibration: Calibration | None = None,
    name: str = "",
    licence: str = "not stated",
) -> Exported:
    """Write a model for another runtime; a file that does not say what the model says is not left behind.

    Args:
        model: A PlaceModel; other encoders have exporters of their own.
        format: onnx; openvino (its two files in one zip); torchscript.
        half: Large weights in float16; OpenVINO then also computes in half precision where it can.
        int8_images: Makes an int8 model; its ranges come from these images.
        patches: Give patch maps, which `verify` compares, where the backbone has them.
        calibration: Of this model; goes into the record.
    """
    if format not in get_args(Format):
        raise KappaPlaceError(f"Unknown format '{format}'; choose one of: {', '.join(get_args(Format))}.")
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(
            "Only models of kappaplace's own form can be exported (backbone, GeM, head), not hub encoders or "
            "files that were exported already; give a model folder, a CosPlace file or a name."
        )
    if format == "torchscript" and (half or int8_images is not None):
        raise KappaPlaceError("TorchScript files are float32; use onnx or openvino for --half and --int8.")
    if half and int8_images is not None:
        raise KappaPlaceError("Choose --half or --int8: int8 weights are smaller already.")
    file = Path(out)
    if file.suffix.lower() != SUFFIXES[format]:
        raise KappaPlaceError(
            f"A file for {format} ends in {SUFFIXES[format]}, so that it is told again; got {file.name}."
        )
    if int8_images is not None:
        check_images(int8_images)
    make_folder(file.parent)
    _check_installed(format)
    was_training = model.training
    model.eval()
    try:
        with TemporaryDirectory(dir=file.parent, prefix=".export-") as work:
            job = _Job(model, format, Path(work), half, int8_images, patches, str(file))
            record = job.record(name, licence, calibration)
            made: list[Exported] = []
            replace_file(file, lambda part: made.append(job.finish(part, file, record)))
    except OSError as error:  # the graph and its parts are written before the file
        raise not_written(file, error) from None
    finally:
        model.train(was_training)
    return made[0]


class _Job:
    """One export in a folder of its own: the graph, its parts, the file."""

    def __init__(
        self,
        model: PlaceModel,
        format: Format,
        work: Path,
        half: bool,
        int8_images: Sequence[Source] | None,
        patches: bool,
        where: str,
    ) -> None:
        self.model, self.format, self.work, self.half, self.where = model, format, work, half, where
        self.graph = ExportGraph(model, patches and model.shows_patches)
        self.example = probe_images(model.preprocessing, 2)
        self.fixed = backbone_spec(model.architecture.backbone).strict_stride
        self.quantised: Quantised | None = None
        self.onnx = work / "model.onnx"
        if format == "torchscript":
            return
        write_onnx(self.graph, self.example, self.onnx, dynamic_size=not self.fixed)
        if int8_images is not None:
            small = work / "int8.onnx"
            kappa = KAPPA in self.graph.outputs
            self.quantised = quantise(self.onnx, small, int8_images, model.preprocessing, kappa)
            self.onnx = small
        elif half and format == "onnx":
            halve_weights(self.onnx)

    def record(self, name: str, licence: str, calibration: Calibration | None) -> ExportRecord:
        source = self.model.fingerprint
        int8 = self.quantised is not None
        own = f"{source} int8 {self.format} {sha256_of(self.onnx)}" if int8 else ""
        fixed = tuple(self.example.shape[-2:]) if self.fixed else None
        return ExportRecord(
            name=name or self.model.architecture.backbone,
            # Descriptors of int8 are others, so it is a model of its own: no map may mix both.
            fingerprint=hashlib.sha256(own.encode()).hexdigest() if int8 else source,
            source=source,
            preprocessing=self.model.preprocessing.to_dict(),
            dim=self.model.dim,
            outputs=self.graph.outputs,
            precision="int8" if int8 else "float16" if self.half else "float32",
            opset=None if self.format == "torchscript" else OPSET,
            size=fixed,  # type: ignore[arg-type]
            # Nor do probabilities of the original hold for int8: its scores are others.
            calibration=None if calibration is None or int8 else calibration.to_dict(),
            licence=licence,
            kappaplace=package_version(),
        )

    def finish(self, part: Path, file: Path, record: ExportRecord) -> Exported:
        """Write, compare, and write again with what was found."""
        self._write(part, record)
        found: list[Gap] = []
        if self.quantised is None:
            found = gaps(self.model, load_exported(part))
            check(found, record.precision, self.where)
            parity = {
                key: max(getattr(gap, key) for gap in found) for key in ("descriptor", "spread", "patches")
            }
        else:
            load_exported(part)  # an int8 file was judged on real images; here it must only open
            parity = self.quantised.loss._asdict()
        record = replace(record, parity=parity)
        self._write(part, record)
        return Exported(file, record, found, self.quantised)

    def _write(self, part: Path, record: ExportRecord) -> None:
        text = record.to_json()
        if self.format == "torchscript":
            write_torchscript(self.graph, self.example, part, text)
        elif self.format == "openvino":
            convert(self.onnx, part, text, half=self.half)
        else:
            put_record(self.onnx, text)
            part.write_bytes(self.onnx.read_bytes())


def _check_installed(format: Format) -> None:
    """Before minutes of work: what will be needed at its end."""
    needed = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("onnx", "onnxscript", "openvino")}
    for package in needed.get(format, ()):
        imported(package)
