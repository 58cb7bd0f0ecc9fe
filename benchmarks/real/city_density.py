"""Scores against the density of references in the synthetic city, where poses exist: SUE, PA, L2 and κ.

python benchmarks/real/city_density.py --csv results/real_city_density.csv --plot real_city_density.png
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from kappaplace.data.positives import positives_within
from kappaplace.metrics import BOTH_TAILS, UPPER_TAIL, auroc, expected_calibration_error
from kappaplace.models.checkpoint import load_model
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import search
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.uncertainty import SCORES
from kappaplace_city import SyntheticCity
from record import Option, parse_options, save_rows

RADIUS, STEPS = 25.0, (1, 2, 4, 8)
NAMES = ("l2", "cosine", "pa", "sue", "log-sue", "margin", "aliasing", "inverse-kappa", "kappaplace")


def main() -> None:
    arguments = parse_options(
        __doc__, model=str, size=192, csv=Option(Path, required=True), plot=Option(Path, required=True)
    )
    model = load_model(arguments.model)
    city = SyntheticCity(1, (3, 3), aliased=0.12, featureless=0.12)
    views = city.views("test", spacing=5.0, strength=0.5, seed=0)
    embeddings = model.embed(list(views.render(arguments.size)))
    query_rows, reference_rows = np.flatnonzero(views.is_query), np.flatnonzero(~views.is_query)
    query = embeddings.take(query_rows)
    # Remove whole positions with all directions: a place must not lose its only matching view.
    stop = np.unique(views.positions[reference_rows], axis=0, return_inverse=True)[1].ravel()
    rows: list[dict[str, float | int | str]] = []
    for step in STEPS:
        subset = reference_rows[stop % step == 0]
        positives = positives_within(views.positions[query_rows], views.positions[subset], RADIUS)
        answerable = np.flatnonzero(positives.counts > 0)
        some, reference = query.take(answerable), embeddings.take(subset)
        matches = search(some.descriptor, reference.descriptor, 20)
        right = positives.hits(matches.indices[:, :1], answerable)[:, 0]
        evidence = Evidence(Queries(some), ArrayReferences(reference, views.positions[subset]), matches)
        for name in NAMES:
            score = SCORES[name]
            u = score.query(evidence)
            tails = UPPER_TAIL if score.one_sided else BOTH_TAILS
            rows.append(
                {
                    "every": step,
                    "references": len(subset),
                    "queries": len(answerable),
                    "score": name,
                    "R@1": round(float(right.mean()), 4),
                    "ECE@1": round(expected_calibration_error(u, right, tails), 4),
                    "AUROC": round(auroc(u, right), 4),
                }
            )
            print(rows[-1], flush=True)
    save_rows(arguments.csv, rows)
    plot(rows).savefig(arguments.plot, dpi=110)


def plot(rows: list[dict[str, float | int | str]]) -> plt.Figure:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, measure in zip(axes, ("ECE@1", "AUROC"), strict=True):
        for name in NAMES:
            mine = [row for row in rows if row["score"] == name]
            axis.plot([row["every"] for row in mine], [row[measure] for row in mine], "o-", ms=4, label=name)
        axis.set_xscale("log", base=2)
        axis.set(
            xticks=STEPS, xticklabels=[f"1/{s}" for s in STEPS], xlabel="references kept", ylabel=measure
        )
    axes[1].legend(fontsize=8, ncols=2)
    return figure


if __name__ == "__main__":
    main()
