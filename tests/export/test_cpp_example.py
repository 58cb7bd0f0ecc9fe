"""The C++ example prints the same values as Python. Needs a compiler and the headers of ONNX Runtime."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kappaplace
from kappaplace.models.export import export_model

SOURCE = Path(__file__).parents[2] / "examples" / "cpp" / "localize.cpp"
HEADERS = Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))
SIDE = 320


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.skipif(not (HEADERS / "onnxruntime_cxx_api.h").is_file(), reason="no headers of ONNX Runtime")
def test_the_example_in_cpp_answers_as_python_does(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    library = next(Path(runtime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    model = kappaplace.load_model()
    export_model(model, tmp_path / "place.onnx", "onnx")
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) // (i + 1) for i in range(6)]
    places = model.embed([Image.fromarray(picture) for picture in pictures]).descriptor
    query = np.clip(pictures[3].astype(int) + 2, 0, 255).astype(np.uint8)
    answer = model.embed(Image.fromarray(query))
    places.astype("f4").tofile(tmp_path / "town.f32")
    query.tofile(tmp_path / "query.rgb")

    program = tmp_path / "localize"
    subprocess.run(
        ["g++", "-std=c++17", f"-I{HEADERS}", str(SOURCE), str(library), "-o", str(program)], check=True
    )
    files = [str(tmp_path / name) for name in ("place.onnx", "town.f32", "query.rgb")]
    output = subprocess.run(
        [str(program), *files, str(SIDE), str(SIDE)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    matches = re.search(r"kappa ([\d.]+), best place (\d+), cosine ([\d.]+)", output)
    assert matches is not None, output
    cosines = places @ answer.descriptor[0]
    assert float(matches[1]) == pytest.approx(float(answer.kappa[0]), rel=1e-3)
    assert int(matches[2]) == int(cosines.argmax())
    assert float(matches[3]) == pytest.approx(float(cosines.max()), abs=2e-4)
