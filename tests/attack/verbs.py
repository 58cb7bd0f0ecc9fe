"""Operations on a map that an attack interrupts: build, append, remove, compact, calibrate, fit."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import BuildOptions, FitOptions, PlaceMap
from kappaplace.maps import build as extend
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings

FORK = multiprocessing.get_context("fork")  # a fresh interpreter would take seconds to import torch
IMAGES, HALF, BLOCK, SEGMENT, DIM = 24, 16, 4, 8, 16
REFUSED, CRASHED = 3, 4
"""Exit statuses of a process: one message, and anything else."""


class Stub:
    """An encoder that reads the first pixel; every process computes the same."""

    def __call__(self, paths: Sequence[str]) -> Embeddings:
        rows = []
        for path in paths:
            with Image.open(path) as image:
                rows.append(np.random.default_rng(image.getpixel((0, 0))[0]).normal(size=DIM))
        descriptors = np.stack(rows)
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
        return Embeddings(descriptors.astype(np.float32), np.full(len(rows), 9.0, np.float32))


@dataclass(frozen=True)
class World:
    """Images, a model, and maps to start from."""

    folder: Path

    @property
    def images(self) -> PlaceImages:
        return PlaceImages.open(self.folder / "images.parquet")

    @property
    def options(self) -> BuildOptions:
        return BuildOptions(segment_rows=SEGMENT, embedder=Stub())

    def part(self, first: int, last: int) -> PlaceImages:
        return self.images.select(np.arange(first, last))

    def open(self, place_map: Path) -> PlaceMap:
        return PlaceMap.open(place_map, self.folder / "model")

    def build(self, place_map: Path, last: int) -> PlaceMap:
        model = str(self.folder / "model")
        return PlaceMap.build(self.part(0, last), place_map, model, options=self.options)


@dataclass(frozen=True)
class Verb:
    """One operation on a map."""

    name: str
    start: str
    """Map to start from; empty for none."""
    run: Callable[[World, Path], object]


def _calibrate(world: World, place_map: Path) -> None:
    self_calibrate_map(world.open(place_map), CalibrateOptions(max_risk=0.3))


def _fit(world: World, place_map: Path) -> None:
    world.open(place_map).fit(FitOptions(views=1, epochs=1), calibrate=False)


REMOVED = [f"{i:03d}.png" for i in range(0, HALF, 3)]
VERBS = (
    Verb("build", "", lambda world, place_map: world.build(place_map, IMAGES)),
    Verb(
        "append",
        "half",
        lambda world, place_map: world.open(place_map).add(world.part(HALF, IMAGES), world.options),
    ),
    Verb("remove", "half", lambda world, place_map: remove(world.open(place_map))),
    Verb("compact", "removed", lambda world, place_map: world.open(place_map).compact()),
    Verb("calibrate", "whole", _calibrate),
    Verb("fit", "whole", _fit),
)


def remove(place_map: PlaceMap) -> None:
    """Remove references, if they are still there: a repeated command may find its work done."""
    left = set(place_map.store.names())
    if names := [name for name in REMOVED if name in left]:
        place_map.remove(names)


def make_world(folder: Path) -> World:
    """Write images, a model, and one map per start."""
    (folder / "images").mkdir(parents=True)
    names = [f"{i:03d}.png" for i in range(IMAGES)]
    rng = np.random.default_rng(0)
    for i, name in enumerate(names):
        pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        pixels[0, 0] = i
        Image.fromarray(pixels).save(folder / "images" / name)
    where = np.stack([np.arange(IMAGES) * 30.0, np.zeros(IMAGES)], 1)
    PlaceImages.create(names, where, root=folder / "images", name="walk").save(folder / "images.parquet")
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=DIM, preprocessing=Preprocessing(24, "exact")).eval()
    save_model(model, folder / "model")
    world = World(folder)
    extend.BLOCK = BLOCK
    world.build(folder / "half", HALF)
    shutil.copytree(folder / "half", folder / "removed")
    remove(world.open(folder / "removed"))
    PlaceMap.build(world.images, folder / "whole", str(folder / "model"), BuildOptions(segment_rows=SEGMENT))
    return world


def content(place_map: Path) -> dict[str, object]:
    """What a map answers with, by name; raises an error if it cannot be opened or is damaged."""
    opened = PlaceMap.open(place_map)
    problems = opened.verify()
    if problems:
        raise KappaPlaceError(f"verify: {problems[0]}")
    names = list(opened.store.names())
    if len(set(names)) != len(names) or len(names) != len(opened):
        raise KappaPlaceError("names are doubled")
    if not names:
        return {}
    rows = np.column_stack(
        [opened.store.descriptors[:], opened.store.whole("kappa"), opened.store.whole("poses")]
    )
    found: dict[str, object] = {name: row.tobytes() for name, row in zip(names, rows, strict=True)}
    found["calibrated"] = opened.manifest.calibration is not None
    found["model"] = opened.manifest.model.fingerprint
    return found


def between(found: dict[str, object], before: dict[str, object], after: dict[str, object]) -> bool:
    """Check that every value is that of before or after, and that nothing that both have is lost."""
    return set(before) & set(after) <= set(found) and all(
        value in (before.get(key), after.get(key)) for key, value in found.items()
    )


def in_a_child(work: Callable[[], object], log: Path, seconds: float = 120.0) -> int:
    """Run in a forked process; its exit status, or -1 if it hangs."""

    def child() -> None:
        torch.set_num_threads(1)
        try:
            work()
        except (KappaPlaceError, OSError):
            os._exit(REFUSED)
        except BaseException:
            log.write_text(traceback.format_exc())
            os._exit(CRASHED)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        return -1
    return process.exitcode


def whole_again(world: World, verb: Verb, place_map: Path, before: dict, after: dict) -> str:
    """Check a map after an interruption, repeat the operation, and check again; returns what is wrong."""
    try:
        if (place_map / "manifest.json").exists():
            if not between(content(place_map), before, after):
                return "something was lost or doubled"
        elif before:
            return "the map is gone"
        verb.run(world, place_map)
        found = content(place_map)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if verb.name == "calibrate":
        return "" if found["calibrated"] else "not calibrated"
    return "" if found == after else "the repeated command has another result"
