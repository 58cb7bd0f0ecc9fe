"""Checks of a fit of κ, and its files: κ of every reference, and a record next to the fitted model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.degradation import DEGRADATIONS, degrade
from kappaplace.data.identity import file_stats, same_file
from kappaplace.errors import KappaPlaceError
from kappaplace.files import DAMAGED_ARRAYS, replace_file, save_array, write_file
from kappaplace.maps.store import Indices, MapStore, parts
from kappaplace.maps.store.manifest import Manifest
from kappaplace.metrics import Resampling, bootstrap_many
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.embedding import embed_images
from kappaplace.models.heads import Head
from kappaplace.progress import track
from kappaplace.records import from_plain, to_plain
from kappaplace.training.features import CLEAN, FeatureStore
from kappaplace.types import Json

LEVELS = (0.25, 0.5, 0.75, 1.0)
"""Levels of degradation."""
Numbers = NDArray[np.float32]
RESAMPLES = 300
"""Number of resamples for the intervals of a check."""


@dataclass(frozen=True)
class KappaCheck:
    """Evaluation of κ on images that were not used for the fit: clean, and degraded by every kind and
    level."""

    images: int
    """Number of images."""
    clean: tuple[float, ...]
    """Lower quartile, median and upper quartile of κ of the clean images."""
    kinds: dict[str, tuple[tuple[float, ...], ...]]
    """The three quartiles for each kind and level of degradation."""
    closeness: dict[str, tuple[float, ...]]
    """Mean cosine between the descriptors of degraded and clean image, for each kind and level."""
    with_level: float
    """Rank correlation of κ with the level over all degraded images; −1 is best."""
    with_cosine: float
    """Rank correlation of κ with that cosine, which is the target of the fit; 1 is best."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """`with_level` for each kind, with the clean image as level 0."""
    before: float | None = None
    """`with_level` of the model's previous κ; None if it had none."""
    level_interval: tuple[float, float] | None = None
    """95% interval of `with_level`, from resampled images; None in records of earlier versions."""
    cosine_interval: tuple[float, float] | None = None
    """95% interval of `with_cosine`."""
    change_interval: tuple[float, float] | None = None
    """95% interval of `with_level` minus `before`; None if the model had no κ."""


@torch.inference_mode()
def evaluate_kappa(model: TrainableModel, old: Head | None, paths: Sequence[str], seed: int) -> KappaCheck:
    """Evaluate κ on images that are degraded by every kind and level.

    Args:
        model: The fitted model.
        old: Previous κ head of the model, for comparison.
        paths: Image files that were not used for the fit.
        seed: Random seed of the degradation.

    Returns:
        The evaluation.
    """
    model.eval()
    if old is not None:
        old = old.eval()
    rows = []
    with track("Evaluating κ", len(paths)) as bar:
        for number, path in enumerate(paths):
            pixels = model.preprocessing.to_uint8(path).unsqueeze(0).float() / 255
            rows.append(_measure(model, old, pixels, seed + number))
            bar.advance()
    kappa, cosine, before = (np.stack(column) for column in zip(*rows, strict=True))
    return _summary(kappa, cosine, before if old is not None else None)


def passes(images: int) -> int:
    """Return the number of images that an evaluation embeds."""
    return images * (1 + len(DEGRADATIONS) * len(LEVELS))


def _measure(
    model: TrainableModel, old: Head | None, pixels: Tensor, seed: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Return κ, cosine to the clean image, and previous κ: the clean image first, then kinds × levels."""
    names = [name for name in DEGRADATIONS for _ in LEVELS]
    copies = pixels.expand(len(names), *pixels.shape[1:])
    degraded = degrade(copies, names, list(LEVELS) * len(DEGRADATIONS), torch.Generator().manual_seed(seed))
    weight = next(model.parameters())
    batch = model.preprocessing.normalize(torch.cat([pixels, degraded]).to(weight.device)).to(weight.dtype)
    features = model.features(batch)
    descriptor = model.descriptor(features.raw).float()
    kappa = model.head(*features)  # type: ignore[misc]  # a fitted model has a head
    before = kappa if old is None else old.to(weight.device)(*features)
    cosine = descriptor @ descriptor[0]
    return kappa.float().cpu().numpy(), cosine.cpu().numpy(), before.float().cpu().numpy()


def _summary(kappa: Numbers, cosine: Numbers, before: Numbers | None) -> KappaCheck:
    """Summarize arrays of N × (1 + kinds × levels)."""
    shape = (len(kappa), len(DEGRADATIONS), len(LEVELS))
    degraded, close = kappa[:, 1:].reshape(shape), cosine[:, 1:].reshape(shape)
    levels = np.broadcast_to(LEVELS, shape)
    kinds, closeness, by_kind = {}, {}, {}
    for number, kind in enumerate(DEGRADATIONS):
        kinds[kind] = tuple(_quartiles(degraded[:, number, level]) for level in range(len(LEVELS)))
        closeness[kind] = tuple(close[:, number].mean(axis=0).tolist())
        values = np.concatenate([kappa[:, :1], degraded[:, number]], axis=1)
        by_kind[kind] = _rank_correlation(np.broadcast_to((0.0, *LEVELS), values.shape), values)
    intervals = _intervals(kappa, cosine, before)
    return KappaCheck(
        images=len(kappa),
        clean=_quartiles(kappa[:, 0]),
        kinds=kinds,
        closeness=closeness,
        with_level=_rank_correlation(levels, degraded),
        with_cosine=_rank_correlation(cosine[:, 1:], kappa[:, 1:]),
        by_kind=by_kind,
        before=None if before is None else _rank_correlation(levels, before[:, 1:].reshape(shape)),
        level_interval=intervals["level"],
        cosine_interval=intervals["cosine"],
        change_interval=intervals.get("change"),
    )


def _intervals(kappa: Numbers, cosine: Numbers, before: Numbers | None) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of the rank correlations, from resampled images with all their copies."""
    levels = np.tile(LEVELS, len(DEGRADATIONS))

    def measure(*rows: Numbers) -> dict[str, float]:
        level = np.broadcast_to(levels, rows[0][:, 1:].shape)
        values = {"level": _rank_correlation(level, rows[0][:, 1:])}
        values["cosine"] = _rank_correlation(rows[1][:, 1:], rows[0][:, 1:])
        if len(rows) > 2:
            values["change"] = values["level"] - _rank_correlation(level, rows[2][:, 1:])
        return values

    arrays = (kappa, cosine) if before is None else (kappa, cosine, before)
    replicates = bootstrap_many(measure, arrays, Resampling.of(len(kappa), resamples=RESAMPLES))
    limits = {name: each.interval() for name, each in replicates.items()}
    return {name: (each.low, each.high) for name, each in limits.items()}


def _quartiles(values: Numbers) -> tuple[float, ...]:
    return tuple(float(value) for value in np.percentile(values, (25, 50, 75)))


def _rank_correlation(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation; 0 if one of the two is constant."""
    from scipy.stats import spearmanr

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(spearmanr(one.ravel(), other.ravel()).statistic)


FEWEST = 16
"""Smallest number of references for a fit."""
BLOCK = 64
"""Number of images per block. An interrupted process embeds at most one block again."""
SAME = 0.99
"""Smallest cosine between the stored and the new descriptor of a reference; int8 rounds by less."""
SAME_CODES = 0.5
"""Smallest cosine if the map stores codes, which round more. Descriptors of another model have about 0."""


class KappaFile:
    """κ of every reference on disk; NaN until it is computed.

    Args:
        file: The file. An existing file of an interrupted fit is resumed, unless it is damaged.
        count: Number of references.
    """

    def __init__(self, file: Path, count: int) -> None:
        if not _is_complete(file, count):
            replace_file(file, lambda part: save_array(part, np.full(count, np.nan, np.float32)))
        self.values: Numbers = np.load(file, mmap_mode="r+")

    @property
    def missing(self) -> Indices:
        """References without κ."""
        return np.flatnonzero(np.isnan(self.values))

    def put(self, rows: Indices, kappa: NDArray[np.floating]) -> None:
        """Store κ of some references."""
        if not (np.isfinite(kappa).all() and (kappa > 0).all()):
            raise KappaPlaceError("The fitted head returns κ that is not above 0 and finite. Fit it longer.")
        self.values[rows] = kappa
        self.values.flush()  # type: ignore[attr-defined]  # a memory map


def _is_complete(file: Path, count: int) -> bool:
    try:
        stored = np.load(file, mmap_mode="r", allow_pickle=False)
    except DAMAGED_ARRAYS:
        return False
    return stored.shape == (count,) and stored.dtype == np.float32


def image_files(store: MapStore) -> list[str]:
    """Return the image file of every reference, after checking that none has changed."""
    if len(store) < FEWEST:
        raise KappaPlaceError(
            f"Fitting κ needs at least {FEWEST} references, got {len(store)} in {store.folder}. Add images."
        )
    paths = [store.image_path(reference) for reference in range(len(store))]
    stats = file_stats(paths)
    missing = np.flatnonzero(stats[:, 0] < 0)
    if len(missing):
        example = paths[int(missing[0])] or store.name(int(missing[0]))
        raise KappaPlaceError(
            f"Fitting κ needs the images of the map, and {len(missing):,} of {len(paths):,} no longer "
            f"exist (for example {example}). Restore them, or remove those references."
        )
    stored, digests = store.whole("stats"), store.whole("digests")
    for number in np.flatnonzero((stats != stored).any(axis=1)).tolist():
        if not same_file(paths[number], stats[number], stored[number], digests[number]):
            raise KappaPlaceError(
                f"The image {paths[number]} has changed since it was embedded. Update it first with "
                "`kappaplace map add --duplicates replace`."
            )
    return paths


@torch.inference_mode()
def from_features(model: TrainableModel, features: FeatureStore) -> Numbers:
    """Return κ of the images whose clean features are stored."""
    assert isinstance(model.head, Head)
    first = features.views.index(CLEAN) * len(features.rows)
    weight = next(model.head.parameters())
    clean = np.asarray(features.reduced[first : first + len(features.rows)], np.float32)
    return model.head.from_reduced(torch.from_numpy(clean).to(weight)).float().cpu().numpy()


def check_descriptors(store: MapStore, rows: Indices, features: FeatureStore) -> None:
    """Check that the encoder still returns the descriptors of the map.

    Args:
        store: The map.
        rows: References with features.
        features: Features of these references.

    Raises:
        KappaPlaceError: If a descriptor differs.
    """
    least = SAME_CODES if store.manifest.storage == "pq" else SAME
    for part, descriptors in features.descriptors_of(CLEAN):
        cosine = (descriptors.numpy() * store.descriptors[rows[part]]).sum(axis=1)
        if cosine.min() < least:
            raise KappaPlaceError(
                f"The descriptor of {store.name(int(rows[part][cosine.argmin()]))} differs from that in the "
                "map, because the model, its preprocessing or the image has changed. Run `kappaplace map "
                "reembed` first."
            )


def find_kappa(
    file: KappaFile, model: TrainableModel, paths: Sequence[str], batch_size: int, device: str | None
) -> Numbers:
    """Compute missing κ block by block.

    Args:
        file: κ of the references.
        model: The fitted model.
        paths: Image file of each reference.
        batch_size: Number of images to embed at once.
        device: Device of the model. None: the current one.

    Returns:
        κ of every reference.
    """
    missing = file.missing
    with track("κ of the references", len(missing)) as bar:
        for rows in parts(missing, BLOCK):
            images = [paths[row] for row in rows.tolist()]
            embeddings = embed_images(
                model, model.preprocessing, images, batch_size=batch_size, device=device, progress=False
            )
            file.put(rows, np.asarray(embeddings.kappa))
            bar.advance(len(rows))
    return file.values


FIT_RECORD = "fit.json"


@dataclass(frozen=True)
class FitRecord:
    """Record of a fit of κ, stored next to the fitted model."""

    key: str
    """Identifies images, encoder and options, so that the same fit is not repeated."""
    references: int
    """Number of references of the map."""
    images: int
    """Number of references that κ was fitted on."""
    views: int
    """Number of degraded views per image."""
    epochs: tuple[Mapping[str, Any], ...]
    """Facts about each epoch, including the loss."""
    learned: KappaCheck
    """Evaluation of the fitted κ."""
    seconds: float
    """Duration of the fit."""


def write_record(folder: Path, record: FitRecord) -> None:
    """Write the record to the folder of the fitted model."""
    write_file(folder / FIT_RECORD, json.dumps(to_plain(record), indent=1) + "\n")


def read_record(map_folder: Path, manifest: Manifest) -> FitRecord | None:
    """Read the record of a map's fit; None if κ was not fitted for this map."""
    file = map_folder / manifest.model.inside / FIT_RECORD
    if not manifest.model.base or not manifest.model.inside or not file.is_file():
        return None
    try:
        return from_plain(FitRecord, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise KappaPlaceError(
            f"{file} is damaged ({error}). Delete it and run `kappaplace map fit`."
        ) from None


def fit_key(manifest: Manifest, options: Mapping[str, Json]) -> str:
    """Return a hash that identifies a fit: references and options, without their current κ.

    Args:
        manifest: Manifest of the map.
        options: Options of the fit.

    Returns:
        The hash.
    """
    segments = [
        [record.files[name].sha256 for name in ("digests.npy", "keys.npy", "descriptors.npy")]
        for record in manifest.segments
    ]
    removed = None if manifest.removed is None else manifest.removed.record.sha256
    base = manifest.model.base or manifest.model.fingerprint
    content = [base, manifest.model.preprocessing, segments, removed, options]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
