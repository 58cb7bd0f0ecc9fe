"""The demo for several seeds: does R@1 stay where there is something to be uncertain about?

python benchmarks/demo_seeds.py [--seeds 3] [--csv FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kappaplace.cli.demo import DemoSettings, run_demo
from record import append_row


def rows_of(seed: int) -> list[dict[str, float | int | str]]:
    """One row a score; recall is repeated, so that each row can be read on its own."""
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        for row in rows_of(seed):
            print(row, flush=True)
            if arguments.csv:
                append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
