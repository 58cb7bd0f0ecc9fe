"""Mean and standard deviation over seeds of results/city_recipes.csv: a Markdown table and a figure.

python benchmarks/city_recipes_table.py [--csv results/city_recipes.csv] [--out results/city_recipes]
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

from kappaplace.files import write_file
from kappaplace.reports.figures import COLORS, PLOT_STYLE, new_figure
from record import parse_options

NAMES = {
    "kappa-pt": "KappaPlace-PT",
    "kappa-jt": "KappaPlace-JT",
    "contrastive-pt": "contrastive-PT",
    "linear-head": "linear head",
    "gnll": "GNLL",
    "stun": "STUN",
    "btl": "BTL",
    "mc-dropout": "MC-dropout",
}
COLUMNS = ("R@1", "R@5", "R@10", "ECE@1", "ECE@5", "ECE@10", "AUROC", "Spearman of certainty and damage")
LEVELS = ("0", "0.25", "0.5", "0.75", "1")
Rows = dict[tuple[str, str], list[dict[str, float]]]


def read(file: Path) -> Rows:
    """Read one row per seed for each (recipe, score)."""
    rows: Rows = defaultdict(list)
    with file.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            names = [*COLUMNS, *(f"certainty at {level}" for level in LEVELS)]
            rows[row["recipe"], row["score"]].append({name: float(row[name]) for name in names})
    return rows


def lines(rows: Rows) -> list[tuple[str, list[dict[str, float]]]]:
    """Return the lines of the table: distances of the encoder first, then each recipe with its score."""
    table = [("L2 (retrieval)", rows["retrieval", "l2"]), ("PA (retrieval)", rows["retrieval", "pa"])]
    for recipe, name in NAMES.items():
        score = "kappaplace" if (recipe, "kappaplace") in rows else "variance"
        if (recipe, score) in rows:
            table.append((name, rows[recipe, score]))
    return table


def cell(values: list[float]) -> str:
    return "–" if np.isnan(values).all() else f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def markdown(table: list[tuple[str, list[dict[str, float]]]]) -> str:
    titles = [*COLUMNS[:-1], "Spearman with damage"]
    text = [f"| {' | '.join(['', *titles])} |", "|---" * (len(titles) + 1) + "|"]
    for name, seeds in table:
        text.append(f"| {' | '.join([name, *(cell([seed[c] for seed in seeds]) for c in COLUMNS)])} |")
    return "\n".join(text) + "\n"


def draw(table: list[tuple[str, list[dict[str, float]]]], file: Path) -> None:
    """Draw ECE@1 and AUROC with their spread over seeds (left), and certainty against degradation (right)."""
    with matplotlib.rc_context(PLOT_STYLE):
        figure = new_figure(10.0, 4.2)
        left, right = figure.subplots(1, 2)
        place = np.arange(len(table))[::-1]
        for offset, (metric, color) in enumerate(zip(("ECE@1", "AUROC"), COLORS, strict=False)):
            values = np.array([[seed[metric] for seed in seeds] for _, seeds in table])
            left.barh(
                place + 0.2 - 0.4 * offset,
                values.mean(1),
                0.38,
                xerr=values.std(1, ddof=1),
                color=color,
                label=f"{metric} ({'lower' if metric == 'ECE@1' else 'higher'} is better)",
            )
        left.set_yticks(place, [name for name, _ in table])
        left.set(xlim=(0, 1), title="mean and standard deviation over seeds")
        left.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.06))
        shown = [(name, seeds) for name, seeds in table if not np.isnan(seeds[0]["certainty at 1"])]
        styles = ["-", "--"]
        for number, (name, seeds) in enumerate(shown):
            curves = np.array([[seed[f"certainty at {level}"] for level in LEVELS] for seed in seeds])
            levels = [float(level) for level in LEVELS]
            right.errorbar(
                levels,
                curves.mean(0),
                curves.std(0, ddof=1),
                marker="o",
                ms=3,
                ls=styles[number // len(COLORS)],
                color=COLORS[number % len(COLORS)],
                label=name,
            )
        right.set(xlabel="level of degradation", title="mean certainty (κ or 1/σ²) of the same queries")
        right.set_ylim(bottom=0)
        right.legend(fontsize=8, ncols=2, loc="lower left")
        figure.savefig(file, dpi=130)


def main() -> None:
    arguments = parse_options(__doc__, csv=Path("results/city_recipes.csv"), out=Path("results/city_recipes"))
    table = lines(read(arguments.csv))
    text = markdown(table)
    write_file(arguments.out.with_suffix(".md"), text)
    draw(table, arguments.out.with_suffix(".png"))
    print(text, end="")


if __name__ == "__main__":
    main()
