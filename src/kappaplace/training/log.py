"""What a run tells: lines on the terminal, CSV files, and trackers where they are installed."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file

STEPS, EPOCHS = "steps.csv", "epochs.csv"
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}


def installed_trackers(names: Sequence[str]) -> list[str]:
    """Those of the wanted trackers that can be used here."""
    unknown = sorted(set(names) - set(_MODULES))
    if unknown:
        raise KappaPlaceError(f"Unknown tracker '{unknown[0]}'; known are {', '.join(_MODULES)}.")
    return [
        name for name in names if any(importlib.util.find_spec(module) for module in _MODULES.get(name, ()))
    ]


class RunLog:
    """Rows of steps and epochs, kept as CSV; a resumed run drops what came after its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[dict[str, Any]] = []
        self.epochs: list[dict[str, Any]] = []

    def write(self) -> None:
        """Bring both files up to date; rows may gain columns, so they are written whole."""
        for name, rows in ((STEPS, self.steps), (EPOCHS, self.epochs)):
            if rows:
                _write_text(self.folder / name, as_csv(rows))


def _write_text(file: Path, text: str) -> None:
    replace_file(file, lambda part: part.write_text(text, encoding="utf-8"), sync=False)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with all columns that any of them has, numbers with six digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    """One line for a terminal: ``epoch 3/30  loss 1.23  R@1 0.812  ECE@1 0.103  (42 s)``."""
    parts = [f"epoch {row['epoch']}/{epochs}"]
    parts += [f"{name} {row[name]:.4g}" for name in ("loss", "R@1", "ECE@1", "AUROC") if name in row]
    return "  ".join([*parts, f"({row['seconds']:.0f} s)"])
