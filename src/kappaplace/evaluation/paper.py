"""The numbers of the KappaPlace paper (``paper.toml``) next to ours, as far as they can be measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.measuring import measure
from kappaplace.evaluation.results import EvaluationResult, Metrics, SetResult, write_rows
from kappaplace.evaluation.run import Choices, Machine, evaluate_model
from kappaplace.files import make_folder
from kappaplace.models.checkpoint import load_model
from kappaplace.models.exported import KAPPA, VARIANCE, ExportedModel
from kappaplace.models.heads import Head

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


_PAPER = tomllib.loads(files("kappaplace.evaluation").joinpath("paper.toml").read_text(encoding="utf-8"))
ROLES: dict[str, str] = _PAPER["roles"]
"""What each model is, by role."""
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {name: tuple(ids) for name, ids in _PAPER["protocols"].items()}
"""Protocols that can stand for a dataset; the first with a table is used."""
POOL: tuple[str, ...] = tuple(_PAPER["pool"])
"""Datasets that the paper pools."""
POOLED = "pooled"
KS = (1, 5, 10)


def _cells() -> Iterator[PaperNumber]:
    for table in _PAPER["tables"]:
        recall = table["metric"] == "R"
        for method, row in table["rows"].items():
            model = _PAPER["methods"][method]
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
"""Everything that an evaluation can measure."""
COST: tuple[PaperNumber, ...] = tuple(PaperNumber(set="", **cost) for cost in _PAPER["costs"])
"""Time and memory of one machine."""
SCORES = "l2,pa,log-sue,log-sue-one-sided,variance,variance-upper,inverse-kappa,kappaplace"
ByName = dict[str, Metrics]
"""Metrics by the paper's name of the dataset."""


class PaperRow(NamedTuple):
    """One number of the paper, and ours."""

    paper: PaperNumber
    """The number of the paper."""
    ours: float = math.nan
    """Our number. NaN if it is missing."""
    reason: str = ""
    """Why our number is missing."""

    @property
    def difference(self) -> float:
        """Our number minus that of the paper."""
        return self.ours - self.paper.value


class PaperComparison(NamedTuple):
    """All rows, and the evaluations they are based on."""

    rows: list[PaperRow]
    """One row per number of the paper."""
    evaluations: dict[str, EvaluationResult]
    """Evaluations by role of the model."""
    tables: dict[str, Path]
    """Dataset of the paper → table that was used for it."""


def find_tables(data: Path) -> dict[str, Path]:
    """Return the paper's datasets in a folder, stored as PROTOCOL.parquet or PROTOCOL.csv."""
    if not data.is_dir():
        raise KappaPlaceError(f"There is no folder {data}. Pass the folder of the tables as --data.")
    tables: dict[str, Path] = {}
    for name, protocols in PROTOCOLS_OF.items():
        files = [data / f"{each}{suffix}" for each in protocols for suffix in (".parquet", ".csv")]
        present = next((file for file in files if file.is_file()), None)
        if present is not None:
            tables[name] = present
    return tables


def parse_models(words: Sequence[str]) -> dict[str, list[str]]:
    """Return models by role, from ROLE=MODEL; without a role, the head of the model decides."""
    models: dict[str, list[str]] = {}
    for word in words:
        role, equals, source = word.partition("=")
        if not equals or role not in ROLES:
            role, source = _role_of(word), word
        models.setdefault(role, []).append(source)
    for role, sources in models.items():
        if len(sources) > 1 and role != "seeds-r18":
            raise KappaPlaceError(
                f"Got more than one model for the role {role}. Pass ROLE=MODEL, with one of the roles "
                f"{', '.join(ROLES)}."
            )
    # Post-training does not change the encoder, so the model serves as the baseline, too.
    if "pt" in models and "baseline" not in models:
        models["baseline"] = models["pt"]
    return models


def _role_of(source: str) -> str:
    model = load_model(source)
    if isinstance(model, ExportedModel):
        outputs = model.record.outputs
        return "pt" if KAPPA in outputs else "stun" if VARIANCE in outputs else "baseline"
    head = model.head
    if not isinstance(head, Head):
        return "baseline"
    return "pt" if head.spread == "kappa" else "stun"


def compare_with_paper(
    words: Sequence[str],
    data: Path,
    choices: Choices,
    machine: Machine = Machine(),
) -> PaperComparison:
    """Evaluate models on the paper's datasets, with the image size of each protocol.

    Args:
        words: Models, as MODEL or ROLE=MODEL.
        data: Folder with tables named after protocols.
        choices: Options.
        machine: Where and how images are embedded.

    Returns:
        The numbers of the paper, each with ours or the reason why it is missing.

    Raises:
        KappaPlaceError: If the folder does not exist, a table has another protocol, or a role is used twice.
    """
    tables = find_tables(data)
    for file in tables.values():
        if (named := PlaceImages.open(file, machine.root).protocol) != file.stem:
            raise KappaPlaceError(
                f"The table {file} must have the protocol '{file.stem}', got '{named}'. Run "
                f"`kappaplace data import {file.stem}`."
            )
    models = parse_models(words)
    choices = choices if choices.scores else replace(choices, scores=SCORES)
    evaluations: dict[str, EvaluationResult] = {}
    measured: dict[str, list[ByName]] = {}
    for role, sources in models.items():
        for number, source in enumerate(sources):
            title = role if len(sources) == 1 else f"{role}-{number + 1}"
            result = next((e for e in evaluations.values() if e.facts["model"] == source), None)
            if result is None and tables:
                result = evaluate_model(
                    source, list(tables.values()), choices, machine, name=title, resize="protocol"
                )
            if result is not None:
                evaluations[title] = result
                measured.setdefault(role, []).append(_by_paper_name(result, tables, choices))
    rows = [_row(number, measured, models, tables) for number in NUMBERS]
    cost = "time and memory of one machine, not measured by an evaluation"
    return PaperComparison([*rows, *(PaperRow(n, reason=cost) for n in COST)], evaluations, tables)


def _by_paper_name(result: EvaluationResult, tables: dict[str, Path], choices: Choices) -> ByName:
    """Return metrics under the paper's names, and pooled over the datasets that the paper pools."""
    named: dict[str, SetResult] = dict(zip(tables, result.sets, strict=True))
    metrics = {name: result.metrics[each.name] for name, each in named.items()}
    if all(name in named for name in POOL):
        pool = [named[name] for name in POOL]
        metrics[POOLED] = measure(pool, resamples=0, seed=choices.seed)[POOLED]
    return metrics


def _row(
    number: PaperNumber,
    measured: dict[str, list[ByName]],
    models: dict[str, list[str]],
    tables: dict[str, Path],
) -> PaperRow:
    needed = POOL if number.set == POOLED else (number.set,)
    missing = [name for name in needed if name not in tables]
    if missing:
        return PaperRow(number, reason=f"no data: {', '.join(missing)}")
    if number.role not in models:
        return PaperRow(number, reason=f"no model: {number.role}=MODEL ({ROLES[number.role]})")
    values = [_value(number, metrics[number.set]) for metrics in measured[number.role]]
    defined = [value for value in values if value is not None]
    if not defined:
        return PaperRow(number, reason=f"this model or dataset does not have the score {number.score}")
    return PaperRow(number, float(np.mean(defined)))  # the mean over seeds, as in the paper


def _value(number: PaperNumber, metrics: Metrics) -> float | None:
    values = metrics["scores"].get(number.score, {}) if number.score else metrics["recall"]
    return values.get(number.metric)


def paper_rows(comparison: PaperComparison) -> list[dict[str, str | float]]:
    """Return plain rows for CSV, JSON and tables."""
    return [
        {
            "table": row.paper.table,
            "method": row.paper.method,
            "set": row.paper.set,
            "protocol": comparison.tables[row.paper.set].stem if row.paper.set in comparison.tables else "",
            "metric": row.paper.metric,
            "paper": row.paper.value,
            "spread": math.nan if row.paper.spread is None else row.paper.spread,
            "ours": row.ours,
            "difference": row.difference,
            "reason": row.reason,
        }
        for row in comparison.rows
    ]


def write_paper(comparison: PaperComparison, folder: Path) -> Path:
    """Write paper.csv to a folder and return the file."""
    rows = paper_rows(comparison)
    return write_rows(make_folder(folder) / "paper.csv", rows, list(rows[0]))
