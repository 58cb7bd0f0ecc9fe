"""The demo for several seeds: does R@1 stay where there is something to be uncertain about?

python benchmarks/demo_seeds.py [--seeds 3] [--csv FILE]
"""

from __future__ import annotations

import argparse
import csv
import datetime
from pathlib import Path

from kappaplace.demo.run import DemoSettings, run_demo


def rows_of(seed: int) -> list[dict[str, object]]:
    """One row a score; recall is repeated, so that the file can be read on its own."""
    result = run_demo(DemoSettings(seed=seed))
    answer = result.evaluation
    recall = {f"R@{k}": round(value, 4) for k, value in answer.recall.items()}
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return [
        {
            "date": date,
            "seed": seed,
            **recall,
            "score": one.score.name,
            **{f"ECE@{k}": round(value, 4) for k, value in one.ece.items()},
            "AUROC": round(one.auroc, 4),
        }
        for one in answer.scores
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    rows = [row for seed in range(arguments.seeds) for row in rows_of(seed)]
    for row in rows:
        print(row)
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
