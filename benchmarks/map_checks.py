"""What checksums and schema checks of a map cost when it is opened and built, in one run.

python benchmarks/map_checks.py [--references 50000] [--images 64]

Opening is `kappaplace localize` of one image from its start to its end. Times are those of the processor, so
that the ratio does not depend on the load of the machine.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from exact_search import descriptors
from kappaplace import PlaceMap, load_model
from kappaplace.cli.bench import Row
from kappaplace.files import sealed
from kappaplace.maps.store import MapStore, manifest
from kappaplace.maps.store.schema import Guard
from kappaplace.records import to_plain
from record import parse_options, report

ROUNDS = 5
LIMIT = 1.02
DIM = 512


@contextmanager
def timed_checks() -> Iterator[list[float]]:
    """Time every check of a map while it is opened and read."""
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments)
            finally:
                seconds.append(time.process_time() - start)

        return wrapper

    with (
        patch.object(Guard, "check", timed(Guard.check)),
        patch.object(MapStore, "check", timed(MapStore.check)),
        patch.object(manifest, "unsealed", timed(manifest.unsealed)),
    ):
        yield seconds


def image_files(folder: Path, count: int) -> list[str]:
    """Write images of noise as large as a photo of a phone, reduced to a quarter."""
    folder.mkdir()
    rng, names = np.random.default_rng(0), []
    for number in range(count):
        coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        names.append(str(folder / f"{number:04d}.jpg"))
        Image.fromarray(coarse).resize((1024, 768)).save(names[-1])
    return names


def children() -> float:
    """Return seconds of the processor that all processes started here have taken."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def opening(folder: Path, image: str) -> tuple[list[float], list[float]]:
    """Return seconds of the command, and seconds of its checks."""
    command = [sys.executable, "-m", "kappaplace", "localize", str(folder), image, "--json"]
    totals, checks = [], []
    for _ in range(ROUNDS):
        start = children()
        subprocess.run(command, check=True, capture_output=True)
        totals.append(children() - start)
        with timed_checks() as seconds:
            PlaceMap.open(folder).localize(image)
        checks.append(sum(seconds))
    return totals, checks


def building(images: list[str], folder: Path) -> tuple[list[float], list[float]]:
    """Return seconds of builds, and seconds of the checksums that only the checks need."""
    totals, checks = [], []
    for number in range(ROUNDS):
        out = folder / f"{number}.map"
        start = time.process_time()
        built = PlaceMap.build(images, out)
        totals.append(time.process_time() - start)
        files = [file.read_bytes() for file in out.rglob("*") if file.suffix in (".npy", ".bin")]
        start = time.process_time()
        for content in files:
            zlib.crc32(content)
        for _ in range(built.manifest.version):
            sealed(to_plain(built.manifest))
        with timed_checks() as seconds:
            PlaceMap.open(out)
        checks.append(time.process_time() - start + sum(seconds))
    return totals, checks


def row(what: str, where: str, totals: list[float], checks: list[float]) -> Row:
    """Return the row of a comparison with the same work without checks."""
    total, check = statistics.median(totals), statistics.median(checks)
    rest = total - check
    return Row("checks of maps", where, what, total, rest, "s", "without", total / rest, "lower", LIMIT)


def measure_checks(references: int, images: int) -> list[Row]:
    """Measure opening a map of descriptors, and building one of images."""
    with tempfile.TemporaryDirectory() as name, redirect_stderr(StringIO()):
        scratch = Path(name)
        names = np.array([f"{i:06d}.jpg" for i in range(references)])
        np.savez(scratch / "z.npz", name=names, descriptors=descriptors(references, DIM))
        files = image_files(scratch / "images", images)
        town = PlaceMap.import_(scratch / "z.npz", scratch / "town.map", load_model()).folder
        return [
            row("open and localize", f"{references:,} references", *opening(town, files[0])),
            row("build", f"{images} images", *building(files, scratch)),
        ]


if __name__ == "__main__":
    args = parse_options(__doc__, references=50_000, images=64)
    report(measure_checks(args.references, args.images), None)
