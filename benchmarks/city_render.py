"""Time of the synthetic city's renderer: milliseconds per image, and what a second worker gains.

python benchmarks/city_render.py [images]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from kappaplace_city import CityViews, SyntheticCity

SIZES = (64, 128, 256)


def seconds(views: CityViews, size: int, workers: int) -> float:
    start = time.perf_counter()
    views.render(size, workers=workers)
    return time.perf_counter() - start


def main(images: int = 400) -> None:
    city = SyntheticCity(seed=0, blocks=(3, 3))
    views = city.views("test", queries=max(images, 1))
    queries = views.select(np.flatnonzero(views.is_query)[:images])
    start = time.perf_counter()
    queries.render(16, np.arange(1))
    print(f"painting a district of 3 × 3 blocks: {time.perf_counter() - start:.2f} s")
    print(f"{images} queries under their conditions")
    print("pixels  ms/image, 1 worker  ms/image, 2 workers  ratio")
    for size in SIZES:
        one, two = (seconds(queries, size, workers) for workers in (1, 2))
        print(f"{size:6d}  {1e3 * one / images:18.2f}  {1e3 * two / images:19.2f}  {one / two:5.2f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
