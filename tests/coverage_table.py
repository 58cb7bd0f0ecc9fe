"""Line coverage by top-level package, from coverage's JSON report.

python -m tests.coverage_table build/coverage/lines.json --least 0.9 --csv results/coverage.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from pathlib import Path

SOURCE = "src/kappaplace/"
THIN = 0.8
"""Files below this share are named."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--least", type=float, default=0.0, help="share of all lines that must be reached")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    lines: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in json.loads(options.report.read_text("utf-8"))["files"].items():
        if SOURCE not in name:  # what a test wrote and imported under the package's name
            continue
        found = file["summary"]
        inside = name.split(SOURCE, 1)[1]
        package = inside.split("/")[0] if "/" in inside else "(top)"
        lines[package] += found["num_statements"]
        covered[package] += found["covered_lines"]
        if found["covered_lines"] < THIN * found["num_statements"]:
            print(f"thin: {inside} {found['covered_lines']}/{found['num_statements']}")
    rows = [(name, lines[name], covered[name]) for name in sorted(lines)]
    rows.append(("all", lines.total(), covered.total()))
    table = [("package", "lines", "covered", "share")]
    table += [(name, str(n), str(k), f"{k / n:.3f}") for name, n, k in rows if n]
    for row in table:
        print(f"{row[0]:16} {row[1]:>6} {row[2]:>8} {row[3]:>6}")
    if options.csv:
        day = time.strftime("%Y-%m-%d", time.gmtime())
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            rows_out = [(*row, day if i else "date") for i, row in enumerate(table)]
            csv.writer(file, lineterminator="\n").writerows(rows_out)
    sys.exit(int(covered.total() < options.least * lines.total()))


if __name__ == "__main__":
    main()
