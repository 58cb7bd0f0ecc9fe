"""What κ has learnt: what it says of images it never saw, damaged in every way and to every level.

κ of every reference under a new head: from features that are there already, or by one pass over images.

What a fit was asked for and what came of it: a file beside the fitted model, inside the map.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.degradation import DEGRADATIONS, degrade
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, replace_file, save_array
from kappaplace.maps.store.manifest import Manifest
from kappaplace.maps.store.reader import Indices, MapStore
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.embedding import embed_images
from kappaplace.models.heads import Head
from kappaplace.models.network import unit
from kappaplace.progress import track
from kappaplace.training.features import CLEAN, FeatureStore

LEVELS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Learnt:
    """κ of undamaged and of damaged images, and how it goes with the level of damage."""

    images: int
    clean: list[float]
    """Lower quartile, median and upper quartile of κ of the undamaged images."""
    kinds: dict[str, list[list[float]]]
    """Of each kind of damage: the same three at each of `LEVELS`."""
    closeness: dict[str, list[float]]
    """Mean cosine of the damaged image's descriptor to that of the undamaged, at each level."""
    with_level: float
    """Rank correlation of κ with the level of damage over all damaged images; −1 is best."""
    with_cosine: float
    """Rank correlation of κ with that cosine, which is what κ is learnt from; 1 is best."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """`with_level` of each kind alone, the undamaged image as level 0."""
    before: float | None = None
    """`with_level` of the κ that the model had before; None where it had none."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Learnt:
        return cls(**values)


@torch.inference_mode()
def look(model: TrainableModel, old: Head | None, paths: Sequence[str], seed: int) -> Learnt:
    """Damage each image in each way to each level and read κ; ``old`` is the head that was there before."""
    model.eval()
    if old is not None:
        old = old.eval()
    parts = []
    with track("Judging κ", len(paths)) as bar:
        for number, path in enumerate(paths):
            pixels = model.preprocessing.to_uint8(path).unsqueeze(0).float() / 255
            parts.append(_read(model, old, pixels, seed + number))
            bar.advance()
    kappa, cosine, before = (np.stack(column) for column in zip(*parts, strict=True))
    return _summary(kappa, cosine, before if old is not None else None)


def passes(images: int) -> int:
    """How many images go through the encoder for this."""
    return images * (1 + len(DEGRADATIONS) * len(LEVELS))


def _read(
    model: TrainableModel, old: Head | None, pixels: Tensor, seed: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """κ, cosine to the undamaged and the old κ of one image: the undamaged first, then kinds × levels."""
    names = [name for name in DEGRADATIONS for _ in LEVELS]
    copies = pixels.expand(len(names), *pixels.shape[1:])
    damaged = degrade(copies, names, list(LEVELS) * len(DEGRADATIONS), torch.Generator().manual_seed(seed))
    weight = next(model.parameters())
    batch = model.preprocessing.normalise(torch.cat([pixels, damaged]).to(weight.device)).to(weight.dtype)
    features = model.features(batch)
    descriptor = unit(features.raw).float()
    kappa = model.head(*features)  # type: ignore[misc]  # fitted a moment ago
    then = kappa if old is None else old.to(weight.device)(*features)
    cosine = descriptor @ descriptor[0]
    return kappa.float().cpu().numpy(), cosine.cpu().numpy(), then.float().cpu().numpy()


def _summary(
    kappa: NDArray[np.float32], cosine: NDArray[np.float32], before: NDArray[np.float32] | None
) -> Learnt:
    """From N × (1 + kinds × levels) arrays."""
    shape = (len(kappa), len(DEGRADATIONS), len(LEVELS))
    damaged, close = kappa[:, 1:].reshape(shape), cosine[:, 1:].reshape(shape)
    levels = np.broadcast_to(LEVELS, shape)
    by_kind = {}
    for number, kind in enumerate(DEGRADATIONS):
        values = np.concatenate([kappa[:, :1], damaged[:, number]], axis=1)
        by_kind[kind] = _ranks(np.broadcast_to((0.0, *LEVELS), values.shape), values)
    return Learnt(
        images=len(kappa),
        clean=_quartiles(kappa[:, 0]),
        kinds={
            kind: [_quartiles(damaged[:, number, level]) for level in range(len(LEVELS))]
            for number, kind in enumerate(DEGRADATIONS)
        },
        closeness={kind: close[:, number].mean(axis=0).tolist() for number, kind in enumerate(DEGRADATIONS)},
        with_level=_ranks(levels, damaged),
        with_cosine=_ranks(cosine[:, 1:], kappa[:, 1:]),
        by_kind=by_kind,
        before=None if before is None else _ranks(levels, before[:, 1:].reshape(shape)),
    )


def _quartiles(values: NDArray[np.float32]) -> list[float]:
    return [float(value) for value in np.percentile(values, (25, 50, 75))]


def _ranks(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's rank correlation; 0 where one of them does not vary."""
    from scipy.stats import spearmanr

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one.ravel(), other.ravel()).statistic)


BLOCK = 64
"""Images between two savings: what a killed process may have to do again."""
SAME = 0.99
"""Cosine of a reference's descriptor then and now below which something is wrong; int8 rounds by less."""
SAME_CODES = 0.5
"""The same where the map keeps codes, which round by far more; descriptors of another model have about 0."""


class KappaFile:
    """κ of each reference on disk, NaN where it is still to be found."""

    def __init__(self, file: Path, count: int) -> None:
        if not _whole(file, count):
            replace_file(file, lambda part: save_array(part, np.full(count, np.nan, np.float32)))
        self.values: NDArray[np.float32] = np.load(file, mmap_mode="r+")

    @property
    def missing(self) -> Indices:
        return np.flatnonzero(np.isnan(self.values))

    def put(self, rows: Indices, kappa: NDArray[np.floating]) -> None:
        if not (np.isfinite(kappa).all() and (kappa > 0).all()):
            raise KappaPlaceError("The fitted head gives κ that is not a positive number; fit it longer.")
        self.values[rows] = kappa
        self.values.flush()  # type: ignore[attr-defined]  # a memory map


def _whole(file: Path, count: int) -> bool:
    """Whether an earlier run left one that can be gone on with; a damaged one is made anew."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except DAMAGED_ARRAYS:
        return False
    return found.shape == (count,) and found.dtype == np.float32


@torch.inference_mode()
def from_features(model: TrainableModel, features: FeatureStore) -> NDArray[np.float32]:
    """κ of the images whose undamaged features were kept."""
    assert isinstance(model.head, Head)
    first = features.views.index(CLEAN) * len(features.rows)
    weight = next(model.head.parameters())
    clean = np.asarray(features.reduced[first : first + len(features.rows)], np.float32)
    return model.head.from_reduced(torch.from_numpy(clean).to(weight)).float().cpu().numpy()


def check_descriptors(store: MapStore, rows: Indices, features: FeatureStore) -> None:
    """Refuse where the encoder no longer gives the map's descriptors: κ would belong to others."""
    least = SAME_CODES if store.manifest.storage == "pq" else SAME
    for part, descriptors in features.descriptors_of(CLEAN):
        cosine = (descriptors.numpy() * store.descriptors[rows[part]]).sum(axis=1)
        if cosine.min() < least:
            raise KappaPlaceError(
                f"The encoder does not give the descriptor of {store.name(int(rows[part][cosine.argmin()]))} "
                "that the map holds: the model, its preprocessing or the image is another one; run "
                "`kappaplace map reembed` first."
            )


def find_kappa(
    file: KappaFile, model: TrainableModel, paths: Sequence[str], batch_size: int, device: str | None
) -> NDArray[np.float32]:
    """Embed what is still missing, block by block; the descriptors are those that the map has already."""
    missing = file.missing
    with track("κ of the references", len(missing)) as bar:
        for start in range(0, len(missing), BLOCK):
            rows = missing[start : start + BLOCK]
            images = [paths[row] for row in rows.tolist()]
            made = embed_images(
                model, model.preprocessing, images, batch_size=batch_size, device=device, progress=False
            )
            assert made.kappa is not None
            file.put(rows, np.asarray(made.kappa))
            bar.advance(len(rows))
    return file.values


FIT_RECORD = "fit.json"


@dataclass(frozen=True)
class FitRecord:
    """One fit of κ to a map."""

    key: str
    """Stands for the images, the encoder and the options: the same fit is not made twice."""
    references: int
    images: int
    """References that it learnt from."""
    views: int
    epochs: list[dict[str, Any]]
    """One row an epoch, its loss among them."""
    learnt: Learnt
    seconds: float


def write_record(folder: Path, record: FitRecord) -> None:
    """Put it beside a model."""
    text = json.dumps(asdict(record), indent=1) + "\n"
    replace_file(folder / FIT_RECORD, lambda part: part.write_text(text, encoding="utf-8"))


def read_record(map_folder: Path, manifest: Manifest) -> FitRecord | None:
    """The fit of a map's model; None where κ was not fitted for this map."""
    source = manifest.model.source
    file = (map_folder / source if source.startswith("./") else Path(source)) / FIT_RECORD
    if not manifest.model.base or not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return FitRecord(**(values | {"learnt": Learnt.from_dict(values["learnt"])}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KappaPlaceError(
            f"{file} is damaged ({error}); remove it and run `kappaplace map fit`."
        ) from None


def fit_key(manifest: Manifest, options: dict[str, Any]) -> str:
    """A name for the fit of these references with these options, whatever their κ is now."""
    segments = [
        [record.files[name].sha256 for name in ("digests.npy", "keys.npy", "descriptors.npy")]
        for record in manifest.segments
    ]
    removed = None if manifest.removed is None else manifest.removed.record.sha256
    base = manifest.model.base or manifest.model.fingerprint
    told = [base, manifest.model.preprocessing, segments, removed, options]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
