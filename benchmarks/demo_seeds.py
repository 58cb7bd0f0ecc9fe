"""The demo for several seeds: R@1, ECE and AUROC of every score.

python benchmarks/demo_seeds.py [--seeds 3] [--csv FILE]
"""

from __future__ import annotations

from pathlib import Path

from kappaplace.cli.demo import DemoSettings, run_demo
from record import log_row, parse_options


def rows_of(seed: int) -> list[dict[str, float | int | str]]:
    """Return one row per score; recall is repeated in each row."""
    answer = run_demo(DemoSettings(seed=seed)).evaluation
    recall = {f"R@{k}": value for k, value in answer.recall.items()}
    return [
        {
            "seed": seed,
            **recall,
            "score": one.score.name,
            **{f"ECE@{k}": value for k, value in one.ece.items()},
            "AUROC": one.auroc,
        }
        for one in answer.scores
    ]


def main() -> None:
    arguments = parse_options(__doc__, seeds=3, csv=Path)
    for seed in range(arguments.seeds):
        for row in rows_of(seed):
            log_row(arguments.csv, row)


if __name__ == "__main__":
    main()
