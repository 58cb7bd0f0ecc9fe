"""``torch.hub.load`` of this repository: the weights of the package, or fresh ones."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kappaplace

ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # hubconf.py puts the sources of the repository first


def test_the_pretrained_model(pictures: np.ndarray) -> None:
    model = torch.hub.load(ROOT, "kappaplace_lite0", source="local")
    ours = kappaplace.load_model().embed(list(pictures[:1]))
    reference = model.embed(list(pictures[:1]))
    np.testing.assert_array_equal(ours.descriptor, reference.descriptor)
    np.testing.assert_array_equal(ours.kappa, reference.kappa)


def test_fresh_weights_and_other_models(tmp_path: Path, tiny: kappaplace.PlaceModel) -> None:
    fresh = torch.hub.load(ROOT, "kappaplace_lite0", source="local", pretrained=False)
    assert fresh.dim == 512
    kappaplace.save_model(tiny, tmp_path / "mine")
    assert torch.hub.load(ROOT, "kappaplace_model", str(tmp_path / "mine"), source="local").dim == tiny.dim


def test_entry_points_are_all_that_is_public() -> None:
    names = {name for name in runpy.run_path(f"{ROOT}/hubconf.py") if not name.startswith("_")}
    assert names == {"kappaplace_lite0", "kappaplace_model", "dependencies"}


@pytest.mark.slow
def test_stated_dependencies_are_enough() -> None:
    """All other packages of the core are unavailable."""
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"scipy", "pyarrow", "pyproj", "accelerate", "matplotlib", "typer"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import numpy, torch
model = torch.hub.load({ROOT!r}, "kappaplace_lite0", source="local")
print(model.embed([numpy.zeros((20, 20, 3), numpy.uint8)]).kappa.shape)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "(1,)", answer.stderr
