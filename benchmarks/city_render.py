"""Time of the synthetic city's renderer: milliseconds per image, and the gain of a second worker.

python benchmarks/city_render.py [images]
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np

from kappaplace_city import SyntheticCity
from record import timed

SIZES = (64, 128, 256)


def main(images: int = 400) -> None:
    city = SyntheticCity(seed=0, blocks=(3, 3))
    views = city.views("test", queries=max(images, 1))
    queries = views.select(np.flatnonzero(views.is_query)[:images])
    painting = timed(lambda: queries.render(16, np.arange(1)))[1]
    print(f"painting a district of 3 × 3 blocks: {painting:.2f} s")
    print(f"{images} queries in their weather")
    print("pixels  ms/image, 1 worker  ms/image, 2 workers  ratio")
    for size in SIZES:
        one, two = (timed(partial(queries.render, size, workers=workers))[1] for workers in (1, 2))
        print(f"{size:6d}  {1e3 * one / images:18.2f}  {1e3 * two / images:19.2f}  {one / two:5.2f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
