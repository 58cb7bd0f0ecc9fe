"""What ships, as it answers: retrieval, scores, and the answers that are accepted without labels.

python benchmarks/real/shipped.py --columns FILE.npz --out results --figures docs/assets

It writes shipped_scores.csv and shipped_default.csv. FILE.npz is that of recipes/kappaplace_lite0/columns.py.
All scores rate the re-ranked answer, the best of ten matches by patch agreement.

The shipped calibration is fitted again without the family of each dataset, as
recipes/kappaplace_lite0/from_columns.py fits it: on undegraded, degraded and out-of-map queries of St Lucia,
Nordland, SPED and Gardens Point. For ESSEX3IN1 and Kudamm it is the shipped one. Other calibrators and limits
are compared. ``with the guard``: queries unlike correctly answered ones are not accepted either, on the 160
queries per dataset whose appearance is stored.
Needs PYTHONPATH=benchmarks:benchmarks/real:recipes/kappaplace_lite0.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from columns import ENCODER, HEAD
from domain import QUERIES
from from_columns import NAMES, SCORES, fit, ordered, spread
from numpy.typing import NDArray
from sets import FAMILY

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.domain import KAPPA
from kappaplace.calibration.sources import ACCEPT_RISK
from kappaplace.data.appearance import APPEARANCE
from kappaplace.metrics.probability import brier, smooth_ece
from kappaplace.metrics.selective import auroc, coverage_at_risk
from record import Option, parse_options, save_rows

ALL = "all signals"
CALIBRATORS = ("best", "isotonic", "beta", "logistic")
LIMITS = (1 - ACCEPT_RISK, 0.85, 0.8)
Row = dict[str, float | int | str]


def guarded(
    columns: dict[str, NDArray], name: str, features: NDArray, calibration: Calibration
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the queries whose appearance is stored, and which of them are like correctly answered ones."""
    rows = spread(len(features), QUERIES)
    kappa = columns[f"{HEAD}/{name}/clean/kappa_q"][rows]
    table = np.concatenate([features[rows], np.log(kappa[:, None]), columns[f"appearance/{name}"]], 1)
    assert calibration.domain is not None
    signals = dict(zip((*SCORES, KAPPA, *APPEARANCE), table.T, strict=True))
    return rows, np.array([not reason for reason in calibration.domain.differences(signals)])


def rows_of(columns: dict[str, NDArray], name: str, calibrator: str) -> list[Row]:
    """Return one row per limit."""
    families = {n: f for n, f in NAMES.items() if FAMILY[n] != FAMILY[name]}
    calibration = fit(columns, ENCODER, HEAD, families, calibrator)
    features, _, hits = ordered(columns, ENCODER, name, "clean")
    right, p = hits[:, 0], calibration.probability(features)
    away = calibration.probability(ordered(columns, ENCODER, name, "outside")[0])
    guarded_rows, alike = guarded(columns, name, features, calibration)
    common: Row = {
        "calibrator": calibrator,
        "set": name,
        "queries": len(p),
        "correct": int(right.sum()),
        "AUROC": auroc(1 - p, right),
        "smooth ECE": smooth_ece(p, right),
        "Brier": brier(p, right),
        "mean probability": float(p.mean()),
        "distinct probabilities": len(np.unique(p)),
    }
    out = []
    for limit in LIMITS if calibrator == "best" else LIMITS[:1]:
        accepted = p >= limit
        kept = accepted[guarded_rows] & alike
        count, wrong = int(accepted.sum()), int((accepted & ~right).sum())
        results: Row = {
            "accepted from": limit,
            "accepted": count,
            "wrong": wrong,
            "realized risk": wrong / max(1, count),
            "true-positive rate": (count - wrong) / int(right.sum()),
            "accepted share": count / len(p),
            "out-of-map accepted": int((away >= limit).sum()),
            "queries with the guard": len(alike),
            "accepted with the guard": int(kept.sum()),
            "wrong with the guard": int((kept & ~right[guarded_rows]).sum()),
        }
        out.append(common | results)
    return out


def default_rows(columns: dict[str, NDArray]) -> list[Row]:
    """Return one row per calibrator, limit and dataset, and their means."""
    rows = [row for each in CALIBRATORS for name in FAMILY for row in rows_of(columns, name, each)]
    for each in CALIBRATORS:
        for limit in LIMITS:
            part = [row for row in rows if (row["calibrator"], row["accepted from"]) == (each, limit)]
            if not part:
                continue
            rows.append(total(part))
    return rows


def total(part: list[Row]) -> Row:
    """Return the sums of counts and the means of other columns over datasets."""
    out: Row = {}
    for key, first in part[0].items():
        values = [row[key] for row in part]
        if isinstance(first, str):
            out[key] = first
        else:
            out[key] = sum(values) if isinstance(first, int) else float(np.mean(values))  # type: ignore[arg-type]
    return out | {"set": "all"}


def answered(values: NDArray, right: NDArray) -> Row:
    """Return the largest fractions of queries that can be accepted within two error rates."""
    return {f"accepted at {risk:.0%} errors": coverage_at_risk(values, right, risk) for risk in (0.1, 0.05)}


def score_rows(columns: dict[str, NDArray]) -> tuple[list[Row], dict[str, tuple[NDArray, NDArray]]]:
    """Return retrieval and AUROC of each score and dataset, and uncertainties and outcomes of all queries."""
    blocks: dict[str, dict[str, NDArray]] = {}
    hits: dict[str, NDArray] = {}
    for name in FAMILY:
        features, _, found = ordered(columns, ENCODER, name, "clean")
        families = {n: f for n, f in NAMES.items() if FAMILY[n] != FAMILY[name]}
        hits[name], key = found[:, 0], f"{ENCODER}/{name}/clean"
        blocks[name] = {
            "kappa": -columns[f"{HEAD}/{name}/clean/kappa_q"],
            "pa": columns[f"{key}/pa"],
            **dict(zip(SCORES, features.T, strict=True)),
            ALL: 1 - fit(columns, ENCODER, HEAD, families).probability(features),
        }
    whole = np.concatenate(list(hits.values()))
    rows: list[Row] = []
    pooled = {}
    for score in blocks["sped"]:
        part: list[Row] = [
            {
                "score": score,
                "set": name,
                "queries": len(right),
                "R@1": float(columns[f"{ENCODER}/{name}/clean/hit@1"].mean()),
                "R@1, re-ranked": float(right.mean()),
                "AUROC": auroc(blocks[name][score], right),
                **answered(blocks[name][score], right),
            }
            for name, right in hits.items()
        ]
        pooled[score] = np.concatenate([blocks[name][score] for name in hits]), whole
        rows += [*part, total(part)]
        merged = {"AUROC": auroc(*pooled[score]), **answered(*pooled[score])}
        rows.append({**total(part), "set": "pooled", **merged})
    return rows, pooled


def draw(
    scores: list[Row], pooled: dict[str, tuple[NDArray, NDArray]], default: list[Row], folder: Path
) -> None:
    """Draw retrieval per dataset, risk against coverage, and the fate of the answers."""
    part = [row for row in scores if row["score"] == ALL and row["set"] not in ("pooled", "all")]
    at, names = np.arange(len(part)), [str(row["set"]).replace("_", " ") for row in part]
    figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for shift, key, color in ((-0.2, "R@1", "0.6"), (0.2, "R@1, re-ranked", "C3")):
        axis.bar(at + shift, [float(row[key]) for row in part], 0.4, color=color, label=key)
    _save(axis, names, "R@1", folder / "results-retrieval.png")
    figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    for score in ("cosine", "pa", "margin", "patches", ALL):
        u, right = pooled[score]
        order = np.argsort(u, kind="stable")
        count = np.arange(1, len(u) + 1)
        axis.plot(count[20:] / len(u), (np.cumsum(~right[order]) / count)[20:], label=score)
    axis.axhline(0.1, color="k", lw=0.8, ls=":")
    axis.set(xlabel="fraction of queries answered", ylabel="error rate", xlim=(0, 1), ylim=(0, 0.2))
    axis.legend(fontsize=8)
    figure.savefig(folder / "results-scores.png", dpi=100)
    figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
    part = [
        row
        for row in default
        if (row["calibrator"], row["accepted from"]) == ("best", LIMITS[0]) and row["set"] != "all"
    ]
    bottom = np.zeros(len(part))
    for label, color, value in (
        ("accepted, correct", "C2", lambda row: row["accepted"] - row["wrong"]),
        ("accepted, incorrect", "C3", lambda row: row["wrong"]),
        ("correct, not accepted", "0.75", lambda row: row["correct"] - row["accepted"] + row["wrong"]),
    ):
        height = np.array([value(row) / row["queries"] for row in part])
        axis.bar(at, height, bottom=bottom, color=color, label=label)
        bottom += height
    _save(axis, names, "fraction of queries", folder / "results-shipped.png")


def _save(axis: plt.Axes, names: list[str], label: str, file: Path) -> None:
    axis.set(xticks=range(len(names)), ylabel=label, ylim=(0, 1.05))
    axis.set_xticklabels(names, fontsize=8, rotation=15)
    axis.legend(fontsize=8, loc="lower left")
    axis.figure.savefig(file, dpi=100)


def save(file: Path, rows: list[Row]) -> None:
    save_rows(file, [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows])


def main() -> None:
    arguments = parse_options(
        __doc__, columns=Option(Path, required=True), out=Option(Path, required=True), figures=Path
    )
    with np.load(arguments.columns) as stored:
        columns = {key: stored[key] for key in stored.files}
    scores, pooled = score_rows(columns)
    default = default_rows(columns)
    save(arguments.out / "shipped_scores.csv", scores)
    save(arguments.out / "shipped_default.csv", default)
    if arguments.figures:
        draw(scores, pooled, default, arguments.figures)


if __name__ == "__main__":
    main()
