"""A district as a calibrated map, and a folder of photos without GPS whose true positions are known."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from kappaplace.calibration import CalibrateOptions
from kappaplace.data import PlaceImages, Preprocessing
from kappaplace.data.geodesy import unproject
from kappaplace.maps import BuildOptions, PlaceMap
from kappaplace.models.place_model import PlaceModel
from kappaplace_city import SyntheticCity
from tests.docs.photos import exif_of

FRAME = "EPSG:32610"
SIZE = 48
AGAIN, ELSEWHERE = 50, 25
"""Photos of places of the map, and photos of another district."""
START = 1_000_000_000.0


class Trip(NamedTuple):
    """A folder with ``town.map``, the photos of the map ``street/``, and ``holiday/``."""

    folder: Path
    truth: dict[str, np.ndarray]
    """True position of each photo of the map's district, by its name."""


def retaken(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The same view a little later: shifted, darker, noisy."""
    pixels = np.roll(np.asarray(image).astype(float), rng.integers(-1, 2, 2), (0, 1))
    pixels = 0.95 * pixels + rng.normal(0, 2, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_trip(folder: Path) -> Trip:
    """Write everything, in some seconds."""
    rng = np.random.default_rng(0)
    views = SyntheticCity(0, (1, 1)).views("val", spacing=15.0, queries=2, seed=0)
    rows = np.flatnonzero(~views.is_query).tolist()
    images = [Image.fromarray(np.asarray(image)) for image in views.render(SIZE)]
    latitude, longitude = (side.tolist() for side in unproject(views.positions, FRAME))
    for name in ("street", "holiday", "labeled"):
        (folder / name).mkdir()
    for row in rows:
        exif = exif_of(latitude[row], longitude[row], float(views.heading[row]))
        images[row].save(folder / "street" / f"{row:03d}.png", exif=exif)
        retaken(images[row], rng).save(folder / "labeled" / f"{row:03d}.png")
    truth = {}
    for number, row in enumerate(rng.permutation(rows)[:AGAIN].tolist()):
        name, exif = f"again {number:02d}.jpg", exif_of(time=START + 600 * number)
        retaken(images[row], rng).save(folder / "holiday" / name, exif=exif, quality=92)
        truth[name] = views.positions[row]
    others = SyntheticCity(5, (1, 1)).views("test", spacing=30.0, queries=ELSEWHERE, seed=1)
    strange = [image for image, query in zip(others.render(SIZE), others.is_query, strict=True) if query]
    for number, image in enumerate(strange):
        file = folder / "holiday" / f"elsewhere {number:02d}.jpg"
        Image.fromarray(np.asarray(image)).save(file, quality=92)
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", 64, preprocessing=Preprocessing(SIZE, "exact")).eval()
    town = PlaceMap.build(folder / "street", folder / "town.map", model, BuildOptions(patches="none"))
    labeled = PlaceImages.create(
        [f"{row:03d}.png" for row in rows], views.positions[rows], root=folder / "labeled", frame=FRAME
    )
    options = CalibrateOptions(max_risk=0.3, confidence=0.8, rerank=0, thin=False, keep_twins=True)
    town.calibrate(labeled, options)
    return Trip(folder, truth)
