"""``kappaplace city``: write the synthetic city as image files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def city(
    out: Annotated[Path, typer.Option(help="Folder to write to; a second run adds only what is missing.")],
    seed: Annotated[int, typer.Option(help="Which city; the same seed gives the same bytes.")] = 0,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 128,
    blocks: Annotated[int, typer.Option(help="Building blocks per side of each district.")] = 3,
    queries: Annotated[int, typer.Option(help="Queries in each of the districts val and test.")] = 400,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write a synthetic city in the public CosPlace file layout: train, val and test districts.

    Examples:

        kappaplace city --out city

        kappaplace city --out big --blocks 8 --size 256 --seed 3

        kappaplace data import at-names city/test --out test.parquet
    """
    import json

    from kappaplace_city import SPLITS, SyntheticCity, write_city

    world = SyntheticCity(seed, (blocks, blocks))
    views = {split: world.views(split, queries=queries) for split in SPLITS}
    folder = write_city(world, out, size, views=views)
    counts = {
        split: {"references": int((~part.is_query).sum()), "queries": int(part.is_query.sum())}
        for split, part in views.items()
    }
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "seed": seed, "size": size, "images": counts}))
        return
    for split, count in counts.items():
        typer.echo(f"{split:<5} {count['references']:>6,} references {count['queries']:>6,} queries")
    typer.echo(f"Written to {folder}; the known levels of damage are in {folder / 'conditions.csv'}.")
