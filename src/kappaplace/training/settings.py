"""Every option of training, as TOML: sections of plain values with the paper's numbers as defaults.

Settings that contradict each other, the model or the machine.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from kappaplace.errors import KappaPlaceError
from kappaplace.training.losses import MARGIN, SCALE

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib

Option: TypeAlias = "bool | int | float | str | Sequence[str]"
Metric = Literal["R@1", "ECE@1", "AUROC"]


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    start: str = ""
    """Model to start from: a folder, a weights file or a name of `kappaplace models`; empty: a new one."""
    backbone: str = "resnet50"
    dim: int = 512
    pretrained: bool = True
    """Whether a new backbone starts from ImageNet."""
    head: str = ""
    """Head of the new model; empty: the recipe's own."""
    size: int = 512
    """Side of the training images in pixels; 0: as the model takes images at inference."""
    trainable: Literal["partial", "all"] = "partial"
    """partial: stem to layer2 stay frozen (the release); all: everything trains (the paper)."""
    freeze_batchnorm: bool = False
    """Keep BatchNorm statistics as they are; then the number of processes changes nothing."""
    start_kappa: float = 0.0
    """κ before the first step; 0: the best constant κ of the first images, −1: the untouched 0.7."""
    copy_aggregation: bool = False
    """Start the kappa head from the descriptor's trained aggregation instead of fresh weights."""


@dataclass(frozen=True)
class ClassSettings:
    """Which images are one place."""

    by: Literal["auto", "pose", "place"] = "auto"
    """pose: cells of ground and heading; place: the table's labels; auto: poses where there are any."""
    cell: float = 10.0
    angle: float = 30.0
    groups_per_axis: int = 5
    groups_per_heading: int = 2
    groups: int = 8
    """How many groups take turns; 0: all."""
    min_images: int = 10
    hold_out: float = 0.0
    """Share of places kept from training, so that κ can be fitted on places the encoder never saw."""
    use: Literal["trained", "held-out", "all"] = "trained"
    """Which of them this run sees."""


@dataclass(frozen=True)
class AugmentSettings:
    """How training views differ from the images."""

    brightness: float = 0.7
    contrast: float = 0.7
    saturation: float = 0.7
    hue: float = 0.5
    scale: float = 0.5
    """Smallest share of the image that a crop keeps."""
    damage: float = 0.0
    """Share of views damaged by night, fog, rain, blur, noise, occlusion or compression of a random level."""


@dataclass(frozen=True)
class OptimiserSettings:
    """How the weights move."""

    epochs: int = 50
    iterations: int = 10_000
    """Steps per epoch; 0: as many as there are images for."""
    batch_size: int = 32
    """Images per step, over all processes and accumulated parts."""
    images_per_place: int = 4
    """For contrastive recipes: images of one place in a batch."""
    lr: float = 1e-5
    head_lr: float = 0.0
    """For the head; 0: as the encoder."""
    prototype_lr: float = 1e-2
    weight_decay: float = 0.0
    schedule: Literal["constant", "warm-cosine"] = "constant"


@dataclass(frozen=True)
class LossSettings:
    """Constants of the losses."""

    scale: float = SCALE
    margin: float = MARGIN
    weight: float = 0.01
    """λ of the vMF term in joint training."""
    vmf_dim: int = 0
    """d of the vMF term; 0: the descriptor's own. The authors' released code uses 256 for 512."""
    triplet_margin: float = 0.0
    kl_weight: float = 1e-6
    squared: bool = False
    """STUN: square the distance of student and teacher."""


@dataclass(frozen=True)
class AnchorSettings:
    """What κ is measured against."""

    source: Literal["classifier", "places", "views", "clean", "batch"] = "classifier"
    """classifier: prototypes of a retrieval run; places: centroid of the other images of the place; views:
    centroid of an image's other views (no labels needed); clean: the image as it is (no labels needed);
    batch: centroid of the positives in the batch."""
    prototypes: str = ""
    """File of prototypes; empty: prototypes.safetensors beside the starting model."""
    views: int = 1
    """Augmented views of each image; 0: a new one at every visit (not with the cache)."""
    cache: bool = True
    """Extract features once and fit the head on them; GeM's exponent of the head then stays as it is."""
    learn_p: bool = True
    """Without the cache: whether the head's GeM exponent trains."""


@dataclass(frozen=True)
class StopSettings:
    """When to stop, and which model is the result."""

    metrics: tuple[Metric, ...] = ("R@1",)
    """In turn: when patience with one is over, the next takes over from its value of that time."""
    patience: int = 15
    """Epochs without an improvement; 0: never stop early."""
    min_delta: float = 0.0
    score: str = ""
    """Score whose ECE@1 and AUROC are watched; empty: kappaplace for κ, variance for the others."""
    binning: Literal["clamp", "zoom"] = "clamp"


@dataclass(frozen=True)
class RunSettings:
    """How the machine is used."""

    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = True
    compile: bool = False
    accumulate: int = 1
    """Parts in which a batch is computed, where memory is short."""
    workers: int = -1
    """Threads that decode images; −1: one per core."""
    checkpoint_every: int = 1000
    """Steps between training states on disk; an epoch's end writes one, too, if ten seconds have passed."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Beside steps.csv and epochs.csv: tensorboard, wandb, mlflow; those not installed are left out."""


@dataclass(frozen=True)
class Settings:
    """All options of one run."""

    recipe: str = "retrieval"
    model: ModelSettings = field(default_factory=ModelSettings)
    classes: ClassSettings = field(default_factory=ClassSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """With some options set, named ``section.key``; unknown names and wrong types are told."""
        settings = self
        for name, value in changes.items():
            section, _, key = name.partition(".")
            part: Any = getattr(settings, section) if section in SECTIONS else None
            known = {} if part is None else get_type_hints(type(part))
            if key not in known:
                raise KappaPlaceError(f"There is no option '{name}'; {_nearest(section)}.")
            value = _converted(name, value, known[key])
            changed: Any = {section: replace(part, **{key: value})}
            settings = replace(settings, **changed)
        _check(settings)
        return settings

    def to_toml(self) -> str:
        """The same settings as a TOML file."""
        lines = [f'recipe = "{self.recipe}"']
        for section in SECTIONS:
            part = getattr(self, section)
            lines += ["", f"[{section}]"]
            lines += [f"{item.name} = {_toml(getattr(part, item.name))}" for item in fields(part)]
        return "\n".join(lines) + "\n"

    def differences(self, other: Settings) -> list[str]:
        """Options in which two runs differ: ``section.key: theirs, ours``."""
        mine, theirs = flat(self), flat(other)
        mine = {name: value for name, value in mine.items() if name not in _FREE}
        return [
            f"{name}: {theirs[name]!r} there, {mine[name]!r} here"
            for name in mine
            if mine[name] != theirs[name]
        ]


_FREE = ("run.workers", "run.trackers", "run.checkpoint_every")  # they change nothing about the result
SECTIONS = tuple(item.name for item in fields(Settings) if item.name != "recipe")


def flat(settings: Settings) -> dict[str, Any]:
    """``section.key`` → value."""
    values = asdict(settings)
    nested = {f"{section}.{key}": value for section in SECTIONS for key, value in values[section].items()}
    return {"recipe": settings.recipe, **nested}


def read_toml(file: str | Path) -> dict[str, Any]:
    """Options of a TOML file as ``section.key`` → value, `recipe` among them if it is stated."""
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise KappaPlaceError(f"The settings {file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KappaPlaceError(f"The settings {file} are not valid TOML: {error}.") from None
    options: dict[str, Any] = {}
    for section, values in content.items():
        if section == "recipe":
            options["recipe"] = values
        elif isinstance(values, dict):
            options |= {f"{section}.{key}": value for key, value in values.items()}
        else:
            raise KappaPlaceError(f"In {file}, '{section}' stands outside a section; {_nearest(section)}.")
    return options


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """``section.key=value`` as typed on a command line; values are read as TOML, else as text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise KappaPlaceError(f"'{pair}' sets nothing; write section.key=value, like optimiser.lr=1e-4.")
        name, text = name.strip(), text.strip()
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        # A folder may be called 2024-05-01, which TOML would read as a date.
        options[name] = text if _kind(name) is str and not isinstance(value, str) else value
    return options


def _kind(name: str) -> Any:
    section, _, key = name.partition(".")
    return get_type_hints(type(getattr(Settings(), section))).get(key) if section in SECTIONS else None


def _nearest(section: str) -> str:
    if section in SECTIONS:
        return f"[{section}] has: {', '.join(item.name for item in fields(getattr(Settings(), section)))}"
    return f"sections are: {', '.join(SECTIONS)}"


def _converted(name: str, value: Any, kind: Any) -> Any:
    """The value in its declared type, or one sentence."""
    origin = get_origin(kind)
    if origin is Literal:
        if value in get_args(kind):
            return value
        raise KappaPlaceError(f"{name} is one of {', '.join(map(str, get_args(kind)))}; got {value!r}.")
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(_converted(name, item, get_args(kind)[0]) for item in items)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is kind:
        return value
    wanted = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}.get(
        kind, "a list"
    )
    raise KappaPlaceError(f"{name} must be {wanted}; got {value!r}.")


_POSITIVE = (
    "optimiser.epochs",
    "optimiser.batch_size",
    "optimiser.images_per_place",
    "optimiser.lr",
    "run.accumulate",
    "run.checkpoint_every",
    "classes.cell",
    "classes.min_images",
    "augment.scale",
    "loss.scale",
)


def _check(settings: Settings) -> None:
    """Ranges that no type tells."""
    values = flat(settings)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise KappaPlaceError(f"{name} must be a finite number; got {value!r}.")
    for name in _POSITIVE:
        if not values[name] > 0:
            raise KappaPlaceError(f"{name} must be above zero; got {values[name]!r}.")
    if values["augment.hue"] > 0.5:
        raise KappaPlaceError(f"augment.hue is at most 0.5, half a turn; got {values['augment.hue']!r}.")
    for name in ("classes.hold_out", "augment.damage", "augment.scale"):
        if not 0 <= values[name] <= 1:
            raise KappaPlaceError(f"{name} is a share between 0 and 1; got {values[name]!r}.")
    for name in (
        "optimiser.iterations",
        "run.seed",
        "model.size",
        "loss.weight",
        "augment.brightness",
        "augment.contrast",
        "augment.saturation",
        "augment.hue",
        "optimiser.head_lr",
        "optimiser.prototype_lr",
        "optimiser.weight_decay",
        "stop.patience",
        "anchors.views",
        "classes.groups",
        "stop.min_delta",
    ):
        if values[name] < 0:
            raise KappaPlaceError(f"{name} must not be negative; got {values[name]!r}.")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", plain) + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
