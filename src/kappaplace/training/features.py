"""Features of a frozen encoder, computed once per view and stored on disk as float16.

The head is trained on features instead of images, so an epoch of post-training takes seconds. Extraction
resumes where it was interrupted. A store of other weights, images or views is recomputed.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, reserve_array, write_file
from kappaplace.models.aggregation import without_autocast
from kappaplace.models.backbones.convolutional import ResNet
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.embedding import Download, one_ahead
from kappaplace.models.fast.fused import FusedResNet, InPrecision, best_convolutions, fold_batch_norms
from kappaplace.models.heads import Head
from kappaplace.models.place_model import PlaceModel
from kappaplace.progress import track
from kappaplace.training.batches import view_key
from kappaplace.training.images import ImageSource, Views
from kappaplace.training.settings import RunSettings

LEAST_COSINE = 0.9999  # smallest cosine to the descriptors of the model in float32
PROBES, SIDE = 4, 224


RECORD, COMPLETE = "features.json", "complete.json"
FLUSH_EVERY = 8192  # rows between writes to the disk
FLUSH_SECONDS = 10.0  # seconds between writes to the disk, if rows take long
CLEAN = -1  # number of the view for the unchanged image


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Features and descriptors of the views of images, as float16 on disk."""

    reduced: NDArray[np.float16]
    """Input of the head, M×C."""
    descriptor: NDArray[np.float16]
    """Descriptors, M×d."""
    rows: NDArray[np.int64]
    """Image rows, ascending."""
    views: tuple[int, ...]
    """Numbers of the views, ascending."""

    def index(self, rows: NDArray[np.int64], views: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the features of each view of an image."""
        block = np.searchsorted(self.views, views)
        return block * len(self.rows) + np.searchsorted(self.rows, rows)

    def descriptors_of(self, view: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows and unit descriptors of one view of all images, block by block."""
        first = self.views.index(view) * len(self.rows)
        for start in range(0, len(self.rows), FLUSH_EVERY):
            part = slice(start, min(start + FLUSH_EVERY, len(self.rows)))
            block = torch.from_numpy(
                self.descriptor[first + part.start : first + part.stop].astype(np.float32)
            )
            yield part, nn.functional.normalize(block, dim=1)


def frozen_features(model: TrainableModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input of the head of a frozen model, and descriptors, for normalized images."""
    features = model.features(images)
    head = model.head
    assert isinstance(head, Head)
    return head.reduce(*features), model.descriptor(features.raw)


@cache
def compiled_features() -> Callable[[TrainableModel, Tensor], tuple[Tensor, Tensor]]:
    """Return `frozen_features`, compiled once for all models of the same architecture."""
    return torch.compile(frozen_features)


Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
Autocast = Callable[[], AbstractContextManager[object]]
"""Function that returns a context that sets the precision."""


@dataclass(frozen=True)
class Share:
    """The part of the work that belongs to this process."""

    rank: int = 0
    """Number of this process, from 0."""
    processes: int = 1
    """Number of processes."""
    wait: Callable[[], None] = lambda: None
    """Function that waits for the other processes."""

    def part(self, total: int) -> tuple[int, int]:
        """Return the first item of this process, and the item after its last one."""
        return total * self.rank // self.processes, total * (self.rank + 1) // self.processes


@dataclass(frozen=True, eq=False)
class ViewSource:
    """Views of images to extract features from: every view of every row."""

    source: ImageSource
    """The images."""
    make_views: Views
    """Function that computes views of images."""
    rows: NDArray[np.int64]
    """Image rows, ascending."""
    views: tuple[int, ...]
    """Numbers of the views, ascending."""
    seed: int
    """Random seed of the views."""

    def __len__(self) -> int:
        return len(self.rows) * len(self.views)

    def batches(
        self, start: int, stop: int, size: int
    ) -> Iterator[tuple[int, NDArray[np.uint64] | None, Tensor]]:
        """Yield a range of positions of the store, view after view.

        Args:
            start: First position.
            stop: Position after the last one.
            size: Images per batch.

        Yields:
            Position of the first image, keys of the views (None for unchanged images), and images.
        """
        for number, view in enumerate(self.views):
            first = number * len(self.rows)
            position, end = max(start, first), min(stop, first + len(self.rows))
            if position >= end:
                continue
            for rows, images in self.source.batches(self.rows[position - first : end - first], size):
                keys = None if view == CLEAN else view_key(self.seed, rows, np.full(len(rows), view))
                yield position, keys, images
                position += len(rows)


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """Function and settings that compute features."""

    compute: Compute
    """Function that computes the features of a batch of images."""
    batch_size: int
    """Images per batch."""
    autocast: Autocast = nullcontext
    """Function that returns a context that sets the precision."""
    channels_last: bool = True
    """Whether images are stored with the channels last."""
    probe: Compute | None = None
    """Function that computes the features of a batch of any size, to measure their width on one image."""

    def __call__(self, pixels: Tensor) -> Download:
        """Return the features of a batch of views, as a transfer to the CPU in half precision."""
        if self.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        with self.autocast():
            features = self.compute(_filled(pixels, self.batch_size))
        return Download([values[: len(pixels)].to(torch.float16) for values in features])

    def widths(self, pixels: Tensor) -> list[int]:
        """Return the width of each kind of feature."""
        with self.autocast():
            return [values.shape[1] for values in (self.probe or self.compute)(pixels)]


@torch.inference_mode()
def extract_features(
    folder: Path, key: str, images: ViewSource, encoder: FeatureEncoder, share: Share | None = None
) -> FeatureStore:
    """Compute the features of every view of every row, except those that are already on disk.

    Args:
        folder: Folder of the store.
        key: Text that identifies everything that the features depend on. A store with another key is
            overwritten.
        images: The views.
        encoder: Computes features.
        share: Part of the work of this process. Default: everything.

    Returns:
        The complete store.

    Raises:
        KappaPlaceError: If features are not finite, or the processes do not share the folder.
    """
    share = share or Share()

    def outputs(pixels: Tensor, keys: NDArray[np.uint64] | None) -> Download:
        return encoder(images.make_views.clean(pixels) if keys is None else images.make_views(pixels, keys))

    if share.rank == 0 and _open(folder, key, images) is None:
        first = next(images.source.batches(images.rows[:1], 1))[1]
        _create(folder, key, len(images), encoder.widths(images.make_views.clean(first)))
    share.wait()
    store = _open(folder, key, images)
    if store is None:
        raise KappaPlaceError(f"The folder {folder} must be shared by all processes on all machines.")
    if _done(folder / COMPLETE, key):
        return store
    start, stop = share.part(len(images))
    progress = _progress(folder, share.rank, share.processes)
    done = max(start, _done(progress, key))
    with track("Extracting features", stop - start) as bar:
        bar.advance(done - start)
        flushed = time.monotonic()
        work = images.batches(done, stop, encoder.batch_size)
        computed = ((position, outputs(pixels, keys)) for position, keys, pixels in work)
        for position, download in one_ahead(computed):
            reduced, descriptor = (_finite(values) for values in download.arrays())
            end = position + len(reduced)
            store.reduced[position:end], store.descriptor[position:end] = reduced, descriptor
            bar.advance(end - position)
            late = time.monotonic() - flushed > FLUSH_SECONDS
            if end == stop or late or end // FLUSH_EVERY > position // FLUSH_EVERY:
                for array in (store.reduced, store.descriptor):
                    array.flush()  # type: ignore[attr-defined]  # a memory map
                write_file(progress, json.dumps({"key": key, "done": end}))
                flushed = time.monotonic()
    share.wait()
    if share.rank == 0 and _all_done(folder, key, share, len(images)):
        write_file(folder / COMPLETE, json.dumps({"key": key, "done": len(images)}))
    return store


def _filled(pixels: Tensor, batch_size: int) -> Tensor:
    """Fill the last batch with copies, so that a compiled encoder sees only one shape."""
    missing = batch_size - len(pixels)
    if pixels.device.type == "cpu" or missing <= 0:  # on a CPU, copies would only take time
        return pixels
    return torch.cat([pixels, pixels[:1].expand(missing, *pixels.shape[1:])])


def _finite(half: NDArray[np.float16] | None) -> NDArray[np.float16]:
    assert half is not None
    if not np.isfinite(half).all():
        raise KappaPlaceError(
            "The encoder returned features that are NaN or infinite. Check the model, or set "
            "run.precision=fp32."
        )
    return half


def _paths(folder: Path) -> tuple[Path, Path]:
    return folder / "reduced.npy", folder / "descriptor.npy"


def _create(folder: Path, key: str, total: int, widths: list[int]) -> None:
    make_folder(folder)
    for old in folder.glob("*.json"):  # deleted first, because they describe the previous store
        old.unlink()
    for path, width in zip(_paths(folder), widths, strict=True):
        replace_file(path, lambda part, width=width: reserve_array(part, (total, width), np.float16))  # type: ignore[misc]
    write_file(folder / RECORD, json.dumps({"key": key}))


def _open(folder: Path, key: str, images: ViewSource) -> FeatureStore | None:
    """Return the store; None if it does not exist or has another key."""
    try:
        if json.loads((folder / RECORD).read_text(encoding="utf-8"))["key"] != key:
            return None
        arrays = [np.load(path, mmap_mode="r+") for path in _paths(folder)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if any(len(array) != len(images) or array.dtype != np.float16 for array in arrays):
        return None
    return FeatureStore(arrays[0], arrays[1], images.rows, images.views)


def _done(progress: Path, key: str) -> int:
    try:
        record = json.loads(progress.read_text(encoding="utf-8"))
        return int(record["done"]) if record["key"] == key else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _all_done(folder: Path, key: str, share: Share, total: int) -> bool:
    stops = [Share(rank, share.processes).part(total)[1] for rank in range(share.processes)]
    return all(
        _done(_progress(folder, rank, share.processes), key) >= stop for rank, stop in enumerate(stops)
    )


def _progress(folder: Path, rank: int, processes: int) -> Path:
    return folder / f"done-{rank}-of-{processes}.json"


def feature_function(model: TrainableModel, run: RunSettings) -> Compute:
    """Return the fastest function from images to features that the settings allow."""
    on_gpu = next(model.parameters()).is_cuda
    fused = fused_features(model) if on_gpu and run.compile and run.precision == "bf16" else None
    return fused or partial(compiled_features() if run.compile else frozen_features, model)


@torch.inference_mode()
def fused_features(model: TrainableModel, dtype: torch.dtype = torch.float16) -> Compute | None:
    """Return `frozen_features` with fused kernels on CUDA; None if there are no kernels or results differ.

    The kernels use float16, whose resolution is eight times that of bfloat16, because rounding of features
    changes κ.
    """
    if not isinstance(model, PlaceModel) or not isinstance(model.backbone, ResNet):
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(PROBES, 3, SIDE, SIDE, generator=generator).to(device)
    backbone = copy.deepcopy(model.backbone).float().eval()
    fold_batch_norms(backbone, probes[:1])
    if backbone.conv1.bias is None:
        return None
    fused = _with_backbone(model, InPrecision(FusedResNet(backbone), dtype))

    def compute(images: Tensor) -> tuple[Tensor, Tensor]:
        with best_convolutions(), without_autocast(device):
            return frozen_features(fused, images)

    try:
        cosine = (frozen_features(fused, probes)[1] * frozen_features(model, probes)[1]).sum(1).min()
    except (RuntimeError, NotImplementedError):  # no such kernel for this device
        return None
    return compute if cosine >= LEAST_COSINE else None  # also None if the cosine is NaN


def _with_backbone(model: PlaceModel, backbone: torch.nn.Module) -> PlaceModel:
    """Return the same model with another backbone."""
    other = copy.copy(model)
    other._modules = dict(model._modules)
    other.backbone = backbone
    return other
