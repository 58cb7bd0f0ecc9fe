"""Options of training: sections of plain values, as in a TOML file. Defaults are the numbers of the paper."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from kappaplace.checks import choice
from kappaplace.errors import KappaPlaceError
from kappaplace.files import packaged_toml, parse_toml, telling
from kappaplace.records import Hint
from kappaplace.training.losses import MARGIN, SCALE

Option: TypeAlias = "bool | int | float | str | Sequence[str]"
"""Value of an option."""
Metric = Literal["R@1", "ECE@1", "AUROC"]


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class _Range:
    """Valid values of a number."""

    above_zero: bool = False
    most: float = math.inf

    def contains(self, value: float) -> bool:
        return (value > 0 or (value == 0 and not self.above_zero)) and value <= self.most

    def __str__(self) -> str:
        if self.most < math.inf:
            return f"be between 0 and {self.most:g}"
        return "be above zero" if self.above_zero else "not be negative"


def _positive(default: N, most: float = math.inf) -> N:
    """Return a field whose values are above zero."""
    return field(default=default, metadata={"range": _Range(True, most)})


def _not_negative(default: N, most: float = math.inf) -> N:
    """Return a field whose values are zero or above."""
    return field(default=default, metadata={"range": _Range(False, most)})


@dataclass(frozen=True)
class ModelSettings:
    """Options of the model."""

    start: str = ""
    """Model to start from: a folder, a weights file or a name of `kappaplace models`. Empty for a new model.
    """
    start_head: str = ""
    """Head to load from a weights file of another project, if its keys allow several; none for no head."""
    backbone: str = "resnet50"
    """Backbone of a new model."""
    dim: int = 512
    """Dimension of the descriptors of a new model."""
    pretrained: bool = True
    """Whether a new backbone starts from ImageNet weights."""
    head: str = ""
    """Head of the model. Empty for the head of the recipe."""
    size: int = _not_negative(512)
    """Side of the training images in pixels. 0 for the size that the model uses at inference."""
    trainable: Literal["partial", "all"] = "partial"
    """Trained part of the encoder. partial freezes stem to layer2, as in the authors' release; all trains
    everything, as in the paper."""
    frozen_statistics: bool = True
    """Whether frozen stages keep their BatchNorm statistics. The code of CosPlace and the release updates
    them."""
    freeze_batchnorm: bool = False
    """Whether all stages keep their BatchNorm statistics, so that the number of processes does not change the
    result."""
    start_kappa: float = 0.0
    """κ before the first step. 0 for the best constant κ of the first images, −1 for 0.7, as in a new head.
    """
    student: Literal["teacher", "new"] = "teacher"
    """Start of STUN's student: a copy of its teacher, or a new model, as in the code of STUN."""
    reduced_jpeg: bool = True
    """Whether large JPEGs are decoded at a reduced size, which is faster."""
    copy_aggregation: bool = False
    """Whether the κ head starts from the trained aggregation of the descriptor instead of new weights."""


@dataclass(frozen=True)
class ClassSettings:
    """Options of the places: which images show the same place."""

    by: Literal["auto", "pose", "place"] = "auto"
    """Definition of a place: pose (cells of ground and heading), place (labels of the table), or auto (poses
    if there are any)."""
    cell: float = _positive(10.0)
    """Side of a cell in metres."""
    angle: float = 30.0
    """Width of a heading sector in degrees."""
    groups_per_axis: int = 5
    """Number of groups along each axis. Classes of a group are at least this many cells apart."""
    groups_per_heading: int = 2
    """Number of groups along the heading."""
    groups: int = _not_negative(8)
    """Number of groups that take turns, one per epoch. 0 for all."""
    group_order: Literal["largest", "first"] = "largest"
    """Groups that take turns: the largest, or the first by image name as in the code of CosPlace."""
    min_images: int = _positive(10)
    """Minimum number of images per class."""
    hold_out: float = _not_negative(0.0, most=1.0)
    """Fraction of places to exclude from training, so that κ can be fitted on places new to the encoder."""
    use: Literal["trained", "held-out", "all"] = "trained"
    """Places that the run uses: all, those that hold_out keeps (trained), or those that it excludes
    (held-out)."""


@dataclass(frozen=True)
class AugmentSettings:
    """Options of the augmentation, which makes training views from images."""

    brightness: float = _not_negative(0.7)
    """Largest change of brightness, as a fraction."""
    contrast: float = _not_negative(0.7)
    """Largest change of contrast, as a fraction."""
    saturation: float = _not_negative(0.7)
    """Largest change of saturation, as a fraction."""
    hue: float = _not_negative(0.5, most=0.5)
    """Largest change of hue, as a fraction of a full turn; at most 0.5."""
    scale: float = _positive(0.5, most=1.0)
    """Smallest fraction of the image that a crop keeps."""
    damage: float = _not_negative(0.0, most=1.0)
    """Fraction of views that are degraded by night, fog, rain, blur, noise, occlusion or compression."""


@dataclass(frozen=True)
class OptimizerSettings:
    """Options of the optimizer, which updates the weights."""

    epochs: int = _positive(50)
    """Number of epochs."""
    iterations: int = _not_negative(10_000)
    """Steps per epoch. 0 for one pass over the images."""
    batch_size: int = _positive(32)
    """Images per step, in all processes and accumulated parts together."""
    images_per_place: int = _positive(4)
    """Images of the same place in a batch, for contrastive recipes."""
    lr: float = _positive(1e-5)
    """Learning rate of the encoder."""
    head_lr: float = _not_negative(0.0)
    """Learning rate of the head. 0 for the rate of the encoder."""
    prototype_lr: float = _not_negative(1e-2)
    """Learning rate of the class prototypes."""
    weight_decay: float = _not_negative(0.0)
    """Weight decay of AdamW."""
    schedule: Literal["constant", "warm-cosine", "halving"] = "constant"
    """Learning rate over the run: constant, linear warm-up followed by a cosine, or halved after every
    five epochs, as in the code of STUN."""


@dataclass(frozen=True)
class LossSettings:
    """Constants of the losses."""

    scale: float = _positive(SCALE)
    """Scale of the cosines in the classification loss."""
    margin: float = MARGIN
    """Margin of the correct class in the classification loss."""
    weight: float = _not_negative(0.01)
    """Weight λ of the vMF term in joint training."""
    vmf_dim: int = 0
    """Dimension d of the vMF term. 0 for that of the descriptor. The authors' released code uses 256 instead
    of 512."""
    triplet_margin: float = 0.0
    """Margin of the Bayesian triplet loss."""
    kl_weight: float = 1e-6
    """Weight of the divergence from the prior in the Bayesian triplet loss."""
    squared: bool = False
    """Whether to square the distance between student and teacher in STUN's loss."""


@dataclass(frozen=True)
class AnchorSettings:
    """Options of the anchors, the directions that κ is measured against."""

    source: Literal["classifier", "places", "views", "clean", "batch"] = "classifier"
    """Anchor of an image. "classifier" is the prototype from a retrieval run, and "clean" the unchanged
    image. "places", "views" and "batch" are centroids: of the other images of the place, of the other views
    of the image, or of the positives in the batch. Only views and clean need no labels."""
    prototypes: str = ""
    """File of prototypes. Empty for prototypes.safetensors next to the starting model."""
    classes: str = ""
    """File of classes from the folder cache of the code of CosPlace or the authors' release, for their
    prototypes. Empty to rebuild the order of the classes from the images."""
    views: int = _not_negative(1)
    """Augmented views per image. 0 for a new view at every visit, which the cache does not support."""
    cache: bool = True
    """Whether features are extracted once and the head is fitted on them. GeM's exponent in the head is then
    not trained."""
    learn_p: bool = True
    """Whether GeM's exponent in the head is trained; only without the cache."""


@dataclass(frozen=True)
class StopSettings:
    """Options of early stopping: when to stop, and which model is the result."""

    metrics: tuple[Metric, ...] = ("R@1",)
    """Metrics to watch in turn. When patience with one ends, the next starts from its current value."""
    patience: int = _not_negative(15)
    """Number of epochs without an improvement, after which training stops. 0 to never stop early."""
    min_delta: float = _not_negative(0.0)
    """Smallest change that is an improvement."""
    score: str = ""
    """Score whose ECE@1 and AUROC are watched. Empty for kappaplace with a κ head and variance with other
    heads."""
    binning: Literal["clamp", "zoom"] = "clamp"
    """Range of the bins of ECE@1: clamp as in the paper, or zoom to the range of the values."""


@dataclass(frozen=True)
class RunSettings:
    """Options of the machine: precision, memory, threads, trackers."""

    seed: int = _not_negative(0)
    """Random seed."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the encoder. fp16 scales the loss; use it on GPUs without bf16."""
    channels_last: bool = True
    """Whether images are stored with the channels last, which is faster on GPUs."""
    compile: bool = False
    """Whether to compile the network."""
    accumulate: int = _positive(1)
    """Number of parts in which a batch is computed, to save memory."""
    workers: int = -1
    """Number of threads that decode images. −1 for one per core."""
    checkpoint_every: int = _positive(1000)
    """Steps between training states on disk. The end of an epoch writes one, too, if the last is ten seconds
    old."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Trackers to use in addition to CSV files: tensorboard, wandb, mlflow. They must be installed, but a
    missing tensorboard is skipped."""


@dataclass(frozen=True)
class Settings:
    """All options of one run."""

    recipe: str = "retrieval"
    """Name of the recipe."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """Options of the model."""
    classes: ClassSettings = field(default_factory=ClassSettings)
    """Options of the places: which images show the same place."""
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    """Options of the augmentation, which makes training views from images."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """Options of the optimizer, which updates the weights."""
    loss: LossSettings = field(default_factory=LossSettings)
    """Constants of the losses."""
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    """Options of the anchors, the directions that κ is measured against."""
    stop: StopSettings = field(default_factory=StopSettings)
    """Options of early stopping: when to stop, and which model is the result."""
    run: RunSettings = field(default_factory=RunSettings)
    """Options of the machine: precision, memory, threads, trackers."""

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """Return settings with other values for some options.

        Args:
            changes: Values by ``section.key``.

        Returns:
            The new settings.

        Raises:
            KappaPlaceError: If an option is unknown, or its value has the wrong type or is out of range.
        """
        settings = self
        for earlier, value in changes.items():
            name = _renamed(earlier)
            section, _, key = name.partition(".")
            kind = _kind(name)
            if kind is None:
                raise KappaPlaceError(f"Unknown option '{name}'. {_nearest(section)}")
            part = replace(getattr(settings, section), **{key: _converted(name, value, kind)})
            settings = replace(settings, **{section: part})
        _check(settings)
        return settings

    def to_toml(self, comments: bool = False) -> str:
        """Return the settings as a TOML file.

        Args:
            comments: Whether a comment above each option explains it.

        Returns:
            Text of the file.
        """
        sections = field_docs(Settings) if comments else {}
        lines = [f'recipe = "{self.recipe}"']
        for section in SECTIONS:
            part = getattr(self, section)
            texts = field_docs(type(part)) if comments else {}
            lines += ["", *_comment(sections.get(section, "")), f"[{section}]"]
            for item in fields(part):
                lines += _comment(texts.get(item.name, ""))
                lines.append(f"{item.name} = {_toml(getattr(part, item.name))}")
        return "\n".join(lines) + "\n"

    def differences(self, other: Settings) -> list[str]:
        """Return the options that differ and change the result, as ``section.key: theirs, ours``."""
        theirs = flat(other)
        return [
            f"{name}: {theirs[name]!r} there, {value!r} here"
            for name, value in flat(self).items()
            if value != theirs[name] and name not in _FREE
        ]


def field_docs(record: type) -> dict[str, str]:
    """Return the docstring of each field of a class; nothing if its source code is not installed."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0].body  # type: ignore[attr-defined]
    except (OSError, SyntaxError):
        return {}
    return {
        ast.unparse(item.target): " ".join(str(ast.literal_eval(text.value)).split())
        for item, text in pairwise(body)
        if isinstance(item, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


_FREE = ("run.workers", "run.trackers", "run.checkpoint_every")  # options that do not change the result
SECTIONS = tuple(item.name for item in fields(Settings) if item.name != "recipe")


def flat(settings: Settings) -> dict[str, Option]:
    """Return the values by ``section.key``."""
    values = asdict(settings)
    return {"recipe": settings.recipe, **_by_name({section: values[section] for section in SECTIONS})}


def read_toml(file: str | Path) -> dict[str, Option]:
    """Read a TOML file.

    Args:
        file: File with sections of options, and optionally the name of the recipe.

    Returns:
        Values by ``section.key``, and "recipe" if the file has it.

    Raises:
        KappaPlaceError: If the file cannot be read, or has a value outside a section.
    """
    with telling(f"The settings {file} cannot be read as TOML"):
        content = parse_toml(Path(file).read_text(encoding="utf-8"))
    for name, values in content.items():
        if name != "recipe" and not isinstance(values, dict):
            raise KappaPlaceError(f"The value '{name}' in {file} is outside a section. {_nearest(name)}")
    recipe = {"recipe": content.pop("recipe")} if "recipe" in content else {}
    return {**recipe, **_by_name(content)}


def preset(recipe: str) -> dict[str, Option]:
    """Return the options of a recipe that differ from the defaults, from ``presets.toml``."""
    return _by_name(packaged_toml("kappaplace.training", "presets.toml").get(recipe, {}))


def peer_preset(name: str, recipe: str) -> dict[str, Option]:
    """Return the options with which a recipe reproduces the code of the paper and of its baselines.

    Args:
        name: "paper", or a table of the paper, such as "tab:sf_final". See ``paper.toml``.
        recipe: The recipe.

    Returns:
        Values by ``section.key``.

    Raises:
        KappaPlaceError: If there is no such preset, or the table has no model of this recipe.
    """
    presets = packaged_toml("kappaplace.training", "paper.toml")
    choice(name, presets, "preset")
    recipes = presets[name].get("recipes", [recipe])
    if recipe not in recipes:
        raise KappaPlaceError(
            f"The preset '{name}' has no recipe '{recipe}'. Choose from: {', '.join(recipes)}."
        )
    options: dict[str, Option] = {}
    for each in dict.fromkeys(("paper", name)):
        for key in ("*", recipe):
            options |= _by_name(presets[each].get(key, {}))
    return options


def _by_name(sections: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    return {
        _renamed(f"{section}.{key}"): value
        for section, part in sections.items()
        for key, value in part.items()
    }


def _renamed(name: str) -> str:
    """Return the name of an option for its name in this or an earlier version."""
    return re.sub(r"^optimiser\.", "optimizer.", name)


def parse_options(pairs: Iterable[str]) -> dict[str, Option]:
    """Parse options of the command line.

    Args:
        pairs: Texts like ``section.key=value``; a value is TOML, or text if it is not valid TOML.

    Returns:
        Values by ``section.key``.

    Raises:
        KappaPlaceError: If a text has no "=".
    """
    options: dict[str, Option] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise KappaPlaceError(
                f"An option must be section.key=value, like optimizer.lr=1e-4, got '{pair}'."
            )
        name, text = _renamed(name.strip()), text.strip()
        try:
            value = parse_toml(f"value = {text}")["value"]
        except ValueError:
            value = text
        # A folder can have the name 2024-05-01, which is a date in TOML.
        options[name] = text if _kind(name) is str and not isinstance(value, str) else value
    return options


def _kind(name: str) -> Hint | None:
    """Return the type of an option; None if there is no such option."""
    section, _, key = name.partition(".")
    return get_type_hints(type(getattr(Settings(), section))).get(key) if section in SECTIONS else None


def _nearest(section: str) -> str:
    if section not in SECTIONS:
        return f"Choose a section from: {', '.join(SECTIONS)}."
    return f"Choose from: {', '.join(item.name for item in fields(getattr(Settings(), section)))}."


def _converted(name: str, value: Option, kind: Hint) -> Option:
    """Return the value, converted to the type of the option."""
    origin: Hint = get_origin(kind)
    if origin is Literal:
        if value in get_args(kind):
            return value
        names = ", ".join(map(str, get_args(kind)))
        raise KappaPlaceError(f"{name} must be one of {names}, got {value!r}.")
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(str(_converted(name, item, get_args(kind)[0])) for item in items)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is kind:
        return value
    types = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    raise KappaPlaceError(f"{name} must be {types.get(kind, 'a list')}, got {value!r}.")


def _check(settings: Settings) -> None:
    """Check the ranges of numbers."""
    for name, value in flat(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise KappaPlaceError(f"{name} must be a finite number, got {value!r}.")
    for section in SECTIONS:
        part = getattr(settings, section)
        for item in fields(part):
            limits, value = item.metadata.get("range"), getattr(part, item.name)
            if limits is not None and not limits.contains(value):
                raise KappaPlaceError(f"{section}.{item.name} must {limits}, got {value!r}.")


def _toml(value: Option) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", plain) + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)
