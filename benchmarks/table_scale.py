"""Memory and time of a table per million rows: build, hash, save, open, positives.

    python benchmarks/table_scale.py --rows 1000000 --csv results/table_scale.csv
    python benchmarks/table_scale.py --rows 10000000 --csv-rows 0

The rows resemble SF-XL: file names of about 110 characters, a city of 20 × 20 km, 1% of them queries.
"""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import numpy as np

from kappaplace.data.table import PlaceImages
from record import Option, append_row, parse_options, timed


def city(rows: int, seed: int = 0) -> PlaceImages:
    """Create a random city; names are created block by block to limit the number of Python strings."""
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
    """Return the memory of the process in megabytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def table_bytes(table: PlaceImages) -> float:
    """Return the bytes of the columns; text takes 16 bytes per row, plus its length above 15 characters."""
    total = sum(getattr(table, c).nbytes for c in ("positions", "heading", "timestamp", "place", "is_query"))
    for column in (table.paths, table.condition):
        length = np.strings.str_len(column)
        total += column.nbytes + int(length[length > 15].sum())
    return float(total)


def measure(rows: int, folder: Path) -> tuple[PlaceImages, dict[str, float], dict[str, float], int]:
    """Return the table, seconds per step, sizes in megabytes, and the number of positives."""
    before = resident()
    table, build = timed(lambda: city(rows))
    sizes = {"table in memory": table_bytes(table) / 1e6, "process grew by": resident() - before}
    seconds = {"build (names included)": build, "hash": timed(lambda: table.content_hash)[1]}
    file = folder / "table.parquet"
    seconds["save Parquet"] = timed(lambda: table.save(file))[1]
    sizes["Parquet on disk"] = file.stat().st_size / 1e6
    again, seconds["open Parquet"] = timed(lambda: PlaceImages.open(file))
    assert again.content_hash == table.content_hash
    del again
    positives, seconds["positives of 1 % queries"] = timed(table.positives)
    return table, seconds, sizes, len(positives.indices)


def csv_trial(table: PlaceImages, folder: Path) -> dict[str, float]:
    """Return the seconds to save and open the table as CSV."""
    file = folder / "table.csv"
    return {
        "save CSV": timed(lambda: table.save(file))[1],
        "open CSV": timed(lambda: PlaceImages.open(file))[1],
    }


def column(name: str, unit: str) -> str:
    """Return the CSV column of a printed line."""
    return f"{name.partition(' (')[0].replace(' ', '_').replace('%', 'percent')}_{unit}_per_million"


def main() -> None:
    arguments = parse_options(
        __doc__,
        rows=1_000_000,
        csv_rows=Option(100_000, help="rows of the CSV test; 0 skips it"),
        csv=Path,
    )
    millions = arguments.rows / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, seconds, sizes, positives = measure(arguments.rows, folder)
        print(f"{arguments.rows:,} rows, {len(table.query_rows):,} queries, {positives:,} positives")
        print(f"{'':34}{'seconds':>10}{'per million':>14}")
        for title, value in seconds.items():
            print(f"{title:34}{value:10.2f}{value / millions:14.2f}")
        for title, value in sizes.items():
            print(f"{title:34}{value:7.0f} MB{value / millions:11.0f} MB")
        if arguments.csv_rows:
            small = table.select(slice(0, arguments.csv_rows))
            for title, value in csv_trial(small, folder).items():
                label = f"{title} ({len(small):,} rows)"
                print(f"{label:34}{value:10.2f}{value / (len(small) / 1e6):14.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'peak of the process':34}{peak:7.0f} MB")
    row = {column(title, "s"): value / millions for title, value in seconds.items()}
    row |= {column(title, "MB"): value / millions for title, value in sizes.items()}
    append_row(arguments.csv, {"rows": arguments.rows, "positives": positives, **row, "peak_MB": peak})


if __name__ == "__main__":
    main()
