"""FrozenEncoder: any module that returns a descriptor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.models.frozen import FrozenEncoder


class Tokens(nn.Module):
    """A stand-in for a transformer: one prefix token and one token per patch."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 16, 16)
        self.norm = nn.LayerNorm(12)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.full_like(tokens[:, :1], 100.0), tokens], 1)
        return self.norm(tokens)[:, 1:].mean(1)


def convolutional() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 10, 3, 2), nn.BatchNorm2d(10), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 6))


@pytest.mark.parametrize(
    ("encoder", "layer", "dim"),
    [
        (convolutional(), "0", 6),
        (convolutional(), "0.0", 6),
        (convolutional(), None, 6),
        (Tokens(), "norm", 12),
    ],
)
def test_descriptor_is_the_encoders_own_at_unit_length(
    encoder: nn.Module, layer: str | None, dim: int
) -> None:
    model = FrozenEncoder(encoder, layer=layer)
    images = torch.randn(3, 3, 64, 64)
    output = model(images)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(encoder.eval()(images), dim=1)
    torch.testing.assert_close(output.descriptor, expected)
    assert model.dim == dim
    assert output.kappa.shape == (3,)
    assert (output.kappa > 0).all()


class MapAndToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 14, 14)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(images)
        return features, features.mean((-2, -1))


class TokenEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = MapAndToken()

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(images)[1]


def test_a_layer_that_returns_map_and_token_gives_the_map() -> None:
    encoder, kappas = TokenEncoder(), []
    images = torch.randn(2, 3, 56, 56)
    for layer in ("backbone", "backbone.conv"):
        torch.manual_seed(0)
        model = FrozenEncoder(encoder, layer=layer, preprocessing=Preprocessing(56, "exact"))
        kappas.append(model(images).kappa)
    torch.testing.assert_close(kappas[0], kappas[1])


def test_prefix_tokens_do_not_reach_the_head() -> None:
    encoder = Tokens()
    model = FrozenEncoder(encoder, layer="norm").eval()
    images = torch.randn(2, 3, 64, 64)
    before = model(images).kappa
    model.prefix_tokens = 0
    assert not torch.allclose(model(images).kappa, before)


def test_only_the_head_learns_and_the_encoder_stays_in_evaluation() -> None:
    model = FrozenEncoder(convolutional(), layer="0").train()
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"head"}
    assert not model.encoder[0][1].training
    model(torch.randn(2, 3, 32, 32)).kappa.sum().backward()
    assert model.head.last.weight.grad is not None


def test_fold_equals_unfolded_and_leaves_no_hooks() -> None:
    model = FrozenEncoder(convolutional(), layer="0").eval()
    model.head.start_at(55.0)
    images = torch.randn(4, 3, 48, 48)
    torch.testing.assert_close(model.fold()(images).kappa, model(images).kappa, rtol=1e-5, atol=0)
    assert not model.encoder[0]._forward_hooks


def test_embed_works_like_a_place_model(pictures: np.ndarray) -> None:
    assert FrozenEncoder(convolutional(), layer="0").embed(pictures).kappa.shape == (6,)


def test_probe_uses_the_preprocessings_size() -> None:
    """Encoders such as MixVPR have layers for only one image size."""
    encoder = nn.Sequential(nn.Conv2d(3, 4, 16, 16), nn.Flatten(), nn.Linear(4 * 20 * 20, 6))
    assert FrozenEncoder(encoder, layer="0", preprocessing=Preprocessing(320, "exact")).dim == 6
    with pytest.raises(KappaPlaceError, match="fails on an image of 512×512 pixels"):
        FrozenEncoder(encoder, layer="0")


def test_a_wrong_channel_count_is_one_sentence() -> None:
    with pytest.raises(KappaPlaceError, match="Expected RGB images of shape"):
        FrozenEncoder(convolutional(), layer="0")(torch.zeros(2, 1, 64, 64))


def test_unknown_layer_lists_the_first_ones() -> None:
    with pytest.raises(KappaPlaceError, match=r"no layer 'layer9'\. Its first layers are: 0, 0\.0"):
        FrozenEncoder(convolutional(), layer="layer9")


def test_an_encoder_without_a_descriptor_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="B×d, got"):
        FrozenEncoder(nn.Conv2d(3, 4, 3))


def test_a_layer_without_a_map_is_refused() -> None:
    with pytest.raises(KappaPlaceError, match="a B×C×H×W map or B×N×C tokens"):
        FrozenEncoder(convolutional(), layer="2")
