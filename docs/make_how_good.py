"""Fill the tables of docs/how_good.md and README.md from results/real_*.csv: each number has one source.

python docs/make_how_good.py

A table is between ``<!-- table NAME -->`` and ``<!-- end -->``. Several seeds are averaged, and each backbone
has its own columns.
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
PAGES = (ROOT / "docs" / "how_good.md", ROOT / "README.md")
NAMES = {"efficientnet_lite0": "EfficientNet-Lite0", "resnet50": "ResNet-50", "resnet50_v1": "ResNet-50"}
SETS = {
    "st_lucia": "St Lucia",
    "nordland_winter_summer": "Nordland",
    "sped": "SPED",
    "gp_dayleft_dayright": "Gardens Point, day",
    "gp_nightright_dayleft": "Gardens Point, night",
    "essex3in1": "ESSEX3IN1",
    "berlin_kudamm": "Kudamm",
    "all": "mean",
}
SCORES = {
    "inverse-kappa": "κ only",
    "kappaplace": "U, the paper's match score",
    "cosine": "cosine",
    "pa": "PA (ratio of the two nearest distances)",
    "margin": "margin to the next place",
    "patches": "**patches**: image patches that agree on one shift",
    "patches + cosine + margin": "patches, cosine and margin, fitted on other datasets",
    "all, curves": "all signals of a map, as curves, fitted on other datasets",
}
PAPER = {"l2": "L2", "pa": "PA", "inverse-kappa": "1/κ", "kappaplace": "KappaPlace"}
BEST_HEAD = {"efficientnet_lite0": "layers-mlp", "resnet50_v1": "layers-mlp-8"}
"""The heads that combinations take κ from (benchmarks/real/tables.py)."""
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def number(value: float) -> str:
    """Three digits, halves away from zero: the files have four."""
    rounded = Decimal(repr(round(value, 6))).quantize(Decimal("0.001"), ROUND_HALF_UP)
    return str(rounded)


def average(found: Sequence[Row], column: str) -> float | None:
    values = [float(row[column]) for row in found if row[column]]
    return mean(values) if values else None


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def backbones(found: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["backbone"] for row in found))


def cell(value: float | None, *, percent: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:.0%}" if percent else number(value)


def scores(queries: str = "clean") -> str:
    """Which score separates correct from incorrect matches: mean AUROC, coverage at 10% errors."""
    found = [row for row in rows("real_scores") if row["queries"] == queries]
    body = []
    for name, label in SCORES.items():
        line = [label]
        for backbone in backbones(found):
            # A combination of one score has its name: it is the row with calibrated probabilities.
            mine = [row for row in found if (row["backbone"], row["score"]) == (backbone, name)]
            raw = [row for row in mine if not row["Brier, pooled"]] or mine
            line += [
                cell(average(raw, "AUROC, mean")),
                cell(average(raw, "coverage at 10 % risk"), percent=True),
            ]
        body.append(line)
    head = [""]
    for backbone in backbones(found):
        said = "" if len(backbones(found)) == 1 else f"{NAMES[backbone]}: "
        head += [f"{said}AUROC, mean over datasets", "accepted at 10% errors"]
    return table(head, body)


def retrieval() -> str:
    """R@1 by the descriptor, and after patch matching of the ten best matches."""
    found = [row for row in rows("real_reranked") if row["queries"] == "clean"]
    sets = [name for name in SETS if any(row["sets"] == name for row in found)]
    body = []
    for backbone in backbones(found):
        for encoder, label in (("imagenet", "ImageNet, whitened"), ("contrastive", "trained")):
            ours = [row for row in found if (row["backbone"], row["encoder"]) == (backbone, encoder)]
            mine = {name: [row for row in ours if row["sets"] == name] for name in sets}
            if not any(mine.values()):
                continue
            for column, more in (("R@1", ""), ("R@1, cells compared", ", re-ranked")):
                body.append(
                    [f"{NAMES[backbone]}, {label}{more}", *(cell(average(mine[s], column)) for s in sets)]
                )
    return table(["R@1", *(SETS[name] for name in sets)], body)


def paper() -> str:
    """The paper's measure beside one that cannot be moved by re-scaling."""
    found = [
        r for r in rows("real_recipes") if r["model"] == BEST_HEAD[r["backbone"]] and r["sets"] == "pooled"
    ]
    columns = ("ECE@1", "ECE@5", "ECE@10", "AUROC")
    body = []
    for backbone in backbones(found):
        for name, label in PAPER.items():
            mine = [row for row in found if (row["backbone"], row["score"]) == (backbone, name)]
            said = label if len(backbones(found)) == 1 else f"{NAMES[backbone]}, {label}"
            body.append([said, *(cell(average(mine, column)) for column in columns)])
    return table(["all queries pooled", "ECE@1 ↓", "ECE@5 ↓", "ECE@10 ↓", "AUROC ↑"], body)


def outside() -> str:
    """In-map queries against out-of-map ones."""
    found = rows("real_open_set")
    named = {name: name for name in ("cosine", "patches", "aliasing", "margin")} | {"inverse-kappa": "κ"}
    body = [
        [
            label,
            *(
                cell(
                    average(
                        [r for r in found if (r["score"], r["backbone"]) == (name, backbone)],
                        "AUROC in map, mean",
                    )
                )
                for backbone in backbones(found)
            ),
        ]
        for name, label in named.items()
    ]
    return table(["AUROC", *(NAMES[backbone] for backbone in backbones(found))], body)


def damage() -> str:
    """Does κ fall when an image gets worse?"""
    found = rows("real_kappa")
    labels = {
        "contrastive-pt": "fitted to places (batch centroids)",
        "clean": "fitted to the clean image, no labels",
        "layers": "the same, from several layers",
        "layers-mlp": "the same, with a hidden layer",
        "imagenet-layers-mlp-8": "the same, on the ImageNet encoder that never saw places",
    }
    body = []
    for head, label in labels.items():
        mine = [row for row in found if (row["head"], row["backbone"]) == (head, "efficientnet_lite0")]
        spearman = average(mine, "Spearman of κ and damage, test")
        shown = "–" if spearman is None else f"−{number(abs(spearman))}" if spearman < 0 else number(spearman)
        body.append([label, shown, cell(average(mine, "AUROC of κ, damaged, test"))])
    return table(["κ head", "rank correlation with the level of damage", "AUROC of κ, damaged queries"], body)


def extent() -> str:
    """Encoders, seeds and datasets of the tables."""
    found = rows("real_scores")
    encoders = []
    for name in backbones(found):
        seeds = len({row["seed"] for row in found if row["backbone"] == name})
        encoders.append(f"{NAMES[name]} ({seeds} {'seed' if seeds == 1 else 'seeds'})")
    sets = len({row["sets"] for row in rows("real_reranked")} & (set(SETS) - {"all"}))
    return f"*{', '.join(encoders)}; {sets} datasets.*"


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (scores, retrieval, paper, outside, damage, extent)
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
