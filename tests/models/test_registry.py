"""Every entry of the registry through the whole chain, with small stand-ins for the code of its authors."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, FitOptions, PlaceMap
from kappaplace.maps.tune import fit
from kappaplace.models import backbones, published
from kappaplace.models.aggregation import FeatureMixing
from kappaplace.models.backbones.timm import import_timm
from kappaplace.models.checkpoint import load_model
from kappaplace.models.network import Architecture
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.registry import HUB, HubModel
from tests.maps.conftest import town_table

from .test_foreign import cosplace_state

PATCH = 14
CHANNELS = 16


class Grid(nn.Module):
    """A backbone of one convolution: a map, alone or with a token and a mask."""

    def __init__(self, extras: int) -> None:
        super().__init__()
        self.conv, self.extras = nn.Conv2d(3, CHANNELS, PATCH, PATCH), extras

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        features = self.conv(images)
        mask = features.mean(1).flatten(1)
        return (features, features.mean((2, 3)), mask)[: self.extras + 1] if self.extras else features


class Tokens(nn.Module):
    """A transformer without blocks; its owner may call only its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, CHANNELS, PATCH, PATCH), nn.LayerNorm(CHANNELS)
        self.first = nn.Parameter(torch.randn(1, 13, CHANNELS))

    def tokens(self, images: Tensor, prefix: int) -> Tensor:
        patches = self.conv(images).flatten(2).transpose(1, 2)
        return self.norm(torch.cat([self.first[:, :prefix].expand(len(images), -1, -1), patches], 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        tokens = self.tokens(images, 1)
        return {"x_norm_clstoken": tokens[:, 0], "x_norm_patchtokens": tokens[:, 1:]}


class OnGrid(nn.Module):
    """SALAD, MegaLoc, BoQ, FoL and SAGE: a backbone that returns its map, and an aggregation."""

    def __init__(self, dim: int, extras: int) -> None:
        super().__init__()
        self.backbone, self.extras = Grid(extras), extras
        self.aggregator = nn.Linear(CHANNELS, dim)

    def described(self, images: Tensor) -> Tensor:
        output = self.backbone(images)
        features = output[0] if isinstance(output, tuple) else output
        return nn.functional.normalize(self.aggregator(features.amax((2, 3))), dim=1)

    def forward(self, images: Tensor) -> Any:
        return self.described(images)


class BoQ(OnGrid):
    def forward(self, images: Tensor) -> Any:
        return self.described(images), [images.mean()]


class FoL(OnGrid):
    """Its default pass is for training and reshapes to the cells of images of 322×322 pixels."""

    def forward(self, images: Tensor, test: bool = False) -> Any:
        if not test:
            images.reshape(len(images), -1, 529)
        none = torch.zeros(())
        return self.described(images), images[:, :1], none, none, [images, none], None, none


class CrossImage(OnGrid):
    """SAGE: a descriptor depends on all images of the batch."""

    def forward(self, images: Tensor) -> Any:
        alone = self.described(images)
        return alone + 0.5 * alone.mean(0)


class SelaVPR(nn.Module):
    def __init__(self, dim: int, hashing: bool) -> None:
        super().__init__()
        self.backbone, self.linear, self.hashing = Tokens(), nn.Linear(CHANNELS, dim), hashing

    def forward(self, images: Tensor) -> Any:
        descriptor = self.linear(self.backbone(images)["x_norm_patchtokens"].amax(1))
        return (descriptor[:, :512], descriptor[:, :512].sign(), descriptor) if self.hashing else descriptor


class ImAge(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.backbone, self.linear = Tokens(), nn.Linear(8 * CHANNELS, dim)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.backbone.tokens(images, 13)
        return self.linear(tokens[:, :8].flatten(1) + tokens[:, 13:].amax(1).repeat(1, 8))


class AnyLoc(nn.Module):
    """Its transformer is not a submodule, and it moves only itself."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extract, self.vlad = [Grid(0).eval()], torch.randn(CHANNELS, dim)

    def to(self, device: Any) -> None:  # type: ignore[override]
        raise AssertionError("it would load its weights again")

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        assert images.shape[2] % PATCH == images.shape[3] % PATCH == 0
        return self.extract[0](images).amax((2, 3)) @ self.vlad


def stand_in(where: str, entry: str, trust_repo: str, **options: Any) -> nn.Module:
    """Return what ``torch.hub.load`` returns; wrong arguments fail as they would with the authors' code."""
    assert trust_repo == "check"
    torch.manual_seed(0)
    plain: dict[tuple[str, str], Callable[..., nn.Module]] = {
        ("gmberton/MegaLoc", "get_trained_model"): lambda: OnGrid(8448, 1),
        ("serizba/salad", "dinov2_salad"): lambda: OnGrid(8448, 1),
        ("amaralibey/bag-of-queries", "get_trained_boq"): lambda backbone_name, output_dim: BoQ(
            {"resnet50": 16384, "dinov2": 12288}[backbone_name], 0
        ),
        ("chenshunpeng/FoL", "fol_vitb14"): lambda: FoL(8448, 2),
        ("chenshunpeng/FoL", "fol_vitl14"): lambda: FoL(8448, 2),
        ("chenshunpeng/SAGE", "sage"): lambda: CrossImage(8448, 1),
        ("chenshunpeng/SAGE", "sage_vitb"): lambda: OnGrid(8448, 1),
        ("chenshunpeng/SAGE", "sage_vitl"): lambda: OnGrid(8448, 1),
        ("Lu-Feng/SelaVPRplusplus", "SelaVPRplusplus"): lambda backbone, aggregation, hashing, rerank: (
            nn.DataParallel(SelaVPR({"dinov2-base": 2048, "dinov2-large": 4096}[backbone], hashing or rerank))
        ),
        ("Lu-Feng/ImAge", "ImAge"): lambda: nn.DataParallel(ImAge(6144)),
        ("AnyLoc/DINO", "get_vlad_model"): lambda backbone, domain: AnyLoc(49152),
    }
    return plain[where, entry](**options)


def mix_vpr_state() -> dict[str, Tensor]:
    """Weights of MixVPR with the names of its authors, in the wrapper of Lightning."""
    own = published.MixVPR().state_dict()
    own = {re.sub(r"mixers\.(\d+)\.", r"mix.\1.mix.", key): value for key, value in own.items()}
    own = {key.replace("backbone.", "backbone.model."): value for key, value in own.items()}
    return {"state_dict": own}


def weights_of(file: Path) -> dict[str, Any]:
    """Return random weights in the layout of a file in the cache."""
    torch.manual_seed(0)
    if file.name == "mixvpr.pth":
        return mix_vpr_state()
    if file.name == "cliquemining.pth":
        return {"state_dict": OnGrid(8448, 1).state_dict(), "epoch": 3}
    backbone, dim, _ = file.name.split("_")
    return cosplace_state(PlaceModel(Architecture(backbone.lower(), int(dim), "none")))


@pytest.fixture(autouse=True)
def _published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "load", stand_in)
    monkeypatch.setattr(published, "_download", lambda model, file: file.write_bytes(b"weights"))
    monkeypatch.setattr(published, "read_tensors", weights_of)
    monkeypatch.setattr(backbones, "_check_network", lambda: None)


def save_by_hand(model: HubModel) -> None:
    if model.weights:
        file = published.cache_file(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"weights")


def with_small_images(monkeypatch: pytest.MonkeyPatch, model: HubModel) -> HubModel:
    """Shrink the images of an encoder that accepts any size, and the transformers of timm."""
    if model.kind == "timm":
        timm = pytest.importorskip("timm") if import_timm() is None else import_timm()
        create = timm.create_model

        def one_block(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
            torch.manual_seed(0)
            assert pretrained
            # DINOv2 starts with blocks that do nothing.
            extra = {"init_values": 1.0} if "dinov2" in name else {}
            return create(name.partition(".")[0], depth=1, **extra, **options)

        monkeypatch.setattr(timm, "create_model", one_block)
    preprocessing = model.preprocessing
    if preprocessing is not None and preprocessing.fixed_size is not None and model.name != "mixvpr":
        side = 4 * preprocessing.multiple if preprocessing.multiple > 1 else 64
        model = dataclasses.replace(model, preprocessing=dataclasses.replace(preprocessing, size=side))
        monkeypatch.setitem(HUB, model.name, model)
    return model


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> PlaceImages:
    return town_table(tmp_path_factory.mktemp("registry"))


HEAVY = ("mixvpr", "cosplace-vgg16-512", "cosplace-resnet152-512", "eigenplaces-vgg16-512")
"""Hundreds of images through these would take minutes; the fit sees nothing of an encoder but its outputs."""
QUICK = ("sage", "image-vpr")
"""One encoder with patches as a map, and one with tokens."""


def checked(name: str, images: list[str], monkeypatch: pytest.MonkeyPatch) -> HubModel:
    """Load an entry and embed images; return its record."""
    record = with_small_images(monkeypatch, HUB[name])
    save_by_hand(record)
    model = load_model(name)
    assert model.dim == record.dim
    assert model.cross_image == record.cross_image
    shown = model.shows_patches and model.preprocessing.fixed_size is not None
    assert shown == (record.patch_layer is not None)
    embeddings = model.embed(images, patches=shown)
    assert embeddings.descriptor.shape == (len(images), record.dim)
    np.testing.assert_allclose(np.linalg.norm(embeddings.descriptor, axis=1), 1, atol=1e-4)
    assert np.ptp(embeddings.descriptor, axis=0).max() > 1e-4  # it distinguishes the images
    alone = model.embed(images[1])
    np.testing.assert_allclose(alone.descriptor[0], embeddings.descriptor[1], atol=1e-4)
    if shown:
        height, width = model.preprocessing.fixed_size
        count, _, rows, columns = embeddings.patches.shape
        assert (count, rows * width) == (len(images), columns * height)
        assert np.ptp(embeddings.patches[:, :, 0].astype(np.float32)) > 0
    assert load_model(name).fingerprint == model.fingerprint
    return record


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow if name in HEAVY or "resnet50-" in name or "resnet101" in name else (),
        )
        for name in HUB
    ],
)
def test_every_entry_loads_and_embeds(name: str, town: PlaceImages, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(name, town.image_paths(town.query_rows)[:3], monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in HUB
        if name not in HEAVY
    ],
)
def test_every_entry_through_the_whole_chain(
    name: str, town: PlaceImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = town.image_paths(town.query_rows)[:3]
    record = checked(name, images, monkeypatch)
    monkeypatch.setattr(fit, "LEAST_STEPS", 2)
    place_map = PlaceMap.build(town, tmp_path / "town.map", name, BuildOptions(dim=16))
    shown = record.patch_layer is not None
    assert place_map.manifest.patches == ("compact" if shown else "none")
    assert place_map.manifest.model.source == name
    fitted = place_map.fit(FitOptions(images=16, views=1, epochs=2, batch_size=8), calibrate=False)
    assert fitted.new
    calibration = place_map.self_calibrate(CalibrateOptions())
    assert calibration.rerank == (10 if place_map.model.shows_patches else 0)  # of images, if not stored
    again = PlaceMap.open(place_map.folder)  # loads the encoder by its name, and the fitted head
    answers = again.localize(images)
    assert all(answer.kappa > 0 for answer in answers)
    for answer, other in zip(answers, place_map.localize(images), strict=True):
        assert [match.name for match in answer.matches] == [match.name for match in other.matches]
        assert answer.probability == pytest.approx(other.probability, nan_ok=True)


def test_records_say_what_a_user_must_know() -> None:
    for model in HUB.values():
        assert model.license
        assert model.size_mb > 0
        assert model.location.startswith("https://") == (model.kind == "weights")
        assert (model.kind == "torch.hub") == bool(model.entry)
        assert (model.kind == "file") <= bool(model.weights)
        assert {*model.unverified} <= {field.name for field in dataclasses.fields(HubModel)}
    assert [name for name, model in HUB.items() if model.cross_image] == ["sage"]


def test_weights_that_no_program_can_download_are_requested() -> None:
    with pytest.raises(KappaPlaceError, match=r"Download them from https://drive.*save the file as .*mixvpr"):
        load_model("mixvpr")
    with pytest.raises(KappaPlaceError, match=r"'cliquemining' cannot be downloaded by a program"):
        load_model("cliquemining")


def test_the_saved_weights_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    save_by_hand(HUB["cliquemining"])
    monkeypatch.setattr(published, "read_tensors", lambda file: {"state_dict": {"other": torch.zeros(2)}})
    with pytest.raises(KappaPlaceError, match="does not fit the model"):
        load_model("cliquemining")


def test_mix_vpr_mixes_cells_and_projects_channels_then_cells() -> None:
    """The formula of its paper, cell by cell."""
    torch.manual_seed(0)
    mixing = FeatureMixing(channels=3, cells=4, width=5, rows=2, depth=2).double()
    features = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    x = features[0].reshape(3, 4).numpy().copy()
    for mixer in mixing.mixers:
        norm, first, _, second = mixer
        for channel in range(3):
            row = x[channel]
            scaled = (row - row.mean()) / np.sqrt(row.var() + norm.eps)
            scaled = scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()
            hidden = np.maximum(first.weight.detach().numpy() @ scaled + first.bias.detach().numpy(), 0)
            x[channel] = row + second.weight.detach().numpy() @ hidden + second.bias.detach().numpy()
    depth, rows = mixing.channel_proj, mixing.row_proj
    x = depth.weight.detach().numpy() @ x + depth.bias.detach().numpy()[:, None]
    x = (x @ rows.weight.detach().numpy().T + rows.bias.detach().numpy()).ravel()
    np.testing.assert_allclose(mixing(features)[0].detach().numpy(), x / np.linalg.norm(x), atol=1e-6)


def test_layers_that_the_authors_renamed_cost_only_the_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = nn.Sequential(Grid(0), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 8448))
    monkeypatch.setattr(torch.hub, "load", lambda *_, **__: renamed)
    model = load_model("megaloc")
    assert (model.dim, model.shows_patches) == (8448, False)


def test_modules_of_other_repositories_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ImAge and SAGE both have a module called network."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for owner in ("one", "two"):
        (tmp_path / owner).mkdir()
        (tmp_path / owner / "network_of_both.py").write_text(f"OWNER = {owner!r}")

    def load(where: str, *_: object, **__: object) -> nn.Module:
        monkeypatch.syspath_prepend(str(tmp_path / ("one" if "ImAge" in where else "two")))
        assert ("one" if "ImAge" in where else "two") == importlib.import_module("network_of_both").OWNER
        return nn.DataParallel(ImAge(6144)) if "ImAge" in where else CrossImage(8448, 1)

    monkeypatch.setattr(torch.hub, "load", load)
    assert load_model("image-vpr").dim == 6144
    assert load_model("sage").dim == 8448


def test_a_cross_image_encoder_gets_one_image_at_a_time(
    town: PlaceImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers do not depend on what is in the same batch: not in any call of the package."""
    with_small_images(monkeypatch, HUB["sage"])
    model = load_model("sage")
    sizes: list[int] = []
    model.encoder.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    images = town.image_paths(town.query_rows)[:4]
    together = model.embed(images, patches=True, batch_size=4)
    for number, image in enumerate(images):
        alone = model.embed(image, patches=True)
        np.testing.assert_array_equal(alone.descriptor[0], together.descriptor[number])
        np.testing.assert_array_equal(alone.patches[0], together.patches[number])
    batch = torch.rand(3, 3, 56, 56)
    model(batch), model.features(batch), model.outputs(batch), model.patch_maps(batch)
    assert set(sizes) == {1}
    # The encoder itself mixes the images of a batch, so the test above can fail.
    mixed = model.encoder(batch)[0]
    assert not torch.allclose(mixed, model.encoder(batch[:1])[0], atol=1e-3)
