"""Fitting κ without labels: degraded copies of the map's own images teach κ to follow degradation.

The encoder, descriptors, names and poses do not change. The fit changes the κ head and κ of every reference,
and it removes the calibration, because scores change. The clean image is the anchor: κ learns how far
degradation moves a descriptor away from it (recipe kappa-pt, anchors.source=clean).

The fit writes to a separate folder, until one change of the manifest adds both model and κ. An interrupted
fit leaves the map unchanged, and the same call resumes it from stored features, training states and κ.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, write_file
from kappaplace.maps.embed import preprocessing_of, record_of
from kappaplace.maps.options import FitOptions
from kappaplace.maps.store import Indices
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.maps.tune.fit_check import (
    FitRecord,
    KappaFile,
    check_descriptors,
    evaluate_kappa,
    find_kappa,
    fit_key,
    from_features,
    image_files,
    passes,
    read_record,
    write_record,
)
from kappaplace.models.checkpoint import ModelCard, TrainableModel, save_model, trainable
from kappaplace.models.embedding import usable_device
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import Head, KappaHead, LayersKappaHead, MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.training.images import TrainingSet, Views
from kappaplace.training.recipes import settings_for
from kappaplace.training.run import train
from kappaplace.training.settings import Settings
from kappaplace.training.start import with_head

if TYPE_CHECKING:
    from kappaplace.calibration.options import CalibrateOptions
    from kappaplace.maps.opened import OpenMap


CHECKED = 16
"""Largest number of images for the evaluation, which degrades each image by every kind and level."""


@dataclass(frozen=True, eq=False)
class Split:
    """References for a fit and for its evaluation, in ascending order."""

    fit: Indices
    check: Indices


def split_references(count: int, most: int, seed: int) -> Split:
    """Split references at random: a tenth, but at most `CHECKED`, are for the evaluation.

    Args:
        count: Number of references.
        most: Largest number of references for the fit.
        seed: Random seed.

    Returns:
        Both groups of references.
    """
    order = np.random.default_rng(seed).permutation(count)
    checked = min(CHECKED, max(2, count // 10))
    return Split(np.sort(order[checked : checked + most]), np.sort(order[:checked]))


PROBE = 8
"""Number of images for measuring the speed."""
MARGIN = 1.15
"""Factor for the time outside of the encoder: reading features, training, comparing places."""


@dataclass(frozen=True)
class Estimate:
    """Estimated duration of a fit."""

    passes: int
    """Number of images and views that the encoder processes."""
    seconds_each: float
    """Seconds per image."""

    @property
    def seconds(self) -> float:
        """Duration of the fit."""
        return MARGIN * self.passes * self.seconds_each

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        return (
            f"About {_duration(self.seconds)}: the encoder processes {self.passes:,} images and views, "
            f"{1000 * self.seconds_each:.3g} ms each (measured on {PROBE} images of this map)."
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


WORK = "fit"
"""Folder inside the map with features, training states and κ until the fit is complete."""
LEAST_STEPS = 6
"""Minimum steps per epoch. Fewer change κ too little on a small map; more overfit."""


def settings_of(options: FitOptions, images: int) -> Settings:
    """Return the settings of recipe kappa-pt without labels for this number of images."""
    changes = {
        "model.size": 0,  # the size of the map's images
        "anchors.source": "clean",
        "anchors.views": options.views,
        "augment.damage": 1.0,  # a clean view equals its anchor, so nothing can be learned from it
        "augment.scale": 1.0,
        **{f"augment.{color}": 0.0 for color in ("brightness", "contrast", "saturation", "hue")},
        "optimizer.epochs": options.epochs,
        "optimizer.iterations": max(LEAST_STEPS, images // options.batch_size),
        "optimizer.lr": options.lr,
        "optimizer.batch_size": min(options.batch_size, images),
        "optimizer.schedule": "warm-cosine",
        "run.seed": options.seed,
        "run.trackers": [],
    }
    return settings_for("kappa-pt").changed(changes)


@dataclass(frozen=True, eq=False)
class FitResult:
    """Result of a fit."""

    record: FitRecord
    new: bool
    """False if the map was already fitted with these options."""
    calibration: Calibration | None = None
    """Calibration of the map after the fit."""
    notes: tuple[str, ...] = ()
    """Remarks about the calibration."""


Say = Callable[[str], None]


def fit_map(
    place_map: OpenMap,
    options: FitOptions | None = None,
    terms: CalibrateOptions | None = None,
    *,
    calibrate: bool = True,
    say: Say = lambda message: None,
) -> FitResult:
    """Fit κ on the map's own images, store it in the map, and calibrate on the same images.

    Args:
        place_map: The map.
        options: Options of the fit. Default: `FitOptions` with its defaults.
        terms: Options of the calibration. Default: `CalibrateOptions` with its defaults.
        calibrate: Whether to calibrate the map afterwards.
        say: Function that is called with each progress message.

    Returns:
        Record of the fit, and the calibration.

    Raises:
        KappaPlaceError: If the map is too small, or its images are missing or have changed.
    """
    from kappaplace.maps.tune.calibrate import reranking_note
    from kappaplace.maps.tune.self_calibrate import self_calibrate_map, sparse_note

    options, before = options or FitOptions(), place_map.calibration or place_map.borrowed
    with writer_of(place_map.folder) as writer:
        if writer.manifest.model.fingerprint != place_map.manifest.model.fingerprint:
            raise KappaPlaceError(f"Another process changed the model of {place_map.folder}. Reopen the map.")
        key = fit_key(writer.manifest, asdict(options))
        record = read_record(writer.folder, writer.manifest)
        new = record is None or record.key != key
        if new:
            record = _fit(writer, trainable(place_map.model), options, key, place_map.device, calibrate, say)
        else:
            say("κ is already fitted on these images with these options.")
            shutil.rmtree(writer.folder / WORK, ignore_errors=True)
    assert record is not None
    place_map.refresh()
    if not calibrate or place_map.manifest.calibration is not None:
        return FitResult(record, new, place_map.calibration)
    try:
        calibration = self_calibrate_map(place_map, terms)
    except KappaPlaceError as error:  # the fit of κ is still valid
        return FitResult(record, new, None, (f"The map is not calibrated: {error}",))
    notes = (sparse_note(calibration), reranking_note(before, calibration))
    return FitResult(record, new, calibration, tuple(note for note in notes if note))


def estimate_fit(
    place_map: OpenMap, options: FitOptions | None = None, *, calibrate: bool = True
) -> Estimate:
    """Estimate the duration of `fit_map` on this machine, without changing the map.

    Args:
        place_map: The map.
        options: Options of the fit. Default: `FitOptions` with its defaults.
        calibrate: Whether to include the calibration.

    Returns:
        The estimate.

    Raises:
        KappaPlaceError: If the map is too small, or its images are missing or have changed.
    """
    options, store = options or FitOptions(), place_map.store
    model = _with_preprocessing(trainable(place_map.model), preprocessing_of(place_map.manifest.model))
    paths = image_files(store)
    split = split_references(len(paths), options.images, options.seed)
    return _estimate(model, paths, split, options, calibrate)


def _fit(
    writer: MapWriter,
    model: TrainableModel,
    options: FitOptions,
    key: str,
    device: str | None,
    calibrate: bool,
    say: Say,
) -> FitRecord:
    start, store, old_record = time.monotonic(), writer.store, writer.manifest.model
    paths = image_files(store)
    split = split_references(len(store), options.images, options.seed)
    old_head = _trained_head(model)
    model = _with_preprocessing(model, preprocessing_of(old_record))
    if device is not None:
        model.to(usable_device(device))
    say(_estimate(model, paths, split, options, calibrate).sentence)
    work = _work_folder(writer, key)
    images = TrainingSet(
        [paths[row] for row in split.fit.tolist()],
        np.full((len(split.fit), 2), np.nan),
        name=f"{len(split.fit):,} images of the map {writer.manifest.name}".strip(),
    )
    settings = settings_of(options, len(split.fit))
    if isinstance(old_head, LayersKappaHead) and isinstance(model, PlaceModel):
        settings = settings.changed({"model.head": model.architecture.head})  # keep the kind of head
    encoder = _without_head(model, options.seed)
    run = train(settings, images, work / "run", model=encoder, device="cpu" if device == "cpu" else "")
    assert run.features is not None
    check_descriptors(store, split.fit, run.features)
    fitted = run.model.fold() if isinstance(run.model.head, MirroredKappaHead) else run.model
    kappa_file = KappaFile(work / "kappa.npy", len(store))
    kappa_file.put(split.fit, from_features(fitted, run.features))
    kappa = find_kappa(kappa_file, fitted, paths, options.batch_size, device)
    record = FitRecord(
        key=key,
        references=len(store),
        images=len(split.fit),
        views=options.views,
        epochs=tuple(run.epochs),
        learned=evaluate_kappa(fitted, old_head, [paths[row] for row in split.check.tolist()], options.seed),
        seconds=time.monotonic() - start,
    )
    _put(writer, fitted, record, kappa)
    shutil.rmtree(work, ignore_errors=True)
    return record


def _put(writer: MapWriter, fitted: TrainableModel, record: FitRecord, kappa: NDArray[np.float32]) -> None:
    """Write model and κ to new files of the map, then replace the manifest."""
    old = writer.manifest.model
    model = record_of(fitted, "", preprocessing_of(old))
    source = f"./model-{model.fingerprint[:12]}"
    notes = f"κ fitted without labels on {record.images:,} images of the map {writer.manifest.name}".strip()
    save_model(fitted, writer.folder / source, ModelCard(data="the map's own images", notes=notes))
    write_record(writer.folder / source, record)
    rows = np.full(writer.manifest.rows, np.nan, np.float32)  # removed rows have no κ
    rows[writer.store.rows_of(slice(None))] = kappa
    starts = writer.store.starts
    segments = [
        writer.adopt(writer.folder, each, {"kappa": rows[starts[i] : starts[i + 1]]})
        for i, each in enumerate(writer.manifest.segments)
    ]
    model = replace(model, source=source, base=old.base or old.fingerprint)
    writer.commit(model=model, segments=tuple(segments), calibration=None)
    writer.clean()


def _work_folder(writer: MapWriter, key: str) -> Path:
    """Return the working folder of this fit, and delete that of another interrupted fit."""
    work = writer.folder / WORK
    mark = work / "key"
    if not mark.is_file() or mark.read_text(encoding="ascii") != key:
        shutil.rmtree(work, ignore_errors=True)
        write_file(make_folder(work) / "key", key)
    return work


def _with_preprocessing(model: TrainableModel, preprocessing: Preprocessing) -> TrainableModel:
    """Return a copy of the model with the preprocessing of the map."""
    if model.preprocessing == preprocessing:
        return model
    other = copy.copy(model)
    other.preprocessing = preprocessing
    return other


def _trained_head(model: TrainableModel) -> Head | None:
    """Return the κ head of a model; None for the untrained head of a FrozenEncoder."""
    head = model.head
    if not model.has_kappa or not isinstance(head, KappaHead):
        return None
    return head if head.trained or not isinstance(model, FrozenEncoder) else None


def _without_head(model: TrainableModel, seed: int) -> TrainableModel:
    """Return the encoder with an untrained head, so that a fit does not depend on an earlier one."""
    if not isinstance(model, FrozenEncoder):
        return with_head(model, "none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FrozenEncoder(
            model.encoder,
            layer=model.patch_layer if model.layer is None else model.layer,  # a map shows more than a vector
            preprocessing=model.preprocessing,
            prefix_tokens=model.prefix_tokens,
            name=model.name,
            patch_layer=model.patch_layer,
            cross_image=model.cross_image,
        ).with_whitening(model.whitening)


def _estimate(
    model: TrainableModel, paths: list[str], split: Split, options: FitOptions, calibrate: bool
) -> Estimate:
    from kappaplace.maps.tune.self_calibrate import QUERIES

    count = len(split.fit)
    total = count * (1 + options.views) + (len(paths) - count) + passes(len(split.check))
    total += min(QUERIES, len(paths)) if calibrate else 0
    training = model.training
    model.eval()
    seconds = _measured_seconds(model, [paths[row] for row in split.fit[:PROBE].tolist()])
    model.train(training)
    return Estimate(total, seconds)


def _measured_seconds(model: TrainableModel, paths: list[str]) -> float:
    """Return the seconds per image for reading, degrading and encoding; the first round is a warm-up."""
    views = Views.create(settings_of(FitOptions(), 1).augment, 0, model.preprocessing)
    weight, seconds = next(model.parameters()), 0.0
    for _ in range(2):
        start = time.perf_counter()
        images = [model.preprocessing.to_uint8(path) for path in paths]
        batch = torch.stack([image for image in images if image.shape == images[0].shape]).to(weight.device)
        with torch.inference_mode():
            degraded = views(batch, np.arange(len(batch), dtype=np.uint64)).to(weight)
            model.features(degraded).raw.sum().item()
        seconds = time.perf_counter() - start
    return seconds / len(paths)
