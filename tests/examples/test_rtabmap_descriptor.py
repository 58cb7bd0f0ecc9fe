"""`examples/rtabmap_descriptor.py`, called as the C++ side of RTAB-Map calls it.

From `corelib/src/python/PyDescriptor.cpp` of RTAB-Map and its test: import by name from a folder on the path,
`init` with an int, `extract` with an array of type NPY_BYTE over foreign memory, and a result of shape (1, D)
and type NPY_FLOAT whose buffer is read as one row.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from kappaplace.data import Preprocessing
from kappaplace.models import PlaceModel, load_model, save_model

FOLDER = Path(__file__).parents[2] / "examples"
NPY_BYTE, NPY_FLOAT = 1, 11
DIM = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=DIM, preprocessing=Preprocessing(32, "exact")).eval()
    save_model(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import the script as RTAB-Map does; its interpreter has no ``sys.argv``."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])

    def run(model: str) -> ModuleType:
        monkeypatch.setenv("KAPPAPLACE_MODEL", model)
        monkeypatch.delattr(sys, "argv")
        sys.modules.pop("rtabmap_descriptor", None)
        return importlib.import_module("rtabmap_descriptor")

    yield run
    sys.modules.pop("rtabmap_descriptor", None)


def mat(height: int = 24, width: int = 40, channels: int = 3, seed: int = 0) -> bytearray:
    """The buffer of a ``cv::Mat``."""
    return bytearray(
        np.random.default_rng(seed).integers(0, 256, height * width * channels, np.uint8).tobytes()
    )


def call(module: ModuleType, buffer: bytearray, shape: tuple[int, ...], kind: str = "int8") -> np.ndarray:
    """Wrap the memory, call ``extract``, and check what the C++ side asserts before it copies the row."""
    image = np.frombuffer(buffer, dtype=kind).reshape(shape)
    assert kind == "S1" or image.dtype.num == NPY_BYTE
    result = module.extract(image)
    assert isinstance(result, np.ndarray)
    assert result.shape[0] == 1
    assert result.dtype.num == NPY_FLOAT
    assert result.flags["C_CONTIGUOUS"]
    return np.frombuffer(result.tobytes(), np.float32).copy()


def test_the_descriptor_is_that_of_the_model(folder: Path, load: Callable[[str], ModuleType]) -> None:
    module = load(str(folder))
    assert module.init(DIM) is None
    buffer = mat()
    row = call(module, buffer, (24, 40, 3))
    red_first = np.frombuffer(bytes(buffer), np.uint8).reshape(24, 40, 3)[:, :, ::-1]
    expected = load_model(folder).embed([np.ascontiguousarray(red_first)]).descriptor[0]
    np.testing.assert_allclose(row, expected, atol=1e-6)
    assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-5)
    assert not np.allclose(row, call(module, mat(seed=1), (24, 40, 3)), atol=1e-4)
    np.testing.assert_array_equal(row, call(module, buffer, (24, 40, 3), "S1"))


def test_a_result_does_not_change_with_the_memory_of_the_image(
    folder: Path, load: Callable[[str], ModuleType]
) -> None:
    module = load(str(folder))
    module.init(DIM)
    buffer = mat()
    result = module.extract(np.frombuffer(buffer, np.int8).reshape(24, 40, 3))
    before = result.copy()
    buffer[:] = bytes(len(buffer))
    np.testing.assert_array_equal(result, before)


def test_a_gray_image_has_three_equal_channels(folder: Path, load: Callable[[str], ModuleType]) -> None:
    module = load(str(folder))
    module.init(DIM)
    gray = mat(channels=1)
    colors = bytearray(np.repeat(np.frombuffer(gray, np.uint8), 3).tobytes())
    np.testing.assert_array_equal(call(module, gray, (24, 40, 1)), call(module, colors, (24, 40, 3)))


def test_another_dimension_is_reported_and_the_length_is_that_of_the_model(
    folder: Path, load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    module = load(str(folder))
    module.init(4096)
    assert len(call(module, mat(), (24, 40, 3))) == DIM
    assert "PyDescriptor/Dim is 4096" in capsys.readouterr().err


def test_nothing_is_raised_into_cpp(
    folder: Path,
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = load(str(folder))
    module.init(DIM)
    good = call(module, mat(), (24, 40, 3))
    with monkeypatch.context() as broken:
        broken.setattr(module.model, "embed", lambda images: 1 / 0)
        zeros = call(module, mat(), (24, 40, 3))
    assert zeros.tolist() == [0.0] * DIM
    assert good @ zeros == 0  # (1 + 0) / 2: neither like nor unlike any node
    assert call(module, bytearray(), (0, 0, 3)).tolist() == [0.0] * DIM
    assert "ZeroDivisionError" in capsys.readouterr().err
    missing = load("/nowhere/at/all")
    missing.init(DIM)
    assert call(missing, mat(), (24, 40, 3)).tolist() == [0.0] * DIM
    assert "Traceback" in capsys.readouterr().err
