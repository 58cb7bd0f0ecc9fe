"""The numbers of the KappaPlace paper (``paper.toml``): tables, roles of models, datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.resources import files
from itertools import repeat
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under its older name
    import tomli as tomllib


class PaperNumber(NamedTuple):
    """One cell of one table."""

    table: str
    """Label in the source of the paper."""
    method: str
    """Name of the method as printed."""
    set: str
    """Name of the dataset, or "pooled"."""
    metric: str
    """Name of the metric, such as "ECE@1"."""
    value: float
    """The number; recall as a fraction."""
    spread: float | None = None
    """Standard deviation over seeds, if the paper reports it."""
    score: str = ""
    """Our name of the score. Empty if the metric does not depend on a score."""
    role: str = ""
    """The model that is needed: a key of `ROLES`."""


PAPER = tomllib.loads(files("kappaplace.evaluation").joinpath("paper.toml").read_text(encoding="utf-8"))
"""Content of ``paper.toml``."""
ROLES: dict[str, str] = PAPER["roles"]
"""Description of the model of each role, such as "CosPlace, ResNet-50, 50 epochs"."""
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {name: tuple(ids) for name, ids in PAPER["protocols"].items()}
"""Protocols that can replace a dataset of the paper; the first with a table is used."""
POOL: tuple[str, ...] = tuple(PAPER["pool"])
"""Datasets that the paper pools."""
POOLED = "pooled"
KS = (1, 5, 10)


def _cells() -> Iterator[PaperNumber]:
    for table in PAPER["tables"]:
        recall = table["metric"] == "R"
        for method, row in table["rows"].items():
            model = PAPER["methods"][method]
            score = "" if recall else model["score"]
            spreads = table.get("spreads", {}).get(method, repeat(repeat(None)))
            for dataset, values, deviations in zip(table["sets"], row, spreads, strict=False):
                for k, value, spread in zip(KS, values, deviations, strict=False):
                    number = round(value / 100, 4) if recall else value
                    metric = f"{table['metric']}@{k}"
                    yield PaperNumber(
                        table["label"], method, dataset, metric, number, spread, score, model["role"]
                    )


NUMBERS: tuple[PaperNumber, ...] = tuple(_cells())
"""Numbers of the paper that an evaluation can measure."""
COST: tuple[PaperNumber, ...] = tuple(PaperNumber(set="", **cost) for cost in PAPER["costs"])
"""Time and memory that the paper reports for one machine."""
LABELS: tuple[str, ...] = tuple(
    dict.fromkeys([*(n.table for n in (*NUMBERS, *COST)), *(each["label"] for each in PAPER["figures"])])
)
"""Labels of the tables and figures with measurements."""
