"""Registry of published encoders: one record per encoder, with facts about it and none of its code.

The facts come from the repositories of the authors. A record names those that could not be verified there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kappaplace.data.images import Preprocessing
from kappaplace.models.shipped import SHIPPED

Setting = tuple[str, str | int | bool]
"""Name and value of an argument."""


@dataclass(frozen=True)
class HubModel:
    """A published encoder."""

    name: str
    """Name in `load_model`."""
    kind: Literal["weights", "torch.hub", "timm", "file"]
    """Origin of the encoder. "weights" is a file that KappaPlace downloads; "file" is a file that you
    download. "torch.hub" runs the code of its authors on your machine; "timm" is the code of the extra
    ``backbones``."""
    location: str
    """URL of the file, repository on GitHub, or name of the timm model."""
    dim: int
    """Dimension of the descriptor."""
    size_mb: int
    """Size of the download in MB."""
    license: str
    """License of the model."""
    entry: str = ""
    """Entry point for torch.hub."""
    options: tuple[Setting, ...] = ()
    """Arguments of the entry point."""
    call: tuple[Setting, ...] = ()
    """Arguments of every forward pass."""
    preprocessing: Preprocessing | None = None
    """Preprocessing of the authors. None: images at their native size."""
    patch_layer: str | None = None
    """Layer whose output is the feature map for patch matching. None: the backbone determines it, or it is
    unknown."""
    prefix_tokens: int = 1
    """Number of tokens before the patch tokens, if the layer returns tokens."""
    cross_image: bool = False
    """Whether a descriptor depends on the other images of its batch. The encoder then gets one image at a
    time."""
    weights: str = ""
    """Page from which you download the weights file, if no program can. Empty: they come with the code."""
    unverified: tuple[str, ...] = ()
    """Names of the fields that the authors' repository does not confirm."""

    @property
    def shows_patches(self) -> bool:
        """Whether the encoder has feature maps for patch matching; of the weights files, those of ResNets."""
        return self.patch_layer is not None or (self.kind == "weights" and "-resnet" in self.name)

    @property
    def file_name(self) -> str:
        """Name of the weights file in the cache."""
        return f"{self.name}.pth" if self.weights else self.location.rsplit("/", 1)[-1]


def _gmberton(project: str, backbone: str, dim: int, size_mb: int) -> HubModel:
    url = (
        f"https://github.com/gmberton/{project}/releases/download/v1.0/{backbone}_{dim}_{project.lower()}.pth"
    )
    return HubModel(f"{project.lower()}-{backbone.lower()}-{dim}", "weights", url, dim, size_mb, "MIT")


_DINOV2 = Preprocessing(322, "exact", multiple=14)  # transformers need whole patches


def _hub(name: str, location: str, entry: str, dim: int, size_mb: int, license: str) -> HubModel:
    """Return an encoder whose layer ``backbone`` returns a feature map of DINOv2, or a tuple that starts
    with it."""
    return HubModel(
        name,
        "torch.hub",
        location,
        dim,
        size_mb,
        license,
        entry,
        preprocessing=_DINOV2,
        patch_layer="backbone",
    )


def _boq(name: str, backbone: str, dim: int, size_mb: int, side: int) -> HubModel:
    model = _hub(name, "amaralibey/bag-of-queries", "get_trained_boq", dim, size_mb, "MIT")
    options: tuple[Setting, ...] = (("backbone_name", backbone), ("output_dim", dim))
    bicubic = Preprocessing(side, "exact", interpolation="bicubic", multiple=14 if side % 14 == 0 else 1)
    return replace(model, options=options, preprocessing=bicubic)


def _fol(letter: str, size_mb: int) -> HubModel:
    entry = f"fol_vit{letter}14"
    model = _hub(f"fol-vit{letter}14", "chenshunpeng/FoL", entry, 8448, size_mb, "Apache-2.0")
    size = Preprocessing(504, "exact", multiple=14)
    # The default forward pass is for training, and only for images of 322 × 322 pixels.
    return replace(model, call=(("test", True),), preprocessing=size, unverified=("size_mb",))


def _selavpr(letter: str, size: str, dim: int, size_mb: int) -> HubModel:
    location = "Lu-Feng/SelaVPRplusplus"
    model = _hub(f"selavpr++-vit{letter}14", location, "SelaVPRplusplus", dim, size_mb, "MIT")
    options: tuple[Setting, ...] = (
        ("backbone", f"dinov2-{size}"),
        ("aggregation", "gem"),
        ("hashing", False),
        ("rerank", False),
    )
    return replace(model, options=options, patch_layer="backbone.norm", unverified=("size_mb",))


def _anyloc(domain: str) -> HubModel:
    model = _hub(f"anyloc-{domain}", "AnyLoc/DINO", "get_vlad_model", 49152, 4545, "BSD-3-Clause")
    # Its transformer is not a submodule, so no layer of it can be read.
    return replace(
        model,
        options=(("backbone", "DINOv2"), ("domain", domain)),
        preprocessing=Preprocessing(multiple=14),
        patch_layer=None,
        unverified=("license", "preprocessing"),
    )


def _dino(name: str, timm_name: str, dim: int, size_mb: int) -> HubModel:
    patch, prefix, license = (14, 1, "Apache-2.0") if "dinov2" in timm_name else (16, 5, "DINOv3 License")
    side = Preprocessing(
        322 if patch == 14 else 320, "exact", interpolation="bicubic", multiple=patch
    )  # about the size at which the encoders above were trained
    return HubModel(
        name,
        "timm",
        timm_name,
        dim,
        size_mb,
        license,
        preprocessing=side,
        patch_layer="norm",
        prefix_tokens=prefix,
    )


_SALAD = _hub("salad", "serizba/salad", "dinov2_salad", 8448, 352, "GPL-3.0")
_SAGE = _hub("sage", "chenshunpeng/SAGE", "sage", 8448, 1259, "MIT")
_MODELS = (
    _gmberton("CosPlace", "VGG16", 512, 60),
    _gmberton("CosPlace", "ResNet18", 512, 46),
    _gmberton("CosPlace", "ResNet50", 512, 98),
    _gmberton("CosPlace", "ResNet50", 2048, 111),
    _gmberton("CosPlace", "ResNet101", 512, 174),
    _gmberton("CosPlace", "ResNet101", 2048, 187),
    _gmberton("CosPlace", "ResNet152", 512, 237),
    _gmberton("EigenPlaces", "VGG16", 512, 60),
    _gmberton("EigenPlaces", "ResNet18", 512, 46),
    _gmberton("EigenPlaces", "ResNet50", 512, 98),
    _gmberton("EigenPlaces", "ResNet50", 2048, 111),
    _gmberton("EigenPlaces", "ResNet101", 2048, 187),
    HubModel(
        "mixvpr",
        "file",
        "amaralibey/MixVPR",
        4096,
        44,
        "not stated",
        preprocessing=Preprocessing(320, "exact"),
        patch_layer="backbone.layer3",
        weights="https://drive.google.com/file/d/11rxwsx6aUn7CwRyGxvFOWpAmUxniwREN/",
        unverified=("size_mb",),
    ),
    replace(
        _hub("megaloc", "gmberton/MegaLoc", "get_trained_model", 8448, 915, "MIT"), unverified=("license",)
    ),
    _SALAD,
    replace(
        _SALAD,
        name="cliquemining",
        license="not stated",
        weights="https://drive.google.com/file/d/1B06ysb-Wjb4KDcNrl-7pyj1mJve1jqdk/view",
        unverified=("license",),
    ),
    _boq("boq-resnet50", "resnet50", 16384, 180, 384),
    _boq("boq-dinov2", "dinov2", 12288, 381, 322),
    _selavpr("b", "base", 2048, 400),
    _selavpr("l", "large", 4096, 1300),
    replace(
        _hub("image-vpr", "Lu-Feng/ImAge", "ImAge", 6144, 346, "not stated"),
        patch_layer="backbone.norm",
        prefix_tokens=13,  # 8 aggregation tokens, the class token, 4 registers
        unverified=("license",),
    ),
    _fol("b", 365),
    _fol("l", 1235),
    replace(_SAGE, cross_image=True),
    replace(_SAGE, name="sage-vitb14", entry="sage_vitb", size_mb=354),
    replace(_SAGE, name="sage-vitl14", entry="sage_vitl", size_mb=1227),
    *map(_anyloc, ("urban", "indoor", "aerial", "structured", "unstructured", "global")),
    _dino("dinov2-vits14", "vit_small_patch14_dinov2.lvd142m", 384, 88),
    _dino("dinov2-vitb14", "vit_base_patch14_dinov2.lvd142m", 768, 346),
    _dino("dinov2-vitl14", "vit_large_patch14_dinov2.lvd142m", 1024, 1217),
    _dino("dinov3-vits16", "vit_small_patch16_dinov3.lvd1689m", 384, 86),
    _dino("dinov3-vitb16", "vit_base_patch16_dinov3.lvd1689m", 768, 343),
    _dino("dinov3-vitl16", "vit_large_patch16_dinov3.lvd1689m", 1024, 1212),
)

HUB: dict[str, HubModel] = {model.name: model for model in _MODELS}


def list_models() -> list[str]:
    """List the names that `load_model` accepts.

    Returns:
        The included models first, then the published ones that `load_model` downloads.

    >>> list_models()[0]
    'kappaplace-lite0'
    """
    return [*SHIPPED, *HUB]
