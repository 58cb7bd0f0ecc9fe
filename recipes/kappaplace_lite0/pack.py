"""Put a trained model into the package: half precision, calibration, model card.

python recipes/kappaplace_lite0/pack.py --model runs/lite0/model --calibration calibration.json \
    --results results.csv --data "what it was trained on"

The calibration is one that `recipes/kappaplace_lite0/calibrate.py` wrote, or any other
`Calibration.to_dict()`. It gets the fingerprint of the model as packed: only maps made with this very model
may borrow it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from make_card import read_results, write_card

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.sources import MODEL
from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file
from kappaplace.models.checkpoint import ModelCard, load_model, save_model
from kappaplace.models.heads import MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import CALIBRATION, DEFAULT, FOLDER, MOST_BYTES, size_bytes

LICENCE = "Apache-2.0"


def pack(
    model: PlaceModel, folder: Path, calibration: Path | None, results: Path, data: str, notes: str = ""
) -> Path:
    """Write the folder of a shipped model; refuses one that is too heavy or knows no κ."""
    if not model.has_kappa:
        raise KappaPlaceError("The model has no kappa head; train one before it is packed.")
    rows = read_results(results)
    made = None if calibration is None else json.loads(calibration.read_text(encoding="utf-8"))
    metrics = {
        f"{metric} {row['set']}": float(row[metric])
        for row in rows
        for metric in ("R@1", "AUROC")
        if row.get(metric, "").strip()
    }
    inference = model.fold() if isinstance(model.head, MirroredKappaHead) else model
    save_model(inference, folder, ModelCard(data, LICENCE, metrics, notes), half=True)
    if made is not None:
        keep_calibration(folder, Calibration.from_dict(made))
    write_card(folder, results)
    if (size := size_bytes(folder)) > MOST_BYTES:
        raise KappaPlaceError(f"{folder} weighs {size:,} bytes, more than the {MOST_BYTES:,} it may.")
    return folder


def keep_calibration(folder: Path, calibration: Calibration) -> None:
    """Beside a packed model, marked as belonging to it: rounding has changed the fingerprint."""
    values = calibration.to_dict()
    values["facts"][MODEL] = load_model(folder).fingerprint
    text = json.dumps(values) + "\n"
    replace_file(folder / CALIBRATION, lambda part: part.write_text(text, encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="a trained model with a kappa head")
    parser.add_argument("--calibration", type=Path, help="JSON of a fitted calibration")
    parser.add_argument("--results", type=Path, required=True, help="CSV, one row a set; see make_card.py")
    parser.add_argument("--data", required=True, help="what it was trained on, in sentences")
    parser.add_argument("--notes", default="", help="what else the card shall say")
    parser.add_argument("--out", type=Path, default=FOLDER / DEFAULT, help="default: the package itself")
    given = parser.parse_args()
    model = load_model(given.model)
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(f"{given.model} is a head beside a foreign encoder, which cannot be packed.")
    folder = pack(model, given.out, given.calibration, given.results, given.data, given.notes)
    print(f"{folder}: {size_bytes(folder) / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except KappaPlaceError as sentence:
        raise SystemExit(str(sentence)) from None
