"""κ without labels: the map's own images, damaged in known ways, teach the model when to doubt itself.

The encoder stays as it is, and so do descriptors, names and poses; what changes is the κ head, κ of each
reference, and the calibration, which belonged to the scores of before. The undamaged image is the anchor: κ
learns how far damage carries a descriptor away from it (recipe kappa-pt, anchors.source=clean).

All work lies in a folder of its own until one swap of the manifest brings model and κ in together. Killed at
any point, the map is as it was, and the same call goes on from features, training states and κ on disk.

Which images of a map teach κ, which ones judge it, and whether all of them are still what was embedded.

How long a fit will take, from a few images of this map on this machine.
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

from kappaplace.calibration.calibration import Calibration
from kappaplace.data.identity import file_stats, same_file
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.maps.models import preprocessing_of, record_of
from kappaplace.maps.options import FitOptions
from kappaplace.maps.store.reader import Indices, MapStore
from kappaplace.maps.store.writer import MapWriter, writer_of
from kappaplace.maps.tune.fit_check import (
    FitRecord,
    KappaFile,
    check_descriptors,
    find_kappa,
    fit_key,
    from_features,
    look,
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


FEWEST = 16
"""References from which there is something to learn."""
JUDGES = 16
"""Images that κ is judged on, at most: each is damaged in every way and to every level."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """References by what they are for; both ascending."""

    learn: Indices
    judge: Indices
    """Never learnt from."""


def choose(count: int, most: int, seed: int) -> Chosen:
    """A fixed random choice; a tenth, but not more than `JUDGES`, is kept for judging."""
    order = np.random.default_rng(seed).permutation(count)
    kept = min(JUDGES, max(2, count // 10))
    return Chosen(np.sort(order[kept : kept + most]), np.sort(order[:kept]))


def image_files(store: MapStore) -> list[str]:
    """The image file of every reference, each of them still the one that was embedded; else one sentence."""
    if len(store) < FEWEST:
        raise KappaPlaceError(
            f"The map {store.folder} has {len(store)} references; κ is learnt from {FEWEST} or more."
        )
    paths = [store.image_path(reference) for reference in range(len(store))]
    now = file_stats(paths)
    gone = np.flatnonzero(now[:, 0] < 0)
    if len(gone):
        example = paths[int(gone[0])] or store.name(int(gone[0]))
        raise KappaPlaceError(
            f"κ is learnt from the map's own images, and {len(gone):,} of {len(paths):,} are not there any "
            f"more (for instance {example}); bring them back, or remove those references."
        )
    then, digests = store.whole("stats"), store.whole("digests")
    for number in np.flatnonzero((now != then).any(axis=1)).tolist():
        if not same_file(paths[number], now[number], then[number], digests[number]):
            raise KappaPlaceError(
                f"The image {paths[number]} has changed since it was embedded; put the new one into the map "
                "first, with `kappaplace map add --duplicates replace`."
            )
    return paths


PROBE = 8
"""Images that are timed."""
MARGIN = 1.15
"""What the encoder does not take: reading features again, learning, comparing places."""


@dataclass(frozen=True)
class Estimate:
    """How many images go through the encoder, and how long one takes."""

    passes: int
    seconds_each: float

    @property
    def seconds(self) -> float:
        return MARGIN * self.passes * self.seconds_each

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"About {_duration(self.seconds)}: {self.passes:,} images and views of them through the encoder, "
            f"{1000 * self.seconds_each:.3g} ms each (measured on {PROBE} images of this map)."
        )


def timed(model: TrainableModel, views: Callable[[list[str]], torch.Tensor], paths: list[str]) -> float:
    """Seconds that an image takes to be read, damaged and encoded; the first round warms up."""
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        with torch.inference_mode():
            model.features(views(paths)).raw.sum().item()
        seconds = time.perf_counter() - start
    return seconds / len(paths)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


WORK = "fit"
"""Where features, training states and κ lie inside the map until the fit is done."""


LEAST_STEPS = 6
"""Steps an epoch: a small map must not end before κ has travelled; more would learn its images by heart."""


def settings_of(options: FitOptions, images: int) -> Settings:
    """Return the recipe kappa-pt without labels, on so many images."""
    changes = {
        "model.size": 0,  # as the map's images were embedded
        "anchors.source": "clean",
        "anchors.views": options.views,
        "augment.damage": 1.0,  # an undamaged view is its own anchor and teaches nothing
        "augment.scale": 1.0,
        **{f"augment.{colour}": 0.0 for colour in ("brightness", "contrast", "saturation", "hue")},
        "optimiser.epochs": options.epochs,
        "optimiser.iterations": max(LEAST_STEPS, images // options.batch_size),
        "optimiser.lr": options.lr,
        "optimiser.batch_size": min(options.batch_size, images),
        "optimiser.schedule": "warm-cosine",
        "run.seed": options.seed,
        "run.trackers": [],
    }
    return settings_for("kappa-pt").changed(changes)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit did."""

    record: FitRecord
    new: bool
    """False where the map had been fitted in just this way before."""
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()


Say = Callable[[str], None]


def fit_map(
    place_map: OpenMap,
    options: FitOptions | None = None,
    terms: CalibrateOptions | None = None,
    *,
    calibrate: bool = True,
    say: Say = lambda sentence: None,
) -> Fitted:
    """Fit κ on the map's own images, put it into the map, then calibrate on them; see the module."""
    from kappaplace.maps.tune.calibrate import no_longer_compared
    from kappaplace.maps.tune.self_calibrate import self_calibrate_map, sparse_note

    options, before = options or FitOptions(), place_map.calibration or place_map.borrowed
    with writer_of(place_map.folder) as writer:
        if writer.manifest.model.fingerprint != place_map.manifest.model.fingerprint:
            raise KappaPlaceError(f"The map {place_map.folder} got another model meanwhile; open it again.")
        key = fit_key(writer.manifest, asdict(options))
        record = read_record(writer.folder, writer.manifest)
        new = record is None or record.key != key
        if new:
            record = _fit(writer, trainable(place_map.model), options, key, place_map.device, calibrate, say)
        else:
            say("κ was fitted on these images with these options before.")
            shutil.rmtree(writer.folder / WORK, ignore_errors=True)
    assert record is not None
    place_map.refresh()
    if not calibrate or place_map.manifest.calibration is not None:
        return Fitted(record, new, place_map.calibration)
    try:
        calibration = self_calibrate_map(place_map, terms)
    except KappaPlaceError as error:  # κ is fitted all the same
        return Fitted(record, new, None, (f"The map is not calibrated: {error}",))
    notes = (sparse_note(calibration), no_longer_compared(before, calibration))
    return Fitted(record, new, calibration, tuple(note for note in notes if note))


def estimate_fit(
    place_map: OpenMap, options: FitOptions | None = None, *, calibrate: bool = True
) -> Estimate:
    """How long `fit_map` will take here; nothing is written."""
    options, store = options or FitOptions(), place_map.store
    model = _with_preprocessing(trainable(place_map.model), preprocessing_of(place_map.manifest.model))
    paths = image_files(store)
    return _estimate(model, paths, choose(len(paths), options.images, options.seed), options, calibrate)


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
    chosen = choose(len(store), options.images, options.seed)
    old_head = _trained_head(model)
    model = _with_preprocessing(model, preprocessing_of(old_record))
    if device is not None:
        model.to(usable_device(device))
    say(_estimate(model, paths, chosen, options, calibrate).sentence)
    work = _work_folder(writer, key)
    lessons = TrainingSet(
        [paths[row] for row in chosen.learn.tolist()],
        np.full((len(chosen.learn), 2), np.nan),
        name=f"{len(chosen.learn):,} images of the map {writer.manifest.name}".strip(),
    )
    settings = settings_of(options, len(chosen.learn))
    if isinstance(old_head, LayersKappaHead) and isinstance(model, PlaceModel):
        settings = settings.changed({"model.head": model.architecture.head})  # a head of the kind it had
    made = train(
        settings,
        lessons,
        work / "run",
        model=_without_head(model, options.seed),
        device=device or "",
    )
    assert made.features is not None
    check_descriptors(store, chosen.learn, made.features)
    fitted = made.model.fold() if isinstance(made.model.head, MirroredKappaHead) else made.model
    found = KappaFile(work / "kappa.npy", len(store))
    found.put(chosen.learn, from_features(fitted, made.features))
    kappa = find_kappa(found, fitted, paths, options.batch_size, device)
    learnt = look(fitted, old_head, [paths[row] for row in chosen.judge.tolist()], options.seed)
    record = FitRecord(
        key=key,
        references=len(store),
        images=len(chosen.learn),
        views=options.views,
        epochs=made.epochs,
        learnt=learnt,
        seconds=time.monotonic() - start,
    )
    _put(writer, fitted, record, kappa)
    shutil.rmtree(work, ignore_errors=True)
    return record


def _put(writer: MapWriter, fitted: TrainableModel, record: FitRecord, kappa: np.ndarray) -> None:
    """Model and κ into the map: files that nobody names yet, then one swap."""
    old = writer.manifest.model
    model = record_of(fitted, "", preprocessing_of(old))
    source = f"./model-{model.fingerprint[:12]}"
    notes = f"κ fitted without labels on {record.images:,} images of the map {writer.manifest.name}".strip()
    save_model(fitted, writer.folder / source, ModelCard(data="the map's own images", notes=notes))
    write_record(writer.folder / source, record)
    rows = np.full(writer.manifest.rows, np.nan, np.float32)  # of those removed nobody asks
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
    """Where this fit lies while it is made; what another one left goes."""
    work = writer.folder / WORK
    mark = work / "key"
    if not mark.is_file() or mark.read_text(encoding="ascii") != key:
        shutil.rmtree(work, ignore_errors=True)
        make_folder(work)
        replace_file(mark, lambda part: part.write_text(key, encoding="ascii"))
    return work


def _with_preprocessing(model: TrainableModel, preprocessing: Preprocessing) -> TrainableModel:
    """The same model that takes images as the map's were taken; the caller's stays as it is."""
    if model.preprocessing == preprocessing:
        return model
    other = copy.copy(model)
    other.preprocessing = preprocessing
    return other


def _trained_head(model: TrainableModel) -> Head | None:
    """The κ head that a model came with; the one of a FrozenEncoder that nobody trained says nothing."""
    head = model.head
    if not model.has_kappa or not isinstance(head, KappaHead):
        return None
    return head if head.trained or not isinstance(model, FrozenEncoder) else None


def _without_head(model: TrainableModel, seed: int) -> TrainableModel:
    """The encoder with a head that knows nothing yet, so that the same images always teach the same."""
    if not isinstance(model, FrozenEncoder):
        return with_head(model, "none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FrozenEncoder(
            model.encoder,
            layer=model.layer,
            preprocessing=model.preprocessing,
            prefix_tokens=model.prefix_tokens,
            name=model.name,
        )


def _estimate(
    model: TrainableModel, paths: list[str], chosen: Chosen, options: FitOptions, calibrate: bool
) -> Estimate:
    from kappaplace.maps.tune.self_calibrate import QUERIES

    views = Views.create(settings_of(options, 1).augment, 0, model.preprocessing)
    weight = next(model.parameters())

    def load(files: list[str]) -> torch.Tensor:
        one = model.preprocessing.to_uint8(files[0])
        same = [image for image in map(model.preprocessing.to_uint8, files) if image.shape == one.shape]
        return views(torch.stack(same).to(weight.device), np.arange(len(same), dtype=np.uint64)).to(weight)

    learn = len(chosen.learn)
    total = learn * (1 + options.views) + (len(paths) - learn) + passes(len(chosen.judge))
    total += min(QUERIES, len(paths)) if calibrate else 0
    was = model.training
    model.eval()
    seconds = timed(model, load, [paths[row] for row in chosen.learn[:PROBE].tolist()])
    model.train(was)
    return Estimate(total, seconds)
