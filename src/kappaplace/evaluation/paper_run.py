"""The paper's numbers beside ours: what can be run with the data and models at hand; else, why not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.measuring import measure
from kappaplace.evaluation.paper import COST, NUMBERS, POOL, POOLED, PROTOCOLS_OF, ROLES, PaperNumber
from kappaplace.evaluation.results import EvaluationResult, SetResult, write_rows
from kappaplace.evaluation.run import Choices, Machine, evaluate_model
from kappaplace.files import make_folder
from kappaplace.models.checkpoint import load_model
from kappaplace.models.exported import KAPPA, VARIANCE, ExportedModel
from kappaplace.models.heads import Head

SCORES = "l2,pa,log-sue,variance,inverse-kappa,kappaplace"
Metrics = dict[str, dict[str, Any]]


class PaperRow(NamedTuple):
    """One number of the paper, ours, and why ours is missing."""

    paper: PaperNumber
    ours: float = math.nan
    reason: str = ""

    @property
    def difference(self) -> float:
        return self.ours - self.paper.value


class PaperComparison(NamedTuple):
    """All rows, and the evaluations behind them."""

    rows: list[PaperRow]
    evaluations: dict[str, EvaluationResult]
    tables: dict[str, Path]
    """Set of the paper → the table that stood for it."""


def find_tables(data: Path) -> dict[str, Path]:
    """Which of the paper's sets are under a folder, as PROTOCOL.parquet or PROTOCOL.csv."""
    if not data.is_dir():
        raise KappaPlaceError(f"There is no folder {data}; give the one that holds the tables with --data.")
    found: dict[str, Path] = {}
    for name, protocols in PROTOCOLS_OF.items():
        files = [data / f"{each}{suffix}" for each in protocols for suffix in (".parquet", ".csv")]
        present = next((file for file in files if file.is_file()), None)
        if present is not None:
            found[name] = present
    return found


def parse_models(words: Sequence[str]) -> dict[str, list[str]]:
    """Models by role, from ROLE=MODEL; a model without a role gets the one that its head suggests."""
    models: dict[str, list[str]] = {}
    for word in words:
        role, equals, source = word.partition("=")
        if not equals or role not in ROLES:
            role, source = _role_of(word), word
        models.setdefault(role, []).append(source)
    for role, sources in models.items():
        if len(sources) > 1 and role != "seeds-r18":
            raise KappaPlaceError(
                f"Two models are there as {role}; write ROLE=MODEL with one of {', '.join(ROLES)}."
            )
    # A post-trained head leaves its encoder as it was, so it shows the baseline, too.
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
    """Run what can be run, each set resized as its protocol says, and put it beside the paper's numbers."""
    tables = find_tables(data)
    for file in tables.values():
        if (named := PlaceImages.open(file, machine.root).protocol) != file.stem:
            raise KappaPlaceError(
                f"{file} is a table of {named or 'no protocol'}: make it with "
                f"`kappaplace data import {file.stem}`."
            )
    models = parse_models(words)
    choices = choices if choices.scores else replace(choices, scores=SCORES)
    evaluations: dict[str, EvaluationResult] = {}
    measured: dict[str, list[Metrics]] = {}
    for role, sources in models.items():
        for number, source in enumerate(sources):
            title = role if len(sources) == 1 else f"{role}-{number + 1}"
            known = next((e for e in evaluations.values() if e.facts["model"] == source), None)
            if known is None and tables:
                known = evaluate_model(
                    source, list(tables.values()), choices, machine, name=title, resize="protocol"
                )
            if known is not None:
                evaluations[title] = known
                measured.setdefault(role, []).append(_by_paper_name(known, tables, choices))
    rows = [_row(number, measured, models, tables) for number in NUMBERS]
    cost = "time and memory of one machine, not measured by an evaluation"
    return PaperComparison([*rows, *(PaperRow(n, reason=cost) for n in COST)], evaluations, tables)


def _by_paper_name(result: EvaluationResult, tables: dict[str, Path], choices: Choices) -> Metrics:
    """Metrics under the paper's names of the sets, and pooled over those that the paper pools."""
    named: dict[str, SetResult] = dict(zip(tables, result.sets, strict=True))
    found = {name: result.metrics[each.name] for name, each in named.items()}
    if all(name in named for name in POOL):
        pool = [named[name] for name in POOL]
        found[POOLED] = measure(pool, resamples=0, seed=choices.seed)[POOLED]
    return found


def _row(
    number: PaperNumber,
    measured: dict[str, list[Metrics]],
    models: dict[str, list[str]],
    tables: dict[str, Path],
) -> PaperRow:
    needed = POOL if number.set == POOLED else (number.set,)
    missing = [name for name in needed if name not in tables]
    if missing:
        return PaperRow(number, reason=f"no data: {', '.join(missing)}")
    if number.role not in models:
        return PaperRow(number, reason=f"no model given as {number.role}=MODEL ({ROLES[number.role]})")
    values = [_value(number, found) for found in measured[number.role]]
    known = [value for value in values if value is not None]
    if not known:
        return PaperRow(number, reason=f"this model or set allows no score {number.score}")
    return PaperRow(number, float(np.mean(known)))  # of several seeds the mean, as in the paper


def _value(number: PaperNumber, found: Metrics) -> float | None:
    metrics = found[number.set]
    where = metrics["scores"].get(number.score, {}) if number.score else metrics["recall"]
    return where.get(number.metric)


def paper_rows(comparison: PaperComparison) -> list[dict[str, Any]]:
    """Plain rows for CSV, JSON and tables."""
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
    """Write paper.csv."""
    return write_rows(make_folder(folder) / "paper.csv", paper_rows(comparison))
