"""Exported files have the same outputs as their model, or are not written."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kappaplace import FrozenEncoder, KappaPlaceError, load_model
from kappaplace.data.images import Preprocessing
from kappaplace.models.export import SUFFIXES, TOLERANCES, ExportOptions, export_model
from kappaplace.models.fast import fidelity

KINDS = sorted(SUFFIXES)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(batch=st.integers(1, 3), height=st.integers(33, 120), width=st.integers(33, 120))
def test_any_batch_and_size_gives_the_same(kind, batch, height, width, model, exported):
    opened = load_model(exported[kind].file)
    images = torch.randn(batch, 3, height, width)
    with torch.inference_mode():
        near = fidelity(model(images), opened(images))
        patches, expected = opened.patch_maps(images), model.patch_maps(images)
    assert near.cosine > 1 - 1e-5
    assert near.spread < 1e-3
    torch.testing.assert_close(patches, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_embedded_as_by_the_model(kind, model, exported, pictures):
    opened = load_model(exported[kind].file)
    target, actual = model.embed(pictures, progress=False), opened.embed(pictures, progress=False)
    np.testing.assert_allclose(actual.descriptor, target.descriptor, atol=1e-5)
    np.testing.assert_allclose(actual.kappa, target.kappa, rtol=1e-3)
    assert opened.preprocessing == model.preprocessing
    assert opened.fingerprint == model.fingerprint


def test_the_record_states_what_it_is(exported):
    record = load_model(exported["onnx"].file).record
    assert record.opset == 18
    assert record.outputs == ("descriptor", "kappa", "patches")
    assert record.name == "tiny"
    assert record.parity is not None
    assert record.parity["descriptor"] <= 1e-5
    assert [gap.batch for gap in exported["onnx"].gaps] == [1, 3, 2]
    assert {(gap.height, gap.width) for gap in exported["onnx"].gaps} == {(64, 64), (49, 41)}


def test_opset_of_the_file_is_the_one_stated(exported):
    onnx = pytest.importorskip("onnx")
    (opset,) = onnx.load(exported["onnx"].file).opset_import
    assert opset.version == 18


@pytest.mark.parametrize("head", ["mirrored", "stun", "none"])
def test_other_heads(head, tmp_path, pictures):
    from kappaplace import PlaceModel
    from kappaplace.data.images import Preprocessing

    model = PlaceModel.create("resnet_tiny", 16, head, preprocessing=Preprocessing(64, "exact")).eval()
    opened = load_model(export_model(model, tmp_path / "m.onnx").file)
    target, actual = model.embed(pictures, progress=False), opened.embed(pictures, progress=False)
    for expected, matches in zip(target, actual, strict=True):
        assert (expected is None) == (matches is None)
        if expected is not None:
            np.testing.assert_allclose(matches, expected, rtol=1e-3, atol=1e-5)


def test_beyond_the_tolerance_nothing_is_left_and_nothing_lost(model, tmp_path, monkeypatch):
    monkeypatch.setitem(TOLERANCES, "float32", (-1.0, -1.0))
    (tmp_path / "m.onnx").write_bytes(b"what was there before")
    with pytest.raises(KappaPlaceError, match="beyond the tolerance"):
        export_model(model, tmp_path / "m.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == b"what was there before"


@pytest.mark.slow
def test_half_is_smaller_and_within_its_tolerance(model, exported, tmp_path):
    result = export_model(model, tmp_path / "half.onnx", options=ExportOptions(half=True))
    assert result.file.stat().st_size < 0.62 * exported["onnx"].file.stat().st_size
    assert result.record.precision == "float16"
    assert max(gap.spread for gap in result.gaps) > 0


def test_int8_is_smaller_close_and_a_model_of_its_own(model, exported, int8, photos):
    opened = load_model(int8.file)
    assert int8.file.stat().st_size < 0.6 * exported["onnx"].file.stat().st_size
    assert int8.quantized is not None
    assert int8.quantized.float_layers < int8.quantized.layers / 2
    target, actual = model.embed(photos, progress=False), opened.embed(photos, progress=False)
    cosines = (target.descriptor * actual.descriptor).sum(1)
    assert 0.99 < cosines.mean() < 1 - 1e-6  # close, but computed in eight bits
    assert opened.fingerprint != model.fingerprint
    assert opened.record.source == model.fingerprint


def test_int8_takes_images_of_several_sizes(model, photos, tmp_path):
    two = [photo if i % 2 else photo[:48] for i, photo in enumerate(photos)]
    native = copy.copy(model)
    native.preprocessing = Preprocessing()
    result = export_model(native, tmp_path / "m.onnx", options=ExportOptions(int8_images=two))
    assert result.quantized.images == len(two)


def test_int8_needs_images(model, photos, tmp_path):
    with pytest.raises(KappaPlaceError, match="at least 16"):
        export_model(model, tmp_path / "m.onnx", options=ExportOptions(int8_images=photos[:3]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "format", "sentence"),
    [
        ("m.onnx", "tflite", "Choose from: onnx"),
        ("m.pt", "torchscript", "Choose from: onnx"),
        ("m.pt", "onnx", "must end in .onnx"),
    ],
)
def test_what_cannot_be_is_told(model, tmp_path, name, format, sentence):
    with pytest.raises(KappaPlaceError, match=sentence):
        export_model(model, tmp_path / name, format)
    with pytest.raises(KappaPlaceError, match="--half or --int8"):
        ExportOptions(half=True, int8_images=[])
    assert list(tmp_path.iterdir()) == []


def test_encoders_of_other_projects_are_refused(tmp_path: Path):
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(KappaPlaceError, match="models of kappaplace"):
        export_model(FrozenEncoder(encoder), tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_changed_bit_is_rejected_or_changes_nothing(kind, exported, pictures, tmp_path):
    content = exported[kind].file.read_bytes()
    expected, rng = load_model(exported[kind].file).embed(pictures).descriptor, np.random.default_rng(0)
    refused = 0
    for position in rng.integers(0, len(content), 40).tolist():
        data = bytearray(content)
        data[position] ^= 1 << int(rng.integers(8))
        file = tmp_path / exported[kind].file.name
        file.write_bytes(data)
        try:
            np.testing.assert_array_equal(load_model(file).embed(pictures).descriptor, expected)
        except KappaPlaceError:
            refused += 1
    assert refused > 30
