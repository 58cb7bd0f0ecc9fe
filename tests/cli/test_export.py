"""``kappaplace export``: what it prints, what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kappaplace import save_model
from kappaplace.cli.main import app
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import load_model


def test_writes_and_prints_the_parity(tiny, tmp_path):
    save_model(tiny, tmp_path / "model")
    arguments = [
        "export",
        str(tmp_path / "model"),
        "--out",
        str(tmp_path / "m.onnx"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "parity      1 × 64×64: descriptor 1 − cosine" in result.output
    assert "outputs     descriptor, kappa, patches" in result.output
    assert load_model(tmp_path / "m.onnx").record.name == "model"


def test_json(tiny, tmp_path):
    save_model(tiny, tmp_path / "model")
    arguments = [
        "export",
        str(tmp_path / "model"),
        "--out",
        str(tmp_path / "m.onnx"),
    ]
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--no-patches", "--json"]).output)
    assert facts["outputs"] == ["descriptor", "kappa"]
    assert facts["parity"]["descriptor"] <= 1e-5


@pytest.mark.parametrize(
    ("more", "sentence"),
    [(["--int8"], "--calibration-images"), (["--calibration-images", "x"], "Add --int8")],
)
def test_int8_and_its_images_belong_together(tiny, tmp_path, more, sentence):
    save_model(tiny, tmp_path / "model")
    arguments = ["export", str(tmp_path / "model"), "--out", str(tmp_path / "m.onnx"), *more]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, KappaPlaceError)
    assert sentence in str(result.exception)
    assert not (tmp_path / "m.onnx").exists()
