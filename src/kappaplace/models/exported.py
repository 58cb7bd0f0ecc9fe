"""ExportedModel: a model file for another runtime, with the interface of a `PlaceModel`.

A file of `kappaplace export` contains a record with its preprocessing, the names of its outputs, its source
model and its calibration. Loading it requires the runtime, but not the code of the model.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import reason
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule, whitened_fingerprint
from kappaplace.records import from_plain, stored, to_plain
from kappaplace.types import Embeddings, Json

KEY = "kappaplace"
"""Key of the record in a file: in the metadata of ONNX, in rt_info of OpenVINO."""
XML, BIN = "model.xml", "model.bin"
"""Members of an OpenVINO model file: the two files that OpenVINO itself writes."""


Runtime: TypeAlias = "OnnxRuntime | OpenVino"
"""An opened model file: its ``content``, its record as JSON in ``text``, and ``run``."""


class OnnxRuntime:
    """ONNX Runtime on the CPU, with as many threads as torch."""

    def __init__(self, content: bytes, source: str) -> None:
        ort = imported("onnxruntime")
        self.content = content
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            self.text: str | None = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        except Exception as error:  # one class per stage of loading
            raise unreadable(source, error) from None

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        (first,) = self.session.get_inputs()
        outputs = self.session.run(list(names), {first.name: images.numpy()})
        return [torch.from_numpy(output) for output in outputs]


class OpenVino:
    """OpenVINO on the CPU, optimized for latency.

    It computes in float32 unless the file was exported in half precision. By default, OpenVINO uses bfloat16
    if the processor supports it, and κ would depend on the machine.
    """

    def __init__(self, content: bytes, source: str) -> None:
        ov = imported("openvino")
        self.content = content
        core = ov.Core()
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as parts:
                xml, weights = parts.read(XML), parts.read(BIN)
            model = core.read_model(xml, weights)
            self.text: str | None = (
                str(model.get_rt_info(KEY).astype(str)) if model.has_rt_info(KEY) else None
            )
            options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
            if _recorded(self.text, "precision") != "float16":
                options["INFERENCE_PRECISION_HINT"] = "f32"
            self.compiled = core.compile_model(model, "CPU", options)
        except Exception as error:  # a RuntimeError with a long message
            raise unreadable(source, error) from None
        self.request, self.busy = self.compiled.create_infer_request(), Lock()

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        with self.busy:  # a request serves one caller at a time
            self.request.infer([images.contiguous().numpy()])
            # Copied, because the request reuses its memory.
            return [torch.from_numpy(self.request.get_tensor(name).data.copy()) for name in names]


def kind_of(file: Path) -> type[OnnxRuntime] | type[OpenVino] | None:
    """Return the runtime of a file by its content; None if the file is not an exported model."""
    if file.suffix.lower() == ".onnx":
        return OnnxRuntime
    try:
        with zipfile.ZipFile(file) as parts:
            return _kind_of_zip(parts, str(file))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return None  # not a valid zip file


def _kind_of_zip(parts: zipfile.ZipFile, source: str) -> type[OpenVino] | None:
    names = parts.namelist()
    if any(name.endswith(f"/extra/{KEY}") for name in names):
        raise KappaPlaceError(
            f"The file {source} is a TorchScript export of an earlier version, which is no longer supported. "
            "Export the model again as ONNX."
        )
    return OpenVino if XML in names and BIN in names else None


def open_runtime(content: bytes, source: str) -> Runtime:
    """Open a model file with its runtime.

    Args:
        content: Content of the file.
        source: Name of the file, for messages.

    Returns:
        The opened file.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return OnnxRuntime(content, source)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            kind = _kind_of_zip(parts, source)
    except KappaPlaceError:
        raise
    except Exception as error:  # only the end of the file looks like a zip file
        raise unreadable(source, error) from None
    if kind is None:
        raise KappaPlaceError(f"The file {source} is not an exported model. Use `kappaplace export`.")
    return kind(content, source)


def imported(name: str) -> ModuleType:
    """Import a package of a runtime, or raise an error with the command that installs it."""
    return import_extra(name, f"The runtime {name}", "export")


def _recorded(text: str | None, key: str) -> Json:
    """Return one value of the record of a file; None if the record is missing or invalid."""
    try:
        return json.loads(text or "{}").get(key)
    except (ValueError, AttributeError):
        return None


def unreadable(source: str, error: Exception) -> KappaPlaceError:
    """Return the error for a file that its runtime cannot load."""
    return KappaPlaceError(
        f"The exported model {source} cannot be loaded ({reason(error)}). Export it again."
    )


FORMAT = 1
DESCRIPTOR, KAPPA, VARIANCE, PATCHES = "descriptor", "kappa", "variance", "patches"


@dataclass(frozen=True)
class ExportRecord:
    """Record of an exported file: a JSON object under the key ``kappaplace``."""

    name: str
    """Name of the model or its folder."""
    fingerprint: str
    """Checksum that identifies the model to a map; equal to ``source``, except for int8."""
    source: str
    """Fingerprint of the source model."""
    preprocessing: dict[str, Json]
    """Preprocessing of the images, as `Preprocessing.to_dict` returns it."""
    dim: int
    """Dimension of the descriptor."""
    outputs: tuple[str, ...]
    """Names of the outputs."""
    precision: str
    """float32, float16 (rounded weights, half precision if the machine supports it) or int8."""
    opset: int | None = None
    """ONNX opset; None in files of earlier versions."""
    size: tuple[int, int] | None = None
    """Only height and width that the graph accepts. None: any."""
    parity: dict[str, float] | None = None
    """Difference from the source model at export."""
    calibration: dict[str, Json] | None = None
    """A stored calibration of the source model, see `kappaplace.calibration.calibration`."""
    license: str = field(default="not stated", metadata=stored("licence"))
    """License of the weights."""
    kappaplace: str = ""
    """Version of kappaplace that wrote the file."""
    content: str = ""
    """Checksum of an ONNX file, computed while this field is `BLANK`. Empty for OpenVINO zip files."""
    format: int = FORMAT
    """Version of this record."""

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(to_plain(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None, source: str) -> ExportRecord:
        """Parse a record.

        Args:
            text: The JSON text. None: the file does not have a record.
            source: Name of the file, for messages.

        Returns:
            The record.
        """
        if not text:
            raise KappaPlaceError(
                f"{source} has no record of its preprocessing. Write it with `kappaplace export`."
            )
        try:
            values = json.loads(text)
            if values["format"] > FORMAT:
                raise KappaPlaceError(
                    f"The file {source} was exported by kappaplace {values.get('kappaplace')}, a newer "
                    "version. Upgrade kappaplace."
                )
            return from_plain(cls, values, newer=True)
        except (ValueError, KeyError, TypeError) as error:
            raise KappaPlaceError(f"{source} has a damaged record ({error!r}). Export it again.") from None


BLANK = "0" * 64
"""Placeholder in the record of a file until its checksum is computed."""


def with_checksum(content: bytes, before: str, after: str) -> bytes:
    """Return the content of a file with another checksum in its record."""
    old, new = (f'"content": "{checksum}"'.encode() for checksum in (before, after))
    return content.replace(old, new, 1)


class ExportedModel(EncoderModule):
    """An exported model on the CPU, with the same forward, ``embed`` and ``patch_maps`` as a `PlaceModel`.

    Args:
        runtime: The file, opened by its runtime.
        record: Record stored in the file.
        file: Path of the file.
    """

    head: None = None  # the head is part of the graph

    def __init__(self, runtime: Runtime, record: ExportRecord, file: str = "") -> None:
        super().__init__()
        self.runtime, self.record, self.file = runtime, record, file
        self.preprocessing = Preprocessing.from_dict(record.preprocessing)
        # `embed_images` reads device and type from a parameter.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        self.eval()

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.record.dim if self.whitening is None else self.whitening.dim

    @property
    def fingerprint(self) -> str:
        """Checksum in the record of the file, with that of the whitening if there is one."""
        return whitened_fingerprint(self.record.fingerprint, self.whitening)

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""
        return KAPPA in self.record.outputs

    @property
    def shows_patches(self) -> bool:  # type: ignore[override]
        """Whether the file has patch maps."""
        return PATCHES in self.record.outputs

    def forward(self, images: Tensor, patches: bool = False) -> Embeddings:
        """Compute descriptors B×d and κ of shape B from images B×3×H×W, normalized by ``preprocessing``.

        With ``patches``, the feature maps come from the same pass.
        """
        check_images(images)
        size = self.record.size
        if size is not None and tuple(images.shape[-2:]) != size:
            raise KappaPlaceError(
                f"The exported model {self.file} accepts only images of {size[0]}×{size[1]} pixels, got "
                f"{images.shape[-2]}×{images.shape[-1]}. Export it again with another preprocessing."
            )
        names = [name for name in self.record.outputs if patches or name != PATCHES]
        outputs = dict(zip(names, self.runtime.run(images, names), strict=True))
        return self.whitened(Embeddings(*(outputs.get(n) for n in (DESCRIPTOR, KAPPA, VARIANCE, PATCHES))))

    def train(self, mode: bool = True) -> ExportedModel:
        """Stay in evaluation mode: an exported model cannot be trained."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ExportedModel:
        super()._apply(fn, recurse)
        device = self.place.device
        if device.type != "cpu":
            self.place = nn.Parameter(torch.empty(0), requires_grad=False)
            raise KappaPlaceError(
                f"The exported model {self.file} runs on the CPU, not on {device}. Use the source model "
                "instead."
            )
        return self

    def __reduce__(self) -> tuple[Callable[[bytes, str], ExportedModel], tuple[bytes, str]]:
        # The session of a runtime cannot be sent to a worker, but the content of the file can.
        return _from_bytes, (self.runtime.content, self.file)


def load_exported(file: str | Path) -> ExportedModel:
    """Load a file of `kappaplace export`; its content determines the runtime."""
    try:
        return _from_bytes(Path(file).read_bytes(), str(file))
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {file} ({error.strerror}). Check the path.") from None


def _from_bytes(content: bytes, file: str) -> ExportedModel:
    runtime = open_runtime(content, file)
    record = ExportRecord.from_json(runtime.text, file)
    blank = with_checksum(content, record.content, BLANK)
    if record.content and hashlib.sha256(blank).hexdigest() != record.content:
        raise KappaPlaceError(f"The exported model {file} is damaged (wrong checksum). Export it again.")
    return ExportedModel(runtime, record, file)
