"""Models for other runtimes: one file for ONNX Runtime or OpenVINO, compared with the original."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, get_args

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
)
from kappaplace.models.export.graph import ExportGraph, probe_images
from kappaplace.models.export.parity import Gap, check, gaps
from kappaplace.models.export.quantize import Quantised, check_images, quantise
from kappaplace.models.exported import KAPPA, ExportRecord, imported, load_exported
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Json
from kappaplace.version import package_version

Format = Literal["onnx", "openvino"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "openvino": ".zip"}


class Exported(NamedTuple):
    """A finished file."""

    file: Path
    record: ExportRecord
    gaps: list[Gap]
    """Empty for int8, which `quantised` judges."""
    quantised: Quantised | None


@dataclass(frozen=True)
class ExportOptions:
    """What is written into an exported file.

    Raises:
        KappaPlaceError: If options exclude each other.
    """

    half: bool = False
    """Store large weights in float16; OpenVINO then also computes in half precision where it can."""
    int8_images: Sequence[Source] | None = None
    """Images to take the ranges of an int8 model from. Default: no int8."""
    patches: bool = True
    """Add patch maps for re-ranking, where the backbone has them."""
    calibration: Mapping[str, Json] | None = None
    """A calibration of this model, as `Calibration.to_dict` returns it."""
    name: str = ""
    """Name in the record. Default: that of the backbone."""
    licence: str = "not stated"

    def __post_init__(self) -> None:
        if self.half and self.int8_images is not None:
            raise KappaPlaceError("Choose --half or --int8: int8 weights are smaller already.")
        if self.int8_images is not None:
            check_images(self.int8_images)


def export_model(
    model: AnyModel, out: str | Path, format: Format = "onnx", options: ExportOptions | None = None
) -> Exported:
    """Write a model for another runtime; a file that differs from the model is not kept.

    Args:
        model: A `PlaceModel`; other encoders have exporters of their own.
        out: The file: .onnx, or .zip for OpenVINO.
        format: onnx or openvino.
        options: What is written.

    Returns:
        The file, its record and how far it is from the model.

    Raises:
        KappaPlaceError: If the model cannot be exported, or the file differs from it beyond the tolerance.
    """
    options = options or ExportOptions()
    if format not in get_args(Format):
        raise KappaPlaceError(f"Unknown format '{format}'; choose one of: {', '.join(get_args(Format))}.")
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(
            "Only models of kappaplace's own form can be exported (backbone, GeM, head), not hub encoders or "
            "files that were exported already; give a model folder, a CosPlace file or a name."
        )
    file = Path(out)
    if file.suffix.lower() != SUFFIXES[format]:
        raise KappaPlaceError(
            f"A file for {format} ends in {SUFFIXES[format]}, so that it is told again; got {file.name}."
        )
    make_folder(file.parent)
    _check_installed(format)
    was_training = model.training
    model.eval()
    try:
        with TemporaryDirectory(dir=file.parent, prefix=".export-") as work:
            job = _Job(model, format, Path(work), options, str(file))
            record = job.record()
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
        options: ExportOptions,
        where: str,
    ) -> None:
        self.model, self.format, self.options, self.where = model, format, options, where
        self.graph = ExportGraph(model, options.patches and model.shows_patches)
        self.example = probe_images(model.preprocessing, 2)
        self.fixed = backbone_spec(model.architecture.backbone).strict_stride
        self.quantised: Quantised | None = None
        self.onnx = work / "model.onnx"
        write_onnx(self.graph, self.example, self.onnx, dynamic_size=not self.fixed)
        if options.int8_images is not None:
            small = work / "int8.onnx"
            kappa = KAPPA in self.graph.outputs
            self.quantised = quantise(self.onnx, small, options.int8_images, model.preprocessing, kappa)
            self.onnx = small
        elif options.half and format == "onnx":
            halve_weights(self.onnx)

    def record(self) -> ExportRecord:
        options, source = self.options, self.model.fingerprint
        int8 = self.quantised is not None
        own = f"{source} int8 {self.format} {sha256_of(self.onnx)}" if int8 else ""
        fixed = tuple(self.example.shape[-2:]) if self.fixed else None
        return ExportRecord(
            name=options.name or self.model.architecture.backbone,
            # Descriptors of int8 are others, so it is a model of its own: no map may mix both.
            fingerprint=hashlib.sha256(own.encode()).hexdigest() if int8 else source,
            source=source,
            preprocessing=self.model.preprocessing.to_dict(),
            dim=self.model.dim,
            outputs=self.graph.outputs,
            precision="int8" if int8 else "float16" if options.half else "float32",
            opset=OPSET,
            size=fixed,  # type: ignore[arg-type]
            # Nor do probabilities of the original hold for int8: its scores are others.
            calibration=None if options.calibration is None or int8 else dict(options.calibration),
            licence=options.licence,
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
        if self.format == "openvino":
            convert(self.onnx, part, text, half=self.options.half)
        else:
            put_record(self.onnx, text)
            part.write_bytes(self.onnx.read_bytes())


def _check_installed(format: Format) -> None:
    """Before minutes of work: what will be needed at its end."""
    for package in ("onnx", "onnxscript", "onnxruntime" if format == "onnx" else "openvino"):
        imported(package)
