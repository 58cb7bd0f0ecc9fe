"""Pack a trained model for the package: half precision, calibration, and model card (README.md).

python recipes/kappaplace_lite0/pack.py --model runs/lite0/model --calibration calibration.json \
    --results results.csv --data "description of the training data"

The calibration is one that `recipes/kappaplace_lite0/calibrate.py` wrote, or any other
`Calibration.to_dict()`. It gets the fingerprint of the packed model, because it applies only to maps of
exactly this model.

The results have one row per dataset. The first column is ``set``, the others are metrics in the order of the
card: ``set,queries,R@1,R@5,AUROC,smooth ECE,…``. The text of the card is in card.template.md.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.sources import ACCEPT_RISK, MODEL, ORIGIN, REJECT_RISK
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.models.checkpoint import ModelCard, load_model, read_card, save_model
from kappaplace.models.heads import MirroredKappaHead
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.shipped import CALIBRATION, DEFAULT, FOLDER, MOST_BYTES, PAGE, size_bytes

LICENSE = "Apache-2.0"
COUNTS = ("queries", "references")
TEMPLATE = Path(__file__).with_name("card.template.md")
BACKBONES = {"efficientnet_lite0": "EfficientNet-Lite0"}
MEANING = {
    "R@1": "R@K: fraction of queries with a correct reference among the K best.",
    "AUROC": "AUROC: probability that a correct answer has a higher confidence than an incorrect one (0.5 is "
    "chance).",
    "smooth ECE": "Smooth ECE: gap between probabilities and the fraction of correct answers (0 is best); "
    "the probabilities were fitted on other families of datasets.",
    "Brier": "Brier: mean squared error of the probability (0 is best).",
}


def read_results(file: Path) -> list[dict[str, str]]:
    """Read the rows of the CSV; a row without a dataset, or with text instead of a number, is an error."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            rows = list(reader)
    except OSError as error:
        raise KappaPlaceError(f"The results {file} cannot be read ({error.strerror}).") from None
    if not rows or (reader.fieldnames or [""])[0] != "set":
        raise KappaPlaceError(f"The results {file} need a first column 'set' and one row per dataset.")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values() or not row["set"]:
            raise KappaPlaceError(f"Line {line} of {file} does not have one cell per column.")
        for column in row.keys() - {"set"}:
            try:
                float(row[column] or 0)
            except ValueError:
                raise KappaPlaceError(
                    f"{row[column]!r} is not a number (line {line}, column {column} of {file})."
                ) from None
    return rows


def result_table(rows: list[dict[str, str]]) -> str:
    """Format the results in Markdown; an empty cell is a metric that was not measured."""
    lines = [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    lines += [f"| {' | '.join(_cell(column, cell) for column, cell in row.items())} |" for row in rows]
    return "\n".join(lines)


def _cell(column: str, cell: str) -> str:
    if column == "set":
        return cell
    if not cell.strip():
        return "–"
    return f"{int(cell):,}" if column in COUNTS else f"{float(cell):.3f}"


def calibration_text(folder: Path) -> str:
    """Describe the packed calibration."""
    file = folder / CALIBRATION
    if not file.exists():
        return "This model has no shipped calibration. Calibrate a map with `kappaplace calibrate`."
    values = json.loads(file.read_text(encoding="utf-8"))
    facts, scores = values["facts"], ", ".join(values["top"]["scores"])
    return (
        f"A map of this model has probabilities without a calibration of its own, from the scores {scores}. "
        f"They were fitted on {facts['queries']:,} queries of other places "
        f"({facts.get(ORIGIN, 'other places')}), of which {facts['right']:,} were answered correctly. "
        f"Answers with a probability of at least {1 - ACCEPT_RISK:.2f} are accepted, those up to "
        f"{REJECT_RISK:.2f} are rejected. **No risk is guaranteed**, and a note in every answer "
        "states this. Your own calibration with `kappaplace calibrate` replaces them."
    )


def write_card(folder: Path, rows: list[dict[str, str]], name: str = DEFAULT) -> None:
    """Write README.md of a packed model."""
    (folder / PAGE).unlink(missing_ok=True)  # its bytes do not count
    record = read_card(folder)
    architecture, size = record["architecture"], record["preprocessing"]["size"]
    text = TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        backbone=BACKBONES.get(architecture["backbone"], architecture["backbone"]),
        dim=architecture["dim"],
        size="their own size" if size is None else f"{size} pixels" if isinstance(size, int) else f"{size}",
        megabytes=size_bytes(folder) / 1e6,
        data=record["data"],
        license=record["licence"],
        table=result_table(rows),
        columns=" ".join(meaning for column, meaning in MEANING.items() if column in rows[0]),
        calibration=calibration_text(folder),
        notes=f" {record['notes']}" if record["notes"] else "",
    )
    write_file(folder / PAGE, text)


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
    save_model(inference, folder, ModelCard(data, LICENSE, metrics, notes), half=True)
    if values is not None:
        save_calibration(folder, Calibration.from_dict(values))
    write_card(folder, rows)
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
    parser.add_argument("--results", type=Path, required=True, help="CSV file with one row per dataset")
    parser.add_argument("--data", required=True, help="description of the training data")
    parser.add_argument("--notes", default="", help="additional text for the card")
    parser.add_argument("--out", type=Path, default=FOLDER / DEFAULT, help="default: the package itself")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    if not isinstance(model, PlaceModel):
        raise KappaPlaceError(f"{arguments.model} is a head for an external encoder, which cannot be packed.")
    folder = pack(
        model, arguments.out, arguments.calibration, arguments.results, arguments.data, arguments.notes
    )
    print(f"{folder}: {size_bytes(folder) / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except KappaPlaceError as error:
        raise SystemExit(str(error)) from None
