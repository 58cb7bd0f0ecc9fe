"""A model for OpenVINO: what it writes as two files, .xml and .bin, together in one zip without compression.

``unzip`` gives the pair back to other programs of OpenVINO's; kappaplace reads the zip as it is.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from kappaplace.models.runtimes import BIN, KEY, XML, imported


def convert(onnx_file: Path, file: Path, text: str, *, half: bool = False) -> None:
    """Read ONNX, int8 or not, and write OpenVINO's own form with the record in it."""
    ov = imported("openvino")
    model = ov.Core().read_model(onnx_file)
    model.set_rt_info(text, KEY)
    with TemporaryDirectory(dir=file.parent, prefix=".openvino-") as folder:
        ov.save_model(model, Path(folder) / XML, compress_to_fp16=half)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as parts:
            for name in (XML, BIN):
                parts.write(Path(folder) / name, name)
