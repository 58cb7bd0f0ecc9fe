"""Export of models for other runtimes: one file for ONNX Runtime or OpenVINO, compared with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kappaplace.checks import choice
from kappaplace.data.images import Preprocessing, Source
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, not_written, reason, replace_file, sha256_of
from kappaplace.models.backbones import backbone_spec
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding import evaluation_mode
from kappaplace.models.export.formats import (
    OPSET,
    ExportGraph,
    convert,
    halve_weights,
    put_record,
    write_onnx,
)
from kappaplace.models.export.quantize import Quantization, check_image_count, quantize
from kappaplace.models.exported import (
    BLANK,
    KAPPA,
    ExportedModel,
    ExportRecord,
    imported,
    load_exported,
    with_checksum,
)
from kappaplace.models.fast import ANY_SIDE, fidelity, probe_images
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings, Json
from kappaplace.version import package_version

Format = Literal["onnx", "openvino"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "openvino": ".zip"}
TOLERANCES = {"float32": (1e-5, 1e-3), "float16": (1e-4, 1e-2)}
"""Largest 1 − cosine and largest relative difference of κ, by precision. int8 is compared on real images."""


class Gap(NamedTuple):
    """Difference between file and model on one batch."""

    batch: int
    """Number of images."""
    height: int
    """Height of the images in pixels."""
    width: int
    """Width of the images in pixels."""
    descriptor: float
    """Largest 1 − cosine of the two descriptors of an image."""
    spread: float
    """Largest relative difference of κ (or a variance)."""
    patches: float
    """Largest 1 − cosine of the patch maps of an image; 0 without patch maps."""

    @property
    def sentence(self) -> str:
        """The differences as text."""
        return (
            f"{self.batch} × {self.height}×{self.width}: descriptor 1 − cosine {self.descriptor:.1e}, "
            f"κ {self.spread:.1e}, patches 1 − cosine {self.patches:.1e}"
        )


class Exported(NamedTuple):
    """An exported file."""

    file: Path
    """The file."""
    record: ExportRecord
    """Record stored in the file."""
    gaps: list[Gap]
    """Differences from the model; empty for int8, see ``quantized``."""
    quantized: Quantization | None
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
    license: str = "not stated"
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
    choice(format, Format, "format")
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(
            "Only models of kappaplace (backbone, GeM, head) can be exported, not hub encoders or "
            "exported files. Pass a model folder, a CosPlace file or a name."
        )
    file = Path(out)
    if file.suffix.lower() != SUFFIXES[format]:
        raise KappaPlaceError(f"An {format} file must end in {SUFFIXES[format]}, got {file.name}.")
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
    """One export in a temporary folder."""

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
            license=options.license,
            kappaplace=package_version(),
        )

    def finish(self, part: Path) -> Exported:
        """Write the file, compare it with the model, and write it again with the differences."""
        record = self._record()
        self._write(part, record)
        opened, differences = load_exported(part), []
        if self.quantization is None:
            differences = gaps(self.model, opened)
            check_gaps(differences, record.precision, str(self.file))
            names = ("descriptor", "spread", "patches")
            parity = {name: max(getattr(gap, name) for gap in differences) for name in names}
        else:  # an int8 file was compared on real images, here it must only open
            parity = self.quantization.loss._asdict()
        record = replace(record, parity=parity)
        self._write(part, record)
        return Exported(self.file, record, differences, self.quantization)

    def _write(self, part: Path, record: ExportRecord) -> None:
        if self.format == "openvino":
            convert(self.onnx, part, record.to_json(), half=self.options.half)
            return
        put_record(self.onnx, replace(record, content=BLANK).to_json())
        content = self.onnx.read_bytes()
        part.write_bytes(with_checksum(content, BLANK, hashlib.sha256(content).hexdigest()))


def _check_installed(format: Format) -> None:
    """Check that the required packages are installed, before minutes of work."""
    for package in ("onnx", "onnxscript", "onnxruntime" if format == "onnx" else "openvino"):
        imported(package)


def gaps(model: PlaceModel, exported: ExportedModel) -> list[Gap]:
    """Compare file and model on one image, on three, and on two of another size if the file accepts it."""
    results = []
    for count, size in cases(model.preprocessing, exported.record.size is not None):
        images = probe_images(model.preprocessing, count, size)
        with torch.inference_mode():
            pair = fidelity(model(images), _run(exported, images))
            patches = 0.0
            if exported.shows_patches:
                expected, actual = (x.patch_maps(images).flatten(1).double() for x in (model, exported))
                patches = max(1.0 - float(torch.cosine_similarity(expected, actual).min()), 0.0)
        height, width = images.shape[-2:]
        results.append(Gap(count, height, width, max(1.0 - pair.cosine, 0.0), pair.spread, patches))
    return results


def _run(exported: ExportedModel, images: Tensor) -> Embeddings:
    try:
        return exported(images)
    except Exception as error:  # each runtime has its own classes for a batch that its graph does not accept
        shape = " × ".join(map(str, images.shape))
        raise KappaPlaceError(
            f"The exported graph does not accept a batch of {shape} ({reason(error)}). Choose another format."
        ) from None


def cases(preprocessing: Preprocessing, fixed: bool) -> list[tuple[int, tuple[int, int]]]:
    """Return batch and image sizes to compare; the last image size is odd and not square."""
    height, width = preprocessing.fixed_size or (ANY_SIDE, ANY_SIDE)
    own_size = [(1, (height, width)), (3, (height, width))]
    return own_size if fixed else [*own_size, (2, (height * 3 // 4 | 1, width * 5 // 8 | 1))]


def check_gaps(differences: Sequence[Gap], precision: str, file: str) -> None:
    """Raise an error if a file differs from its model beyond the tolerance, or if a difference is NaN.

    Args:
        differences: Differences on each batch.
        precision: float32 or float16.
        file: Name of the file, for the message.
    """
    descriptor, spread = TOLERANCES[precision]
    for gap in differences:
        if not (gap.descriptor <= descriptor and gap.spread <= spread and gap.patches <= descriptor):
            raise KappaPlaceError(
                f"{file} was not written: it differs from the model beyond the tolerance ({gap.sentence}; "
                f"allowed: {descriptor:.0e} and {spread:.0e}). Choose another format or precision."
            )
