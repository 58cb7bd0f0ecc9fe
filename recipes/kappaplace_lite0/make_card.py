"""Write the model card of a packed model, README.md, from a CSV of measured results.

python recipes/kappaplace_lite0/make_card.py --folder src/kappaplace/models/shipped/kappaplace-lite0 \
    --results results.csv

The CSV has one row per dataset. The first column is ``set``, the others are metrics in the order of the card:
``set,queries,R@1,R@5,AUROC,smooth ECE,…``. The text is in card.template.md, without numbers.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.models.checkpoint import read_card
from kappaplace.models.shipped import CALIBRATION, DEFAULT, PAGE, size_bytes

COUNTS = ("queries", "references")
TEMPLATE = Path(__file__).with_name("card.template.md")
MEANING = {
    "R@1": "R@K: share of queries with a right reference among the best K.",
    "AUROC": "AUROC: chance that a right answer looks surer than a wrong one (.5 is guessing).",
    "smooth ECE": "Smooth ECE: how far probabilities are from the share of right answers (0 is best), fitted "
    "on other families of sets.",
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
        for column, cell in row.items():
            if column is None or cell is None or (column == "set" and not cell):
                raise KappaPlaceError(f"Line {line} of {file} does not have one cell per column.")
            if column != "set":
                _number(cell, f"line {line}, column {column} of {file}")
    return rows


def result_table(rows: list[dict[str, str]]) -> str:
    """Format the results in Markdown; an empty cell is a metric that was not measured."""
    header = list(rows[0])
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(column, row[column]) for column in header)} |")
    return "\n".join(lines)


def card_text(folder: Path, rows: list[dict[str, str]], name: str = DEFAULT) -> str:
    """Return the card of a packed model."""
    record = read_card(folder)
    architecture, size = record["architecture"], record["preprocessing"]["size"]
    shown = [meaning for column, meaning in MEANING.items() if column in rows[0]]
    return TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        backbone={"efficientnet_lite0": "EfficientNet-Lite0"}.get(
            architecture["backbone"], architecture["backbone"]
        ),
        dim=architecture["dim"],
        size="their own size" if size is None else f"{size} pixels" if isinstance(size, int) else f"{size}",
        megabytes=(size_bytes(folder) - _size(folder / PAGE)) / 1e6,
        data=record["data"],
        licence=record["licence"],
        table=result_table(rows),
        columns=" ".join(shown),
        calibration=calibration_text(folder),
        notes=f" {record['notes']}" if record["notes"] else "",
    )


def calibration_text(folder: Path) -> str:
    """Describe the packed calibration."""
    from kappaplace.calibration.sources import ACCEPT_RISK, ORIGIN, REJECT_RISK

    file = folder / CALIBRATION
    if not file.exists():
        return "None are packed with this model; calibrate a map with `kappaplace calibrate`."
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    facts, scores = values["facts"], ", ".join(values["top"]["scores"])
    return (
        f"A map made with this model gives probabilities at once, from the scores {scores}. They were fitted "
        f"on {facts['queries']:,} queries ({facts.get(ORIGIN, 'other places')}), {facts['right']:,} of them "
        f"answered rightly, so they are about other places than yours: answers are accepted from a "
        f"probability of {1 - ACCEPT_RISK:.2f} and rejected up to {REJECT_RISK:.2f}, **no risk is "
        "guaranteed**, and every answer says so. `kappaplace calibrate` on labelled queries of your own "
        "replaces them."
    )


def write_card(folder: Path, results: Path, name: str = DEFAULT) -> Path:
    """Write README.md of a packed model."""
    text = card_text(folder, read_results(results), name)
    write_file(folder / PAGE, text)
    return folder / PAGE


def _number(cell: str, where: str) -> float | None:
    if not cell.strip():
        return None
    try:
        value = float(cell)
    except ValueError:
        raise KappaPlaceError(f"'{cell}' is not a number ({where}).") from None
    return value if math.isfinite(value) else None


def _cell(column: str, cell: str) -> str:
    if column == "set":
        return cell
    value = _number(cell, column)
    if value is None:
        return "–"
    if column in COUNTS:
        return f"{int(value):,}"
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0.") else text


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the packed model")
    parser.add_argument("--results", type=Path, required=True, help="CSV file with one row per dataset")
    given = parser.parse_args()
    try:
        print(write_card(given.folder, given.results))
    except KappaPlaceError as error:
        raise SystemExit(str(error)) from None
