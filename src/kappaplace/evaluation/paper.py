"""Comparison with the paper: its numbers next to ours, each with a status."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kappaplace.data.protocols import PROTOCOLS
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.measuring import flaws_of
from kappaplace.evaluation.results import EvaluationResult, Metrics, SetResult, write_rows
from kappaplace.evaluation.run import Choices, Machine, evaluate_model
from kappaplace.files import make_folder, packaged_toml
from kappaplace.models.checkpoint import load_model
from kappaplace.models.exported import KAPPA, VARIANCE, ExportedModel
from kappaplace.models.heads import Head

MEASURED, INCOMPARABLE = "measured", "not comparable"
MEASURABLE, IMPOSSIBLE = "measurable", "not measurable"
SCORES = "l2,pa,log-sue,log-sue-one-sided,variance,variance-upper,inverse-kappa,kappaplace"


class PaperNumber(NamedTuple):
    """One published number: a cell of a table of the paper."""

    table: str
    """Label in the source of the paper."""
    method: str
    """Name of the method, as printed."""
    set: str
    """Name of the dataset, or "pooled"."""
    metric: str
    """Name of the metric, such as "ECE@1"."""
    value: float
    """The number; recall as a fraction."""
    spread: float | None = None
    """Standard deviation over seeds, if the paper reports it."""
    score: str = ""
    """Name of the score in this package. Empty if the metric does not depend on a score."""
    role: str = ""
    """Role of the model that is needed, a key of `ROLES`."""


PAPER = packaged_toml("kappaplace.evaluation", "paper.toml")
"""Content of ``paper.toml``."""
ROLES: dict[str, str] = PAPER["roles"]
"""Description of the model of each role, such as "CosPlace, ResNet-50, 50 epochs"."""
PROTOCOLS_OF: dict[str, tuple[str, ...]] = {name: tuple(ids) for name, ids in PAPER["protocols"].items()}
"""Protocols for each dataset of the paper. The first one that has a table is used."""
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


class PaperRow(NamedTuple):
    """A number of the paper, and ours."""

    paper: PaperNumber
    """The number of the paper."""
    ours: float = math.nan
    """Our number. NaN if it is missing."""
    status: str = MEASURED
    """Status: measured, not comparable, measurable (with other data or models) or not measurable."""
    reason: str = ""
    """Reason why our number is missing or not comparable."""
    spread: float = math.nan
    """Sample standard deviation of our number over seeds. NaN for a single model."""
    queries: int = 0
    """Number of queries. 0 if our number is missing."""
    references: int = 0
    """Number of references."""
    backbone: str = ""
    """Backbone of our model."""

    @property
    def difference(self) -> float:
        """Our number minus that of the paper; NaN if they are not comparable."""
        return self.ours - self.paper.value if self.status == MEASURED else math.nan


class PaperItem(NamedTuple):
    """One table or figure of the paper."""

    label: str
    """Label in the source of the paper."""
    status: str
    """Common status of its numbers, or the count of each status."""
    detail: str
    """Missing or different data and models, or the location of the figure."""


class PaperComparison(NamedTuple):
    """Numbers of the paper next to ours, and the evaluations with our numbers."""

    rows: list[PaperRow]
    """One row per number of the paper."""
    evaluations: dict[str, EvaluationResult]
    """Evaluations by role of the model."""
    tables: dict[str, Path]
    """Table that was used for each dataset of the paper."""
    items: list[PaperItem]
    """Every table and figure of the paper."""


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
    """Return models by role, from ROLE=MODEL. Without a role, the head of the model determines it."""
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
    # Post-training does not change the encoder, so the model is also the baseline.
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
    words: Sequence[str], data: Path, choices: Choices, machine: Machine = Machine(), cost: Path | None = None
) -> PaperComparison:
    """Evaluate models on the paper's datasets, with the image size of each protocol.

    Args:
        words: Models, as MODEL or ROLE=MODEL.
        data: Folder with tables named after protocols.
        choices: Options.
        machine: Options of embedding: cache, device, batch size.
        cost: CSV file written by ``benchmarks/paper_cost.py``: time and memory. Default: not compared.

    Returns:
        The numbers of the paper, each with ours or the reason why it is missing or not comparable.

    Raises:
        KappaPlaceError: If the folder does not exist, a table has another protocol, or a role is used twice.
    """
    tables = find_tables(data)
    names: dict[str, str] = {}
    for name, file in tables.items():
        table = PlaceImages.open(file, machine.root)
        if table.protocol != file.stem:
            raise KappaPlaceError(
                f"The table {file} must have the protocol '{file.stem}', got '{table.protocol}'. Run "
                f"`kappaplace data import {file.stem}`."
            )
        names[name] = table.name or file.stem
    if len(set(names.values())) < len(names):
        names = {name: file.stem for name, file in tables.items()}
    pool = tuple(title for name, title in names.items() if name in POOL)
    models = parse_models(words)
    costs = {} if cost is None else _read_costs(cost)
    choices = replace(choices, scores=choices.scores or SCORES, pool=pool)
    evaluations: dict[str, EvaluationResult] = {}
    measured: dict[str, list[EvaluationResult]] = {}
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
                measured.setdefault(role, []).append(result)
    rows = [_row(number, measured, models, tables) for number in NUMBERS]
    rows += [_cost_row(number, costs) for number in COST]
    return PaperComparison(rows, evaluations, tables, _items(rows, models))


def _row(
    number: PaperNumber,
    measured: Mapping[str, Sequence[EvaluationResult]],
    models: Mapping[str, Sequence[str]],
    tables: Mapping[str, Path],
) -> PaperRow:
    names = POOL if number.set == POOLED else (number.set,)
    missing = [f"{name} ({PROTOCOLS_OF[name][0]}.parquet)" for name in names if name not in tables]
    needs = [f"data: {', '.join(missing)}"] if missing else []
    if number.role not in models:
        needs.append(f"model: {number.role}=MODEL ({ROLES[number.role]})")
    if needs:
        return PaperRow(number, status=MEASURABLE, reason=f"with {'; '.join(needs)}")
    values, reasons = [], []
    for result in measured[number.role]:
        sets: dict[str, SetResult] = dict(zip(tables, result.sets, strict=True))
        value = _value(number, result.metrics[POOLED if number.set == POOLED else sets[number.set].name])
        if value is None:
            reason = f"this model or dataset does not have the score {number.score}"
            return PaperRow(number, status=IMPOSSIBLE, reason=reason)
        values.append(value)
        reasons += _differences(number, result, {name: (sets[name], tables[name].stem) for name in names})
    if number.spread is not None and len(values) != PAPER["models"]["seeds"]:
        reasons.append(f"{len(values)} of {PAPER['models']['seeds']} seeds")
    return PaperRow(
        number,
        float(np.mean(values)),  # the mean over seeds, as in the paper
        INCOMPARABLE if reasons else MEASURED,
        "; ".join(dict.fromkeys(reasons)),
        float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
        sum(_queries(sets[name]) for name in names),
        sum(sets[name].references for name in names),
        str(result.facts.get("backbone") or "unknown"),
    )


def _queries(part: SetResult) -> int:
    """Return the number of queries of a dataset, including those that the policy excludes."""
    return int(part.facts.get("queries", len(part.hits)))


def _differences(
    number: PaperNumber, result: EvaluationResult, sets: Mapping[str, tuple[SetResult, str]]
) -> list[str]:
    """Return how data and model differ from those of the paper."""
    reasons = []
    for name, (part, stem) in sets.items():
        protocol = PROTOCOLS[stem]
        if (_queries(part), part.references) != (protocol.queries, protocol.references):
            reasons.append(
                f"{name}: {_queries(part):,} × {part.references:,} images instead of {protocol.queries:,} × "
                f"{protocol.references:,}"
            )
        if number.score and (flaw := flaws_of(part).get(number.score)):
            reasons.append(f"{name}: the score is {flaw}")
        if part.policy != "fail" and part.without_positives:
            reasons.append(f"{name}: {part.without_positives:,} queries without positives excluded")
    models = PAPER["models"]
    backbone = models["backbone-r18" if number.role.endswith("-r18") else "backbone"]
    for kind, ours, expected in (
        ("backbone", result.facts.get("backbone") or "unknown", backbone),
        ("dimension", result.facts.get("dim"), models["dim"]),
    ):
        if ours != expected:
            reasons.append(f"{kind} {ours} instead of {expected}")
    return reasons


def _value(number: PaperNumber, metrics: Metrics) -> float | None:
    values = metrics["scores"].get(number.score, {}) if number.score else metrics["recall"]
    return values.get(number.metric)


def _read_costs(file: Path) -> dict[tuple[str, str, str], tuple[float, str]]:
    """Read the costs as value and machine by table, method and metric."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return {
                (row["table"], row["method"], row["metric"]): (float(row["value"]), row["device"])
                for row in csv.DictReader(stream)
                if row["way"] == "paper"
            }
    except (OSError, KeyError, ValueError) as error:
        raise KappaPlaceError(
            f"{file} is not a table of costs ({error!r}). Run `python benchmarks/paper_cost.py --csv FILE`."
        ) from None


def _cost_row(number: PaperNumber, costs: Mapping[tuple[str, str, str], tuple[float, str]]) -> PaperRow:
    value, device = costs.get((number.table, number.method, number.metric), (math.nan, ""))
    if math.isnan(value):
        reason = "with a GPU: python benchmarks/paper_cost.py --csv FILE, then --cost FILE"
        return PaperRow(number, status=MEASURABLE, reason=reason)
    machine = PAPER["machine"]["name"]
    same = number.metric == "parameters M" or device == machine
    reason = "" if same else f"on {device} instead of {machine}"
    return PaperRow(number, value, MEASURED if same else INCOMPARABLE, reason)


def _items(rows: Sequence[PaperRow], models: Mapping[str, Sequence[str]]) -> list[PaperItem]:
    """Return the status of every table and figure."""
    items = {label: _item(label, [row for row in rows if row.paper.table == label]) for label in LABELS}
    for figure in PAPER["figures"]:
        label, role = figure["label"], figure.get("role", "")
        if "like" in figure:
            like = items[figure["like"]]
            detail = "; ".join(text for text in (figure["where"], like.detail) if text)
            items[label] = PaperItem(label, like.status, detail)
        elif not role:
            items[label] = PaperItem(label, IMPOSSIBLE, figure["reason"])
        elif role in models and any(row.queries for row in rows):
            items[label] = PaperItem(label, MEASURED, figure["where"])
        else:
            reason = f"with any dataset; model: {role}=MODEL ({ROLES[role]})"
            items[label] = PaperItem(label, MEASURABLE, reason)
    return list(items.values())


def _item(label: str, rows: Sequence[PaperRow]) -> PaperItem:
    counts = Counter(row.status for row in rows)
    status = (
        next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {each}" for each, n in counts.items())
    )
    details = dict.fromkeys(row.reason for row in rows if row.reason and row.status != MEASURABLE)
    needs: dict[str, dict[str, None]] = {}  # lists each dataset and model once
    for row in rows:
        if row.status == MEASURABLE:
            for need in row.reason.removeprefix("with ").split("; "):
                kind, _, names = need.partition(": ")
                needs.setdefault(kind, {}).update(
                    dict.fromkeys(names.split(", ") if kind == "data" else [names])
                )
    missing = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in needs.items())
    return PaperItem(label, status, "; ".join([*details, *([f"with {missing}"] if missing else [])]))


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
            "our spread": row.spread,
            "difference": row.difference,
            "queries": row.queries or math.nan,
            "references": row.references or math.nan,
            "backbone": row.backbone,
            "status": row.status,
            "reason": row.reason,
        }
        for row in comparison.rows
    ]


def write_paper(comparison: PaperComparison, folder: Path) -> Path:
    """Write paper.csv and paper_overview.csv to a folder, and return the first file."""
    rows = paper_rows(comparison)
    items = [item._asdict() for item in comparison.items]
    write_rows(make_folder(folder) / "paper_overview.csv", items, PaperItem._fields)
    return write_rows(make_folder(folder) / "paper.csv", rows, list(rows[0]))
