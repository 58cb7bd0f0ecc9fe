"""Fill the tables of docs/results.md and README.md from results/*.csv: each number has one source.

python docs/make_results.py

A table is between ``<!-- table NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
SETS = {
    "st_lucia": "St Lucia",
    "nordland_winter_summer": "Nordland",
    "sped": "SPED",
    "gp_dayleft_dayright": "Gardens Point, day",
    "gp_nightright_dayleft": "Gardens Point, night",
    "essex3in1": "ESSEX3IN1",
    "berlin_kudamm": "Kudamm",
    "all": "all",
}
SCORES = {
    "kappa": "only κ",
    "pa": "PA: ratio of the two nearest distances",
    "cosine": "cosine",
    "margin": "margin to the next place",
    "patches": "patch matching",
    "patch-margin": "patch matching, margin to the next place",
    "all signals": "**all signals, as the product answers**",
}
README_SCORES = ("cosine", "margin", "patches", "all signals")
METHODS = {
    "threshold of all families together": "threshold of all families together",
    "probability ≥ 1 − risk": "probability ≥ 1 − risk",
    "SafeVPR": "SafeVPR, our reading",
    "Quantile Transfer": "Quantile Transfer, our reading",
    "non-matching statistics": "non-matching statistics, our reading",
    "threshold kept on every family, shipped signals": "kept on every family, shipped signals",
    "threshold kept on every family, with contrast": "… and contrast",
    "threshold kept on every family, with contrast to the map": "… and contrast to the map",
    "threshold kept on every family, signals selected on training families": "**… signals selected on "
    "training families**",
    "threshold kept on every family, with contrast, fitted like the shipped calibration": "… and contrast, "
    "fitted like the shipped calibration",
    "oracle": "oracle (has the labels)",
}
HEADS = {
    "contrastive-pt": "fitted to places (batch centroids)",
    "clean": "fitted to the clean image, no labels",
    "layers": "the same, from several layers",
    "layers-mlp": "the same, with a hidden layer (shipped)",
    "imagenet-layers-mlp-8": "the same, on the ImageNet encoder that never saw places",
}
Row = dict[str, str]


def rows(name: str, **columns: str) -> list[Row]:
    """Return the rows of a file with these values."""
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if all(row[k] == v for k, v in columns.items())]


def number(value: float) -> str:
    """Three digits, halves away from zero: the files have four."""
    rounded = Decimal(repr(round(value, 6))).quantize(Decimal("0.001"), ROUND_HALF_UP)
    return str(rounded).replace("-", "−")


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Row, columns: Sequence[str]) -> list[str]:
    return [number(float(row[column])) for column in columns]


def retrieval() -> str:
    """R@1 by the descriptor, and after patch matching of the ten best matches."""
    found = {row["set"]: row for row in rows("shipped_scores", score="all signals")}
    body = [
        [label, *(number(float(found[name][column])) for name in SETS)]
        for column, label in (("R@1", "descriptor"), ("R@1, re-ranked", "**re-ranked by patch matching**"))
    ]
    return table(["R@1", *(label if name != "all" else "mean" for name, label in SETS.items())], body)


def scores(names: Sequence[str] = README_SCORES) -> str:
    """Which score separates correct from incorrect answers?"""
    each = {row["score"]: row for row in rows("shipped_scores", set="all")}
    pooled = {row["score"]: row for row in rows("shipped_scores", set="pooled")}
    body = []
    for name in names:
        values = cells(each[name], ["AUROC"]) + cells(pooled[name], ["AUROC"])
        shares = [f"{float(pooled[name][f'accepted at {risk} errors']):.0%}" for risk in ("10%", "5%")]
        body.append([SCORES[name], *values, *shares])
    head = ["AUROC, mean of datasets", "AUROC, pooled", "accepted at 10% errors", "accepted at 5% errors"]
    return table(["kappaplace-lite0", *head], body)


def all_scores() -> str:
    """The table of README.md with more scores."""
    return scores(tuple(SCORES))


def shipped() -> str:
    """What the shipped calibration accepts, fitted without the family of each dataset."""
    found = {
        row["set"]: row for row in rows("shipped_default", calibrator="best", **{"accepted from": "0.9"})
    }
    body = []
    for name, label in SETS.items():
        row = found[name]
        counts = [row[key] for key in ("queries", "correct", "accepted", "wrong")]
        body.append([label, *counts, *cells(row, ["realized risk", "true-positive rate", "smooth ECE"])])
    body[-1][0] = "sum, or mean"
    head = [
        "queries",
        "correct",
        "accepted",
        "incorrect",
        "realized risk",
        "true-positive rate",
        "smooth ECE",
    ]
    return table(["dataset", *head], body)


def thresholds(risk: str = "0.1") -> str:
    """Thresholds on places without labels, at one risk."""
    found = {row["method"]: row for row in rows("safe_thresholds", set="all", risk=risk)}
    worst = {
        name: max(float(row["realized risk"]) for row in rows("safe_thresholds", method=name, risk=risk))
        for name in METHODS
    }
    body = []
    for name, label in METHODS.items():
        row = found[name]
        values = cells(row, ["realized risk", "true-positive rate", "accepted share"])
        counts = [f"{row['valid']} of 7", row["significantly above"]]
        body.append([label, *counts, values[0], number(worst[name]), *values[1:], row["out-of-map accepted"]])
    head = [
        "valid",
        "significantly above",
        "realized risk",
        "worst dataset",
        "true-positive rate",
        "accepted",
    ]
    return table([f"chosen risk {float(risk):.0%}", *head, "of 700 out-of-map"], body)


def risks() -> str:
    """Valid datasets and accepted share at each risk."""
    body = []
    for name, label in METHODS.items():
        line = [label]
        for risk in ("0.1", "0.05", "0.01"):
            (row,) = rows("safe_thresholds", set="all", risk=risk, method=name)
            line.append(f"{row['valid']} of 7, {number(float(row['accepted share']))}")
        body.append(line)
    return table(["valid, accepted share", "10%", "5%", "1%"], body)


def degradation() -> str:
    """Does κ fall if an image gets worse?"""
    found = rows("real_kappa", backbone="efficientnet_lite0")
    columns = ("Spearman of κ and damage, test", "AUROC of κ, damaged, test")
    body = [
        [label, *(number(mean(float(row[c]) for row in found if row["head"] == head)) for c in columns)]
        for head, label in HEADS.items()
    ]
    return table(["κ head", "rank correlation with the degradation", "AUROC of κ, degraded queries"], body)


def extent() -> str:
    """Encoder and datasets of the tables."""
    part = rows("shipped_scores", score="all signals")
    sets = [row for row in part if row["set"] in SETS and row["set"] != "all"]
    (whole,) = (row for row in part if row["set"] == "pooled")
    return (
        "*The included model kappaplace-lite0 (EfficientNet-Lite0, one seed): "
        f"{int(whole['queries']):,} queries of "
        f"{len(sets)} datasets. Probabilities were fitted on other families of places.*"
    )


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (retrieval, scores, all_scores, shipped, thresholds, risks, degradation, extent)
}


def filled(text: str) -> str:
    """Return a page with its tables filled in again."""
    return re.sub(
        r"<!-- table (\w+) -->\n.*?<!-- end -->",
        lambda found: f"<!-- table {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
