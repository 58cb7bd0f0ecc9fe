"""A risk carried to a family of places without labels: our thresholds, rivals and an oracle.

python benchmarks/real/safe_thresholds.py --columns FILE.npz --cache embeddings \\
    --csv results/safe_thresholds.csv --plot docs/assets/results-thresholds.png

FILE.npz and embeddings are those of recipes/kappaplace_lite0/columns.py. Each of the seven datasets in turn
is the new place (the two of Gardens Point are one family), and everything is fitted and selected on the other
families. Queries are undegraded and in-map; ``out-of-map accepted`` counts 100 queries of other families. The
oracle has the labels. Needs PYTHONPATH=benchmarks:benchmarks/real:recipes/kappaplace_lite0.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from columns import ENCODER
from from_columns import NAMES, SCORES, ordered
from numpy.typing import NDArray
from run import foreign_queries
from safe_methods import METHODS, Block
from scipy.stats import binom
from sets import ALONE, FAMILY

from kappaplace.types import Embeddings
from record import Option, parse_options, save_rows, stored_embeddings

RISKS = (0.1, 0.05, 0.01)
FRAMES = 10
LEAST = 0.01  # is added to agreements before their logarithm
Rows = list[dict[str, float | int | str]]


@torch.inference_mode()
def mutual(query: Embeddings, reference: Embeddings, answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 − the sum of cosines of mutually nearest patches, per patch, of each query and its answer."""
    assert query.patches is not None
    assert reference.patches is not None
    scores = []
    for row, answer in enumerate(answers.tolist()):
        a, b = (
            torch.nn.functional.normalize(torch.from_numpy(maps[at]).float().flatten(1), dim=0)
            for maps, at in ((query.patches, row), (reference.patches, answer))
        )
        similarity = a.T @ b
        best, nearest = similarity.max(1)
        is_mutual = similarity.argmax(0)[nearest] == torch.arange(len(nearest))
        scores.append(1 - float(best[is_mutual].sum()) / len(nearest))
    return np.array(scores)


def read_block(
    columns: dict[str, NDArray], name: str, variant: str, images: tuple[Embeddings, Embeddings] | None
) -> Block:
    """Return the queries of a dataset with all signals of their answers.

    Mutual nearest neighbors are omitted without the images of queries and references.
    """
    features, _, hits = ordered(columns, ENCODER, name, variant)
    key = f"{ENCODER}/{name}/{variant}"
    agreement = columns[f"{key}/agreement"].astype(np.float64)
    order = np.argsort(-agreement, axis=1, kind="stable")
    agreement = np.take_along_axis(agreement, order, 1)
    place = np.take_along_axis(columns[f"{key}/indices"].astype(np.int64), order, 1)
    far = np.where(np.abs(place - place[:, :1]) <= (0 if name in ALONE else FRAMES), np.nan, agreement)
    has, top = ~np.isnan(far).all(1), agreement[:, 0]
    best, mean = np.full(len(far), np.median(np.nanmax(far[has], 1))), np.full(len(far), np.nanmean(far))
    best[has], mean[has] = np.nanmax(far[has], 1), np.nanmean(far[has], 1)
    signals = dict(zip(SCORES, features.T, strict=True))
    signals["contrast"] = np.log(best + LEAST) - np.log(top + LEAST)
    signals["map-contrast"] = (mean - top) / np.nanstd(far)
    if images is not None:
        signals["mutual"] = mutual(*images, place[:, 0])
    return Block(name, signals, far, hits[:, 0])


def read_blocks(columns: dict[str, NDArray], cache: Path) -> dict[tuple[str, str], Block]:
    """Return in-map and out-of-map queries of all datasets."""

    def embeddings(name: str) -> Embeddings:
        def missing() -> Embeddings:
            raise SystemExit(f"{cache} has no {name}. Run recipes/kappaplace_lite0/columns.py --cache first.")

        return stored_embeddings(cache, name, missing)

    queries = {name: embeddings(f"{name}.query") for name in FAMILY}
    blocks = {}
    for name, query in queries.items():
        reference = embeddings(f"{name}.reference")
        away = (foreign_queries(name, queries), reference)
        outside = blocks[name, "outside"] = read_block(columns, name, "outside", away)
        degraded = [read_block(columns, name, "damaged", None)] if name in NAMES else []
        clean = read_block(columns, name, "clean", (query, reference))
        blocks[name, "clean"] = replace(clean, more=(outside, *degraded))
    return blocks


def cells(blocks: dict[tuple[str, str], Block]) -> Rows:
    """Return one row per method, risk and dataset, and their means."""
    rows: Rows = []
    for title, method in METHODS.items():
        for risk in RISKS:
            part: Rows = []
            for name in FAMILY:
                here = blocks[name, "clean"]
                training = [blocks[other, "clean"] for other in FAMILY if FAMILY[other] != FAMILY[name]]
                accept = method(here, training, risk)
                accepted, away = accept(here), accept(blocks[name, "outside"])
                count, wrong = int(accepted.sum()), int((accepted & ~here.right).sum())
                results: dict[str, float | int] = {
                    "queries": len(accepted),
                    "accepted": count,
                    "wrong": wrong,
                    "realized risk": wrong / max(1, count),
                    "valid": int(wrong <= risk * count),
                    "significantly above": int(count > 0 and binom.sf(wrong - 1, count, risk) < 0.05),
                    "true-positive rate": (count - wrong) / int(here.right.sum()),
                    "accepted share": count / len(accepted),
                    "out-of-map accepted": int(away.sum()),
                }
                part.append({"method": title, "risk": risk, "set": name, **results})
            sums = ("queries", "accepted", "wrong", "valid", "significantly above", "out-of-map accepted")
            counts = {key: sum(int(row[key]) for row in part) for key in sums}
            means = {key: float(np.mean([float(row[key]) for row in part])) for key in results}
            rows += [*part, {"method": title, "risk": risk, "set": "all", **means, **counts}]
            print(f"{title}, {risk:g}: valid {counts['valid']}, accepted {means['accepted share']:.3f}")
    return [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def plot(rows: Rows) -> plt.Figure:
    """Draw realized against chosen risk: the mean and the worst dataset of each method."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 5.5), sharex=True, layout="constrained")
    for number, title in enumerate(METHODS):
        color, width = "k" if title == "oracle" else f"C{number}", 2 if "kept" in title else 1
        for axis, worst in zip(axes, (False, True), strict=True):
            lines = []
            for risk in RISKS:
                part = [
                    float(row["realized risk"])
                    for row in rows
                    if row["method"] == title and row["risk"] == risk and row["set"] != "all"
                ]
                lines.append(max(part) if worst else float(np.mean(part)))
            axis.plot(RISKS, lines, marker="o", color=color, label=title, lw=width)
    for axis, name in zip(axes, ("mean of seven datasets", "worst dataset"), strict=True):
        axis.plot((0, 0.1), (0, 0.1), color="k", lw=0.8, ls=":")
        axis.set(xlabel="chosen risk", ylabel="realized risk", title=name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=2)
    return figure


def main() -> None:
    arguments = parse_options(
        __doc__,
        columns=Option(Path, required=True),
        cache=Option(Path, required=True),
        csv=Option(Path, required=True),
        plot=Path,
    )
    with np.load(arguments.columns) as stored:
        blocks = read_blocks({key: stored[key] for key in stored.files}, arguments.cache)
    rows = cells(blocks)
    save_rows(arguments.csv, rows)
    if arguments.plot:
        plot(rows).savefig(arguments.plot, dpi=100)


if __name__ == "__main__":
    main()
