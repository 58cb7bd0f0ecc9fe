"""Export of models for other runtimes: one file for ONNX Runtime or OpenVINO, compared with the model."""

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
from kappaplace.models.embedding import evaluation_mode
from kappaplace.models.export.formats import OPSET, convert, halve_weights, put_record, write_onnx
from kappaplace.models.export.graph import ExportGraph
from kappaplace.models.export.parity import Gap, check, gaps
from kappaplace.models.export.quantize import Quantization, check_image_count, quantize
from kappaplace.models.exported import KAPPA, ExportRecord, imported, load_exported
from kappaplace.models.fast import probe_images
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Json
from kappaplace.version import package_version

Format = Literal["onnx", "openvino"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "openvino": ".zip"}


class Exported(NamedTuple):
    """An exported file."""

    file: Path
    """The file."""
    record: ExportRecord
    """Its record."""
    gaps: list[Gap]
    """Differences from the model; empty for int8, see ``quantised``."""
    quantised: Quantization | None
    """Result of the conversion to int8; None if there was none."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of an exported file.

    Raises:
        KappaPlaceError: If options exclude each other.
    """

    half: bool = False
    """Store large weights in float16; OpenVINO then also computes in half precision if it can."""
    int8_images: Sequence[Source] | None = None
    """Images to measure the value ranges of an int8 model. Default: no int8."""
    patches: bool = True
    """Add patch maps for re-ranking, if the backbone has them."""
    calibration: Mapping[str, Json] | None = None
    """A calibration of this model, as `Calibration.to_dict` returns it."""
    name: str = ""
    """Name in the record. Default: name of the backbone."""
    licence: str = "not stated"
    """License of the weights."""

    def __post_init__(self) -> None:
        if self.half and self.int8_images is not None:
            raise KappaPlaceError("Pass only one of --half or --int8. Files in int8 are smaller.")
        if self.int8_images is not None:
            check_image_count(self.int8_images)


def export_model(
    model: AnyModel, out: str | Path, format: Format = "onnx", options: ExportOptions | None = None
) -> Exported:
    """Write a model for another runtime; a file that differs from the model is not kept.

    Args:
        model: A `PlaceModel`; other encoders are not supported.
        out: The file: .onnx, or .zip for OpenVINO.
        format: onnx or openvino.
        options: Options of the file.

    Returns:
        The file, its record and its differences from the model.

    Raises:
        KappaPlaceError: If the model cannot be exported, or if the file differs from it beyond the tolerance.
    """
    options = options or ExportOptions()
    if format not in get_args(Format):
        raise KappaPlaceError(f"Unknown format '{format}'. Choose from: {', '.join(get_args(Format))}.")
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(
            "Only kappaplace's own models (backbone, GeM, head) can be exported, not hub encoders or "
            "exported files. Pass a model folder, a CosPlace file or a name."
        )
    file = Path(out)
    if file.suffix.lower() != SUFFIXES[format]:
        raise KappaPlaceError(
            f"The name of an {format} file must end in {SUFFIXES[format]}, got {file.name}."
        )
    make_folder(file.parent)
    _check_installed(format)
    results: list[Exported] = []
    try:
        with evaluation_mode(model), TemporaryDirectory(dir=file.parent, prefix=".export-") as work:
            job = _Job(model, format, Path(work), options, file)
            replace_file(file, lambda part: results.append(job.finish(part)))
    except OSError as error:  # the graph is written before the file
        raise not_written(file, error) from None
    return results[0]


class _Job:
    """One export in its own temporary folder."""

    def __init__(
        self, model: PlaceModel, format: Format, work: Path, options: ExportOptions, file: Path
    ) -> None:
        self.model, self.format, self.options, self.file = model, format, options, file
        self.graph = ExportGraph(model, options.patches and model.shows_patches)
        self.quantization: Quantization | None = None
        self.onnx = work / "model.onnx"
        example = probe_images(model.preprocessing, 2)
        fixed = backbone_spec(model.architecture.backbone).strict_stride
        self.size = (example.shape[-2], example.shape[-1]) if fixed else None
        write_onnx(self.graph, example, self.onnx, dynamic_size=not fixed)
        if options.int8_images is not None:
            small = work / "int8.onnx"
            kappa = KAPPA in self.graph.outputs
            self.quantization = quantize(self.onnx, small, options.int8_images, model.preprocessing, kappa)
            self.onnx = small
        elif options.half and format == "onnx":
            halve_weights(self.onnx)

    def _record(self) -> ExportRecord:
        options, source = self.options, self.model.fingerprint
        int8 = self.quantization is not None
        own = f"{source} int8 {self.format} {sha256_of(self.onnx)}" if int8 else ""
        return ExportRecord(
            name=options.name or self.model.architecture.backbone,
            # Descriptors of int8 differ, so it is a separate model: no map may mix both.
            fingerprint=hashlib.sha256(own.encode()).hexdigest() if int8 else source,
            source=source,
            preprocessing=self.model.preprocessing.to_dict(),
            dim=self.model.dim,
            outputs=self.graph.outputs,
            precision="int8" if int8 else "float16" if options.half else "float32",
            opset=OPSET,
            size=self.size,
            # The calibration of the model does not apply to int8, because its scores differ.
            calibration=None if options.calibration is None or int8 else dict(options.calibration),
            licence=options.licence,
            kappaplace=package_version(),
        )

    def finish(self, part: Path) -> Exported:
        """Write the file, compare it with the model, and write it again with the differences."""
        record = self._record()
        self._write(part, record)
        opened, differences = load_exported(part), []
        if self.quantization is None:
            differences = gaps(self.model, opened)
            check(differences, record.precision, str(self.file))
            names = ("descriptor", "spread", "patches")
            parity = {name: max(getattr(gap, name) for gap in differences) for name in names}
        else:  # an int8 file was compared on real images, here it must only open
            parity = self.quantization.loss._asdict()
        record = replace(record, parity=parity)
        self._write(part, record)
        return Exported(self.file, record, differences, self.quantization)

    def _write(self, part: Path, record: ExportRecord) -> None:
        text = record.to_json()
        if self.format == "openvino":
            convert(self.onnx, part, text, half=self.options.half)
        else:
            put_record(self.onnx, text)
            part.write_bytes(self.onnx.read_bytes())


def _check_installed(format: Format) -> None:
    """Check the required packages before minutes of work."""
    for package in ("onnx", "onnxscript", "onnxruntime" if format == "onnx" else "openvino"):
        imported(package)
