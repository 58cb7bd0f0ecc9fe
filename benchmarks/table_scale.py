"""Memory and time of a table per million rows: build, hash, save, open, positives.

    python benchmarks/table_scale.py --rows 1000000
    python benchmarks/table_scale.py --rows 10000000 --csv-rows 0

The rows look like SF-XL: file names of about 110 characters, a city of 20 × 20 km, 1 % of them queries.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.place_images import PlaceImages


def city(rows: int, seed: int = 0) -> PlaceImages:
    """A random city; names are made a block at a time so that Python strings never pile up."""
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 20_000, (rows, 2)) + np.array([540_000.0, 4_170_000.0])
    heading = rng.integers(0, 360, rows)
    names = np.empty(rows, dtype=np.dtypes.StringDType())
    for start in range(0, rows, 65_536):
        stop = min(start + 65_536, rows)
        block = zip(
            range(start, stop), positions[start:stop].tolist(), heading[start:stop].tolist(), strict=True
        )
        names[start:stop] = [
            f"37.7{i % 97:02d}/@{e:010.2f}@{n:010.2f}@10@S@037.77000@-122.41000@{i:022d}"
            f"@@{h:03d}@@@@201311@@.jpg"
            for i, (e, n), h in block
        ]
    return PlaceImages.create(
        names, positions, heading=heading, is_query=rng.random(rows) < 0.01, frame="EPSG:32610", name="scale"
    )


def resident() -> float:
    """Megabytes that the process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def timed(task: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = task()
    return result, time.perf_counter() - start


def table_bytes(table: PlaceImages) -> float:
    """Bytes of the columns; text takes 16 bytes a row, and its length where it exceeds 15 characters."""
    total = sum(getattr(table, c).nbytes for c in ("positions", "heading", "timestamp", "place", "is_query"))
    for column in (table.paths, table.condition):
        length = np.strings.str_len(column)
        total += column.nbytes + int(length[length > 15].sum())
    return float(total)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--csv-rows", type=int, default=100_000, help="rows of the CSV trial; 0 leaves it out"
    )
    arguments = parser.parse_args()
    millions = arguments.rows / 1e6
    before = resident()
    table, build = timed(lambda: city(arguments.rows))
    held = resident() - before
    lines: list[tuple[str, float]] = [("build (names included)", build)]
    _, seconds = timed(lambda: table.content_hash)
    lines.append(("hash", seconds))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.parquet"
        lines.append(("save Parquet", timed(lambda: table.save(file))[1]))
        size = file.stat().st_size
        again, seconds = timed(lambda: PlaceImages.open(file))
        lines.append(("open Parquet", seconds))
        assert again.content_hash == table.content_hash
        del again
        positives, seconds = timed(table.positives)
        lines.append((f"positives of {len(table.query_rows):,} queries", seconds))
        counts = (arguments.rows, len(table.query_rows), len(positives.indices))
        print("{:,} rows, {:,} queries, {:,} positives".format(*counts))
        print(f"{'':34}{'seconds':>10}{'per million':>14}")
        for name, seconds in lines:
            print(f"{name:34}{seconds:10.2f}{seconds / millions:14.2f}")
        held_by_table = table_bytes(table) / 1e6
        print(f"{'table in memory':34}{held_by_table:7.0f} MB{held_by_table / millions:11.0f} MB")
        print(f"{'process grew by':34}{held:7.0f} MB{held / millions:11.0f} MB")
        print(f"{'Parquet on disk':34}{size / 1e6:7.0f} MB{size / 1e6 / millions:11.0f} MB")
        if arguments.csv_rows:
            small = table.select(slice(0, arguments.csv_rows))
            part = len(small) / 1e6
            text = Path(folder) / "table.csv"
            for name, seconds in (
                ("save CSV", timed(lambda: small.save(text))[1]),
                ("open CSV", timed(lambda: PlaceImages.open(text))[1]),
            ):
                print(f"{name + f' ({len(small):,} rows)':34}{seconds:10.2f}{seconds / part:14.2f}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{'peak of the process':34}{peak:7.0f} MB")


if __name__ == "__main__":
    main()
