"""Encoders and heads trained on the training part with the recipes of the library."""

from __future__ import annotations

from pathlib import Path

import torch
from sets import Training

from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.images import TrainingSet
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import train

SIZE = 320
COMMON = [
    f"model.size={SIZE}",
    "classes.min_images=4",
    "classes.groups=0",
    "classes.groups_per_heading=1",
    "run.channels_last=true",
    "optimizer.schedule=warm-cosine",
    "run.precision=bf16",
    "run.trackers=[]",
    "run.checkpoint_every=100000",
    "stop.patience=0",
]
STEPS = ["optimizer.batch_size=128", "optimizer.epochs=12", "optimizer.iterations=40"]
ENCODER = [*STEPS, "augment.scale=0.4", "augment.damage=0.3", "optimizer.weight_decay=1e-3"]
ENCODERS = {
    "retrieval": ("retrieval", [*ENCODER, "optimizer.lr=3e-4", "classes.hold_out=0.25"]),
    "jt": ("kappa-jt", [*ENCODER, "optimizer.lr=3e-4", "optimizer.head_lr=1e-3", "classes.hold_out=0.25"]),
    "contrastive": ("contrastive", [*ENCODER, "optimizer.lr=3e-4", "optimizer.epochs=25"]),
}
HEAD = [
    "optimizer.batch_size=256",
    "optimizer.lr=5e-3",
    "optimizer.epochs=30",
    "anchors.views=2",
    "augment.scale=0.7",
    "augment.brightness=0.2",
    "augment.contrast=0.2",
    "augment.saturation=0.2",
    "augment.hue=0.05",
]
MILD, HEAVY = ["augment.damage=0.6"], ["augment.damage=0.95"]
MANY = [*HEAVY, "anchors.source=clean", "anchors.views=8", "optimizer.epochs=60"]
COLOR = [f"augment.{name}={value}" for name, value in (("brightness", 0.4), ("contrast", 0.4), ("hue", 0.1))]
# name: (encoder, recipe, options). benchmarks/real/README.md explains the comparisons.
HEADS: dict[str, tuple[str, str, list[str]]] = {
    "pt-paper": ("retrieval", "kappa-pt", []),
    "pt-classifier": ("retrieval", "kappa-pt", MILD),
    "pt-places": ("retrieval", "kappa-pt", [*MILD, "anchors.source=places"]),
    "pt-held-out": (
        "retrieval",
        "kappa-pt",
        [*MILD, "anchors.source=places", "classes.hold_out=0.25", "classes.use=held-out"],
    ),
    "pt-views": ("retrieval", "kappa-pt", [*MILD, "anchors.source=views"]),
    "pt-clean": ("retrieval", "kappa-pt", [*MILD, "anchors.source=clean"]),
    "gnll": ("retrieval", "gnll", MILD),
    "linear-head": ("retrieval", "linear-head", MILD),
    "contrastive-pt": ("contrastive", "contrastive-pt", [*MILD, "optimizer.images_per_place=4"]),
    "clean": ("contrastive", "kappa-pt", [*MILD, "anchors.source=clean"]),
    "imagenet-clean": ("imagenet", "kappa-pt", [*HEAVY, "anchors.source=clean"]),
    "imagenet-layers": ("imagenet", "kappa-pt", [*HEAVY, "anchors.source=clean", "model.head=layers"]),
    "clean-heavy": ("contrastive", "kappa-pt", [*HEAVY, "anchors.source=clean"]),
    "layers": ("contrastive", "kappa-pt", [*HEAVY, "anchors.source=clean", "model.head=layers"]),
    "layers-mlp": ("contrastive", "kappa-pt", [*HEAVY, "anchors.source=clean", "model.head=layers-mlp"]),
    "layers-8": ("contrastive", "kappa-pt", [*MANY, "model.head=layers"]),
    "layers-mlp-8": ("contrastive", "kappa-pt", [*MANY, "model.head=layers-mlp"]),
    "layers-mlp-8-colour": ("contrastive", "kappa-pt", [*MANY, *COLOR, "model.head=layers-mlp"]),
    "imagenet-layers-mlp-8": ("imagenet", "kappa-pt", [*MANY, "model.head=layers-mlp"]),
    "places-layers": ("contrastive", "kappa-pt", [*HEAVY, "anchors.source=places", "model.head=layers"]),
}
STUN = [*STEPS, "optimizer.lr=3e-4", "augment.damage=0.3", "augment.scale=0.7", "optimizer.epochs=8"]


@torch.inference_mode()
def whitened(model: PlaceModel, images: torch.Tensor) -> PlaceModel:
    """Initialize the projection by PCA whitening of pooled features."""
    device = next(model.parameters()).device
    parts = [
        model.features(model.preprocessing.normalize(part.to(device))).pooled.float()
        for part in images.split(256)
    ]
    pooled = torch.cat(parts).double()
    mean = pooled.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((pooled - mean).T))
    values, vectors = values.flip(0)[: model.dim], vectors.flip(1)[:, : model.dim]
    weight = (vectors / (values + 1e-2 * values[0]).sqrt()).T
    weight = weight / (weight @ (pooled - mean).T).norm(dim=0).mean()
    model.aggregation.project.weight.copy_(weight)
    model.aggregation.project.bias.copy_(-weight @ mean)
    return model


def start_model(backbone: str, weights: Path, images: torch.Tensor, device: str) -> PlaceModel:
    """Create an ImageNet backbone with a whitened projection."""
    model = PlaceModel.create(backbone, 512, "none").eval()
    state = {name: value.float() for name, value in torch.load(weights, weights_only=True).items()}
    model.backbone.load_state_dict(state)
    model.preprocessing = _at(model, SIZE)
    return whitened(model.to(device), images).cpu()


def _at(model: PlaceModel, size: int) -> object:
    from dataclasses import replace

    return replace(model.preprocessing, size=size)


def train_encoder(
    name: str, start: PlaceModel, data: Training, folder: Path, seed: int, more: list[str] | None = None
) -> AnyModel:
    """Train one of the encoders."""
    recipe, options = ENCODERS[name]
    settings = settings_for(recipe, "", [*COMMON, *options, f"run.seed={seed}", *(more or [])])
    return train(settings, training_set(data), folder / name, model=start).model.eval()


def train_stun(teacher: AnyModel, data: Training, folder: Path, seed: int) -> AnyModel:
    """Train the STUN student of a teacher."""
    settings = settings_for("stun", "", [*COMMON, *STUN, f"run.seed={seed}"])
    return train(settings, training_set(data), folder / "stun", model=teacher).model.eval()


def fit_head(name: str, encoder: AnyModel, data: Training, folder: Path, seed: int) -> AnyModel:
    """Fit one of the heads on its encoder."""
    base, recipe, options = HEADS[name]
    prototypes = [f"anchors.prototypes={folder / base / 'model' / 'prototypes.safetensors'}"]
    if base != "retrieval":
        prototypes = []
    hold_out = ["classes.hold_out=0.25"] if base == "retrieval" and "classes.use" not in str(options) else []
    settings = settings_for(
        recipe, "", [*COMMON, *HEAD, *hold_out, *options, *prototypes, f"run.seed={seed}"]
    )
    return train(settings, training_set(data), folder / name, model=encoder).model.eval()


def training_set(data: Training) -> TrainingSet:
    return TrainingSet(data.images, data.positions, data.heading, name="real sets")


def between(start: PlaceModel, tuned: PlaceModel, share: float) -> PlaceModel:
    """Interpolate the weights of the initial and the tuned model (WiSE-FT)."""
    import copy

    model = copy.deepcopy(tuned)
    own = start.state_dict()
    mixed = {
        name: value if not value.is_floating_point() else torch.lerp(own[name].to(value), value, share)
        for name, value in tuned.state_dict().items()
        if name in own
    }
    model.load_state_dict(mixed)
    return model
