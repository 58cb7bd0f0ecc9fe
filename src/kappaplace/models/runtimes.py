"""The runtimes of exported models behind one small interface: the bytes of a file in, named outputs out."""

from __future__ import annotations

import importlib
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError

KEY = "kappaplace"
"""Under it a file keeps its record: in ONNX's metadata, OpenVINO's rt_info, TorchScript's extra files."""
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


class TorchScript(nn.Module):
    """torch's own interpreter, on any device."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__()
        self.content = content
        extra = {KEY: ""}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of all TorchScript; see its writer
                self.graph = torch.jit.load(io.BytesIO(content), map_location="cpu", _extra_files=extra)
            found: Any = extra[KEY]
            self.text: str | None = found.decode() if isinstance(found, bytes) else found or None
        except Exception as error:  # whatever the unpickler meets
            raise unreadable(where, error) from None
        self.names: list[str] = _stated(self.text, "outputs") or []

    def run(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        made = dict(zip(self.names, self.graph(images), strict=True))
        return [made[name] for name in names]


def kind_of(file: Path) -> type[OnnxRuntime] | type[OpenVino] | type[TorchScript] | None:
    """The runtime that a file is for, by its content; None for one that was not exported."""
    if file.suffix.lower() == ".onnx":
        return OnnxRuntime
    try:
        with zipfile.ZipFile(file) as parts:
            return _kind_of_zip(parts)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        return None  # no zip file that anybody could read


def _kind_of_zip(parts: zipfile.ZipFile) -> type[OpenVino] | type[TorchScript] | None:
    names = parts.namelist()
    if XML in names and BIN in names:
        return OpenVino
    # Only with our record: TorchScript is code, and a file of weights must never run any.
    return TorchScript if any(name.endswith(f"/extra/{KEY}") for name in names) else None


def open_runtime(content: bytes, where: str) -> Runtime:
    """The runtime of a file's content."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return OnnxRuntime(content, where)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as parts:
            kind = _kind_of_zip(parts)
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
        raise KappaPlaceError(
            f"This needs {name}, which is not installed here ({error}); install it with: "
            "pip install 'kappaplace[export]'."
        ) from None


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
