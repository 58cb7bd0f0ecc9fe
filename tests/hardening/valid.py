"""A small world in which every command works, to change one thing of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.sources import save_calibration
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.drive_files import write_tum
from tests.slam.synthetic import calibration

IMAGES = 24

BASE = {
    "audit": "closures.csv --threshold 0.5 --max-risk 0.5",
    "calibrate": "town.map --self",
    "city": "--out city",
    "compare": "judged judged",
    "data-import": "csv images --out new.parquet",
    "data-split": "table.parquet --out split --by area --block 60",
    "demo": "--out demo",
    "evaluate-model": "./model table.parquet --out judged --no-report --resamples 5",
    "localize": "town.map images/000.png",
    "map-add": "town.map images --prefix new/",
    "map-build": "table.parquet --out new.map --model model",
    "map-export": "town.map --out pairs.txt --queries asked",
    "map-fit": "town.map --estimate",
    "map-label": "town.map asked --out labels.csv --page page.html",
    "map-monitor": "town.map asked",
    "map-reembed": "town.map --model model",
    "serve": "nothing.map",
    "slam-run": "images --odometry odometry.tum --out drive --model model --calibration closures.json",
}
"""Words that work, apart from serve's, which would listen for ever."""


def world(folder: Path) -> None:
    """Images, their table, a model, a map, a trajectory and a calibration."""
    rng = np.random.default_rng(0)
    paths = [f"{i:03d}.png" for i in range(IMAGES)]
    for kind in ("images", "asked"):
        (folder / kind).mkdir(parents=True)
        for path in paths if kind == "images" else paths[:4]:
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / kind / path)
    where = np.stack([np.arange(IMAGES) * 10.0, np.zeros(IMAGES)], 1)
    asked = np.arange(IMAGES) % 4 == 0
    table = PlaceImages.create(paths, where, is_query=asked, root=folder / "images", name="walk")
    table.save(folder / "table.parquet")
    rows = "".join(f"{path},{x},{y}\n" for path, (x, y) in zip(paths, where.tolist(), strict=True))
    (folder / "images" / "poses.csv").write_text("file,x,y\n" + rows)
    torch.manual_seed(0)
    model = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(24, "exact")).eval()
    save_model(model, folder / "model")
    town = PlaceMap.build(folder / "table.parquet", folder / "town.map", str(folder / "model"))
    self_calibrate_map(town, CalibrateOptions(max_risk=0.3))
    write_tum(folder / "odometry.tum", np.column_stack([where, np.zeros(IMAGES)]), np.arange(float(IMAGES)))
    save_calibration(calibration(), folder / "closures.json")
    rows = "".join(f"{row / 40},{int(row > 9)}\n" for row in range(40))
    (folder / "closures.csv").write_text("score,correct\n" + rows)
