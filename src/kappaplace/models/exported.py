"""ExportedModel: a model that lies in one file for another runtime, behind the interface of a PlaceModel.

Such a file (`kappaplace export`) carries a record of what it is: preprocessing, names of its outputs, the
model it was made of, and its calibration. Reading it needs the runtime, and none of the model's own code.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.models.embedding import check_images
from kappaplace.models.encoder import EncoderModule
from kappaplace.types import Embeddings

KEY = "kappaplace"
"""Under it a file keeps its record: in ONNX's metadata, OpenVINO's rt_info."""
XML, BIN = "model.xml", "model.bin"
"""What the one file of an OpenVINO model holds: its two, as OpenVINO itself writes them."""


class Runtime(Protocol):
    """An opened file."""

    content: bytes
    text: str | None
    """Its record as JSON; None in a file of somebody else's."""

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]: ...


class OnnxRuntime:
    """ONNX Runtime on the CPU, with as many threads as torch has."""

    def __init__(self, content: bytes, where: str) -> None:
        ort = imported("onnxruntime")
        self.content = content
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            self.text: str | None = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        except Exception as error:  # its own kinds, one for each stage of loading
            raise unreadable(where, error) from None

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        (first,) = self.session.get_inputs()
        made = self.session.run(list(names), {first.name: images.numpy()})
        return [torch.from_numpy(part) for part in made]


class OpenVino:
    """OpenVINO on the CPU, tuned for latency.

    It computes in float32 unless the file was made for half precision: left to itself, it takes bfloat16
    where the processor has it, and κ would differ from machine to machine.
    """

    def __init__(self, content: bytes, where: str) -> None:
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
            if _stated(self.text, "precision") != "float16":
                options["INFERENCE_PRECISION_HINT"] = "f32"
            self.compiled = core.compile_model(model, "CPU", options)
        except Exception as error:  # plain RuntimeErrors of several pages
            raise unreadable(where, error) from None
        self.request, self.busy = self.compiled.create_infer_request(), Lock()

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        with self.busy:  # a request answers one caller at a time
            self.request.infer([images.contiguous().numpy()])
            # Copied: the memory belongs to the request, which is used again.
            return [torch.from_numpy(self.request.get_tensor(name).data.copy()) for name in names]


def kind_of(file: Path) -> type[OnnxRuntime] | type[OpenVino] | None:
    """Return the runtime that a file is for, by its content; None for one that was not exported."""
    if file.suffix.lower() == ".onnx":
        return OnnxRuntime
    try:
        with zipfile.ZipFile(file) as parts:
            return _kind_of_zip(parts, str(file))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return None  # no zip file that anybody could read


def _kind_of_zip(parts: zipfile.ZipFile, where: str) -> type[OpenVino] | None:
    names = parts.namelist()
    if any(name.endswith(f"/extra/{KEY}") for name in names):
        raise KappaPlaceError(
            f"The file {where} is a TorchScript export of an earlier version, which is no longer read. "
            "Export the model again as ONNX."
        )
    return OpenVino if XML in names and BIN in names else None


def open_runtime(content: bytes, where: str) -> Runtime:
    """The runtime of a file's content."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return OnnxRuntime(content, where)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            kind = _kind_of_zip(parts, where)
    except KappaPlaceError:
        raise
    except Exception as error:  # a zip file by its end alone
        raise unreadable(where, error) from None
    if kind is None:
        raise KappaPlaceError(f"The file {where} is no model that was exported.")
    return kind(content, where)


def imported(name: str) -> Any:
    """A runtime's package, or one sentence on how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"The runtime {name}", "export") from error


def _stated(text: str | None, key: str) -> Any:
    """One value of a record; None where there is no record, which whoever reads it whole will tell."""
    try:
        return json.loads(text or "{}").get(key)
    except (ValueError, AttributeError):
        return None


def unreadable(where: str, error: Exception) -> KappaPlaceError:
    """One sentence for a file that its runtime refuses."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")[:200]
    return KappaPlaceError(f"The exported model {where} cannot be loaded ({reason}); export it again.")


FORMAT = 1
DESCRIPTOR, KAPPA, VARIANCE, PATCHES = "descriptor", "kappa", "variance", "patches"


@dataclass(frozen=True)
class ExportRecord:
    """What an exported file says of itself: one JSON object under the key ``kappaplace``."""

    name: str
    """What was exported: the name of a model or of its folder."""
    fingerprint: str
    """Tells maps which model this is: that of the source, except for int8, which is a model of its own."""
    source: str
    """Fingerprint of the model it was made of."""
    preprocessing: dict[str, Any]
    dim: int
    outputs: tuple[str, ...]
    precision: str
    """float32, float16 (weights rounded, half precision where the machine has it) or int8."""
    opset: int | None = None
    """Of ONNX; None in files of earlier versions."""
    size: tuple[int, int] | None = None
    """Height and width where the graph takes no other; None: any."""
    parity: dict[str, float] | None = None
    """How far it was from its source when it was made."""
    calibration: dict[str, Any] | None = None
    """A stored calibration of the source, see `kappaplace.calibration.calibration`."""
    licence: str = "not stated"
    kappaplace: str = ""
    """The version that wrote it."""
    format: int = FORMAT

    def to_json(self) -> str:
        """One line of plain values."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None, where: str) -> ExportRecord:
        """The inverse of `to_json`; a file without a record, or of a later version, is refused."""
        if not text:
            raise KappaPlaceError(
                f"The file {where} does not say how its images are prepared: it was not made by "
                "`kappaplace export`."
            )
        try:
            values = json.loads(text)
            if values["format"] > FORMAT:
                raise KappaPlaceError(
                    f"The file {where} was exported by kappaplace {values.get('kappaplace')}, which is "
                    "newer; upgrade this one."
                )
            known = {key: values[key] for key in (field.name for field in fields(cls)) if key in values}
            known["outputs"] = tuple(known["outputs"])
            known["size"] = None if known.get("size") is None else tuple(known["size"])
            return cls(**known)
        except (ValueError, KeyError, TypeError) as error:
            raise KappaPlaceError(f"The record in {where} cannot be read ({error!r}).") from None


class ExportedModel(EncoderModule):
    """An exported file at work: the same forward, ``embed`` and ``patch_maps`` as a `PlaceModel`.

    It runs on the CPU.
    """

    head: None = None  # what a head would do is part of the graph

    def __init__(self, runtime: Runtime, record: ExportRecord, file: str = "") -> None:
        super().__init__()
        self.runtime, self.record, self.file = runtime, record, file
        self.preprocessing = Preprocessing.from_dict(record.preprocessing)
        # Whoever embeds asks a parameter for device and type.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)
        self.eval()

    @property
    def dim(self) -> int:
        """Dimension of the descriptor."""
        return self.record.dim

    @property
    def fingerprint(self) -> str:
        """Checksum of the file, as its record has it."""
        return self.record.fingerprint

    @property
    def has_kappa(self) -> bool:
        """Whether embeddings have κ."""
        return KAPPA in self.record.outputs

    @property
    def shows_patches(self) -> bool:
        """Whether the file gives patch maps."""
        return PATCHES in self.record.outputs

    def forward(self, images: Tensor) -> Embeddings:
        """B×3×H×W, normalized as ``preprocessing`` says → descriptors B×d and κ of shape B."""
        names = [name for name in self.record.outputs if name != PATCHES]
        made = dict(zip(names, self._run(images, names), strict=True))
        return Embeddings(made[DESCRIPTOR], made.get(KAPPA), made.get(VARIANCE))

    def patch_maps(self, images: Tensor) -> Tensor:
        """Feature maps to compare two images cell by cell, where they were exported."""
        if not self.shows_patches:
            raise KappaPlaceError(
                f"The exported model {self.file} gives no patch maps, so matches cannot be compared cell by "
                "cell; export it again without --no-patches, from a ResNet or EfficientNet-Lite."
            )
        return self._run(images, [PATCHES])[0]

    def train(self, mode: bool = True) -> ExportedModel:
        """Stays in evaluation mode: there is nothing to train."""
        return super().train(False)

    def _run(self, images: Tensor, names: list[str]) -> list[Tensor]:
        check_images(images)
        size = self.record.size
        if size is not None and tuple(images.shape[-2:]) != size:
            raise KappaPlaceError(
                f"The exported model {self.file} takes images of {size[0]}×{size[1]} pixels alone, got "
                f"{images.shape[-2]}×{images.shape[-1]}; export it again with the preprocessing you want."
            )
        return self.runtime.run(images, names)

    def _apply(self, *arguments: Any, **options: Any) -> ExportedModel:
        super()._apply(*arguments, **options)
        if self.place.device.type != "cpu":
            wanted = self.place.device
            self.place = nn.Parameter(torch.empty(0), requires_grad=False)
            raise KappaPlaceError(
                f"The exported model {self.file} runs on the CPU, not on {wanted}; use the model it was "
                "made of there."
            )
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A runtime's session cannot travel to a worker; the file's content can.
        return _from_bytes, (self.runtime.content, self.file)


def load_exported(file: str | Path) -> ExportedModel:
    """The model in a file of `kappaplace export`; which runtime it is for is told by its content."""
    try:
        return _from_bytes(Path(file).read_bytes(), str(file))
    except OSError as error:
        raise KappaPlaceError(f"The exported model {file} cannot be read ({error.strerror}).") from None


def _from_bytes(content: bytes, file: str) -> ExportedModel:
    runtime = open_runtime(content, file)
    return ExportedModel(runtime, ExportRecord.from_json(runtime.text, file), file)
