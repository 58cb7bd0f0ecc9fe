"""Read the columns of benchmarks/real/run.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sets import FAMILY, ROUTES, SEALED, UNSEEN

ALL = (*ROUTES, *UNSEEN)
OPEN = tuple(name for name in ALL if name not in SEALED)


@dataclass(frozen=True)
class Run:
    """One backbone and one seed."""

    backbone: str
    seed: int
    columns: dict[str, NDArray]

    def has(self, model: str) -> bool:
        return any(key.startswith(f"{model}/") for key in self.columns)

    def of(self, model: str, where: str, column: str, variant: str = "clean") -> NDArray:
        return self.columns[f"{model}/{where}/{variant}/{column}"]

    def encoder_of(self, head: str) -> str:
        """Return the encoder of a head."""
        from encoders import HEADS

        return HEADS[head][0] if head in HEADS else head

    def right(self, model: str, where: str, variant: str = "clean", at: int = 1) -> NDArray[np.bool_]:
        return self.of(self.encoder_of(model), where, f"hit@{at}", variant)

    def score(self, model: str, where: str, name: str, variant: str = "clean") -> NDArray[np.float64]:
        """Return an uncertainty by name: of the head if it has one, otherwise of its encoder."""
        for owner in (model, self.encoder_of(model)):
            key = f"{owner}/{where}/{variant}/{name}"
            if key in self.columns:
                return self.columns[key].astype(np.float64)
        if name == "l2":
            top = self.of(self.encoder_of(model), where, "similarities", variant)[:, 0].astype(np.float64)
            return np.sqrt(np.maximum(2 - 2 * top, 0))
        raise KeyError(f"{model} has no score {name} on {where} ({variant})")


def load_runs(folder: Path, backbone: str = "") -> list[Run]:
    """Read all files of a folder."""
    runs = []
    for file in sorted(folder.glob("*.npz")):
        name, _, seed = file.stem.rpartition("_")
        if not backbone or name == backbone:
            with np.load(file) as stored:
                runs.append(Run(name, int(seed), {key: stored[key] for key in stored.files}))
    return runs


def others(where: str, sets: Sequence[str]) -> list[str]:
    """Return the datasets of other families, on which combinations for this one are fitted."""
    return [name for name in sets if FAMILY[name] != FAMILY[where]]
