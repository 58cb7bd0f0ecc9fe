"""PlaceModel: forward, folding, freezing, embedding, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.place_model import PlaceModel


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied", "folded", "folded-tied", "linear"])
def test_forward_gives_unit_descriptors_and_positive_kappa(head: str) -> None:
    model = PlaceModel.create("resnet_tiny", dim=24, head=head).eval()
    output = model(torch.randn(3, 3, 64, 96))
    assert output.descriptor.shape == (3, 24)
    assert output.kappa.shape == (3,)
    assert output.variance is None
    torch.testing.assert_close(output.descriptor.norm(dim=1), torch.ones(3))
    assert (output.kappa > 0).all()


def test_a_model_without_a_head_has_no_kappa_and_stun_has_a_variance() -> None:
    images = torch.randn(2, 3, 64, 64)
    assert PlaceModel.create("resnet_tiny", dim=8, head="none").eval()(images).kappa is None
    stun = PlaceModel.create("resnet_tiny", dim=8, head="stun").eval()(images)
    assert stun.kappa is None
    # σ² = exp(sigmoid) lies between exp(0) and exp(1).
    assert ((stun.variance > 1) & (stun.variance < np.e)).all()


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied"])
def test_fold_keeps_descriptor_and_kappa(head: str) -> None:
    model = PlaceModel.create("resnet_tiny", dim=24, head=head).eval()
    model.aggregation.gem.p.data.fill_(4.1)
    if head == "mirrored":
        model.head.aggregation.gem.p.data.fill_(2.3)
    model.head.start_at(321.0)
    images = torch.randn(4, 3, 64, 64)
    folded, plain = model.fold()(images), model(images)
    torch.testing.assert_close(folded.descriptor, plain.descriptor, rtol=0, atol=0)
    torch.testing.assert_close(folded.kappa, plain.kappa, rtol=1e-5, atol=0)
    assert model.fold().architecture.head == head.replace("mirrored", "folded")
    assert model.architecture.head == head  # the original is untouched


def test_only_a_mirrored_head_folds() -> None:
    with pytest.raises(KappaPlaceError, match="LinearKappaHead"):
        PlaceModel.create("resnet_tiny", dim=8, head="linear").fold()
    with pytest.raises(KappaPlaceError, match="none"):
        PlaceModel.create("resnet_tiny", dim=8, head="none").fold()


def test_frozen_encoder_moves_neither_weights_nor_statistics(tiny: PlaceModel) -> None:
    tiny.freeze_encoder()
    tiny.train()
    before = {name: value.clone() for name, value in tiny.state_dict().items()}
    trainable = [p for p in tiny.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    tiny(torch.randn(4, 3, 64, 64)).kappa.sum().backward()
    optimizer.step()
    moved = {name for name, value in tiny.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.startswith("head.") for name in moved)


def test_partial_freezing_holds_statistics_of_frozen_stages_only() -> None:
    model = PlaceModel.create("resnet18", dim=8)
    model.freeze_partially()
    model.train()
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))
    backbone = model.backbone
    assert float(backbone.bn1.num_batches_tracked) == 0
    assert float(backbone.layer2[0].bn1.num_batches_tracked) == 0
    assert float(backbone.layer3[0].bn1.num_batches_tracked) == 1
    assert not any(p.requires_grad for p in backbone.layer1.parameters())


def test_embed_takes_paths_pictures_and_arrays(tiny: PlaceModel, pictures: np.ndarray, tmp_path) -> None:
    paths = []
    for index, picture in enumerate(pictures):
        paths.append(tmp_path / f"bild ü {index}.png")
        Image.fromarray(picture).save(paths[-1])
    from_arrays = tiny.embed(pictures, batch_size=4, progress=False)
    from_paths = tiny.embed(paths, batch_size=2)
    from_pil = tiny.embed([Image.fromarray(picture) for picture in pictures])
    assert from_arrays.descriptor.dtype == np.float32
    assert from_arrays.kappa.shape == (6,)
    for other in (from_paths, from_pil):
        np.testing.assert_allclose(other.descriptor, from_arrays.descriptor, atol=1e-6)
        np.testing.assert_allclose(other.kappa, from_arrays.kappa, rtol=1e-5)


def test_embed_one_picture_and_mixed_sizes(pictures: np.ndarray) -> None:
    model = PlaceModel.create("resnet_tiny", dim=8, preprocessing=Preprocessing()).eval()
    assert model.embed(pictures[0]).descriptor.shape == (1, 8)
    mixed = [pictures[0], pictures[1, :40, :40], pictures[2]]
    alone = [model.embed(picture).descriptor[0] for picture in mixed]
    np.testing.assert_allclose(model.embed(mixed).descriptor, alone, atol=1e-6)


def test_embed_gives_the_model_back_in_training_mode(tiny: PlaceModel, pictures: np.ndarray) -> None:
    tiny.train()
    tiny.embed(pictures)
    assert tiny.training


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ([], "at least one image"),
        (5, "Cannot embed a int"),
        (["/no/such/picture.jpg"], "No image file at /no/such/picture.jpg"),
        ([np.zeros((4, 4, 2), np.uint8)], "H×W×3"),
    ],
)
def test_embed_answers_bad_input_in_one_sentence(tiny: PlaceModel, images: list, sentence: str) -> None:
    with pytest.raises(KappaPlaceError, match=sentence):
        tiny.embed(images)


def test_corrupt_picture_is_named(tiny: PlaceModel, tmp_path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 this is no JPEG")
    with pytest.raises(KappaPlaceError, match=r"bad\.jpg"):
        tiny.embed(bad)


def test_forward_names_a_wrong_shape(tiny: PlaceModel) -> None:
    with pytest.raises(KappaPlaceError, match="B×3×H×W, got \\(2, 1, 64, 64\\)"):
        tiny(torch.zeros(2, 1, 64, 64))


def test_bfloat16_autocast_keeps_outputs_in_float32(tiny: PlaceModel) -> None:
    images = torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        output = tiny(images)
    assert output.descriptor.dtype == output.kappa.dtype == torch.float32
    exact = tiny(images)
    assert (output.descriptor * exact.descriptor).sum(1).min() > 0.99


@pytest.mark.parametrize("head", ["mirrored", "mirrored-tied", "folded", "folded-tied", "linear"])
def test_autocast_does_not_round_kappa(head: str) -> None:
    """bfloat16 has steps of 2 near κ = 300, so the head must compute in float32 under autocast."""
    net = PlaceModel.create("resnet_tiny", dim=16, head=head).eval()
    net.head.start_at(300.0)
    normalized = torch.nn.functional.normalize(torch.rand(8, 192, 3, 3), dim=1)
    pooled = net.aggregation.gem(normalized)
    raw = torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = net.head(normalized, pooled, raw)
    torch.testing.assert_close(rounded, net.head(normalized, pooled, raw), rtol=1e-6, atol=0)
    assert len(rounded.unique()) > 4


def test_partial_freezing_after_post_training_lets_the_encoder_learn_again() -> None:
    model = PlaceModel.create("resnet18", dim=8).train()
    model.freeze_encoder()
    model.freeze_partially()
    assert all(p.requires_grad for p in model.aggregation.parameters())
    assert model.backbone.layer4[0].bn1.training
    assert not model.backbone.layer2[0].bn1.training
    with pytest.raises(KappaPlaceError, match="frozen stages must be between 0 and 5, got 99"):
        model.freeze_partially(99)
    assert model.backbone.layer4[0].bn1.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_embed_works_in_the_models_own_precision(
    dtype: torch.dtype, tiny: PlaceModel, pictures: np.ndarray
) -> None:
    exact = tiny.embed(pictures)
    output = tiny.to(dtype).embed(pictures)
    assert output.descriptor.dtype == np.float32
    assert (output.descriptor * exact.descriptor).sum(1).min() > 0.98


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_missing_device_is_one_sentence(device: str, tiny: PlaceModel, pictures: np.ndarray) -> None:
    with pytest.raises(KappaPlaceError, match=f"device '{device}' cannot be used on this machine"):
        tiny.embed(pictures, device=device)


@pytest.mark.parametrize("dim", [1, 4.5, "64"])
def test_a_descriptor_needs_two_dimensions(dim: object) -> None:
    with pytest.raises(KappaPlaceError, match="at least 2"):
        PlaceModel.create("resnet_tiny", dim=dim)
