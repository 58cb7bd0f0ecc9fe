"""Pack a trained model for the package: half precision, calibration, model card.

python recipes/kappaplace_lite0/pack.py --model runs/lite0/model --calibration calibration.json \
    --results results.csv --data "what it was trained on"

The calibration is one that `recipes/kappaplace_lite0/calibrate.py` wrote, or any other
`Calibration.to_dict()`. It gets the fingerprint of the packed model, because it applies only to maps of
exactly this model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from make_card import read_results, write_card

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.sources import MODEL
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.models.checkpoint import ModelCard, load_model, save_model
from kappaplace.models.heads import MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import CALIBRATION, DEFAULT, FOLDER, MOST_BYTES, size_bytes

LICENCE = "Apache-2.0"


def pack(
    model: PlaceModel, folder: Path, calibration: Path | None, results: Path, data: str, notes: str = ""
) -> Path:
    """Write the folder of a shipped model; a model that is too large or has no κ is an error."""
    if not model.has_kappa:
        raise KappaPlaceError("The model has no kappa head. Train one before packing.")
    rows = read_results(results)
    values = None if calibration is None else json.loads(calibration.read_text(encoding="utf-8"))
    metrics = {
        f"{metric} {row['set']}": float(row[metric])
        for row in rows
        for metric in ("R@1", "AUROC")
        if row.get(metric, "").strip()
    }
    inference = model.fold() if isinstance(model.head, MirroredKappaHead) else model
    save_model(inference, folder, ModelCard(data, LICENCE, metrics, notes), half=True)
    if values is not None:
        save_calibration(folder, Calibration.from_dict(values))
    write_card(folder, results)
    if (size := size_bytes(folder)) > MOST_BYTES:
        raise KappaPlaceError(f"{folder} has {size:,} bytes, at most {MOST_BYTES:,} are allowed.")
    return folder


def save_calibration(folder: Path, calibration: Calibration) -> None:
    """Save the calibration with the fingerprint of the packed model, which rounding has changed."""
    values = calibration.to_dict()
    values["facts"][MODEL] = load_model(folder).fingerprint
    write_file(folder / CALIBRATION, json.dumps(values) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="a trained model with a kappa head")
    parser.add_argument("--calibration", type=Path, help="JSON of a fitted calibration")
    parser.add_argument(
        "--results", type=Path, required=True, help="CSV file with one row per dataset, see make_card.py"
    )
    parser.add_argument("--data", required=True, help="description of the training data")
    parser.add_argument("--notes", default="", help="additional text for the card")
    parser.add_argument("--out", type=Path, default=FOLDER / DEFAULT, help="default: the package itself")
    given = parser.parse_args()
    model = load_model(given.model)
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(f"{given.model} is a head for an external encoder, which cannot be packed.")
    folder = pack(model, given.out, given.calibration, given.results, given.data, given.notes)
    print(f"{folder}: {size_bytes(folder) / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except KappaPlaceError as error:
        raise SystemExit(str(error)) from None
