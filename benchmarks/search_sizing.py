"""Requirements of maps with 10⁶, 10⁸ and 10¹⁰ references, extrapolated from results/search_engines.csv.

python benchmarks/search_sizing.py results/search_engines.csv

The file contains bytes per reference and the speed of each engine relative to exact search. The time of exact
search is linear in the number of references and taken from the fastest run. A larger map is treated as parts
of the largest measured size, all of which are searched, like distributed engines do. Machines have 16 cores
and 128 GB of memory, 96 GB for the index.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import NamedTuple

ENGINE = "ivf-pq"
SIZES = (10**6, 10**8, 10**10)
DISK = {"float16": 1024, "pq": 128}  # bytes of a descriptor of 512 numbers
BESIDE = 60  # κ, position, a name of 40 letters
MEMORY, CORES = 96e9, 16


class Slope(NamedTuple):
    """Cost of an engine at the largest measured size."""

    part: int
    """Number of references."""
    bytes: float
    core_ms: float
    """Core time per query in a batch, in milliseconds."""


def read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        # Rows of runs with --untimed have no times.
        return [row for row in csv.DictReader(stream) if row["exact ms a query"]]


def exact_core_ms(rows: list[dict[str, str]]) -> float:
    """Return the core time per query and million references, in the fastest run of a million or more."""
    prices = [
        float(row["exact ms a query"]) * int(row["threads"]) / int(row["references"]) * 1e6
        for row in rows
        if int(row["references"]) >= 10**6
    ]
    return min(prices)


def slope(rows: list[dict[str, str]], exact: float) -> Slope:
    # The last row of each size is the current version of the engine.
    own = {int(row["references"]): row for row in rows if row["engine"] == ENGINE}
    part = max(own)
    price = exact * part / 1e6 / float(own[part]["speed in batches"])
    return Slope(part, float(own[part]["bytes a reference"]), price)


def size(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if count >= unit / 10:
            return f"{count / unit:.3g} {name}"
    return f"{count / 1e6:.3g} MB"


def duration(ms: float) -> str:
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"


def main() -> None:
    rows = read(Path(sys.argv[1]))
    exact = exact_core_ms(rows)
    measured = slope(rows, exact)
    print(f"exact: {exact:.3g} core ms per query and million references")
    print(
        f"{ENGINE}, measured up to {measured.part:,}: {measured.bytes:.0f} bytes per reference, "
        f"{duration(measured.core_ms / measured.part * 1e6)} core time per query and million\n"
    )
    print(
        "| references | engine | disk float16 / pq | memory | machines | core time per query | on all cores |"
    )
    print("|---|---|---|---|---|---|---|")
    for count in SIZES:
        disk = " / ".join(size(count * (stored + BESIDE)) for stored in DISK.values())
        machines = max(1, math.ceil(count * measured.bytes / MEMORY))
        index = size(count * measured.bytes), machines, count / measured.part * measured.core_ms
        machines = max(1, math.ceil(count * (DISK["float16"] + BESIDE) / 4e12))
        blocks = "one block", machines, exact * count / 1e6
        for engine, (memory, machines, cost) in ((ENGINE, index), ("exact", blocks)):
            on_all = duration(cost / (machines * CORES))
            print(
                f"| {count:.0e} | `{engine}` | {disk} | {memory} | {machines} | {duration(cost)} | {on_all} |"
            )


if __name__ == "__main__":
    main()
