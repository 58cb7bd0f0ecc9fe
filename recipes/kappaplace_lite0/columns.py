"""Columns of a trained model for from_columns.py and benchmarks/real/tables.py, without training.

python recipes/kappaplace_lite0/columns.py --data DATA --cache embeddings --out DIR/efficientnet_lite0_0.npz

It embeds the test parts of the public datasets (benchmarks/real/README.md) as benchmarks/real/run.py does:
original and degraded queries, and queries of other families. Needs PYTHONPATH=benchmarks:benchmarks/real.
--cache keeps the embeddings, so that another way to compare patches needs no encoder.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from calibrate import spread
from domain import QUERIES
from from_columns import NAMES
from run import FOREIGN, foreign_queries, no_truth
from sets import FAMILY, load_images, test_sets
from signals import Columns, damaged, patch_columns, plain_columns

from kappaplace.data.appearance import appearance
from kappaplace.data.table import PlaceImages
from kappaplace.models import AnyModel, load_model
from kappaplace.models.embedding import embed_images
from kappaplace.types import Embeddings
from record import stored_embeddings

ENCODER, HEAD = "contrastive", "layers-mlp"
"""Names of the shipped encoder and its head in benchmarks/real."""


@torch.inference_mode()
def embed_degraded(model: AnyModel, name: str, paths: list[str], clean: Embeddings) -> Embeddings:
    """Embed the queries of a dataset after degradation, the same for every model."""
    size = model.preprocessing.size
    assert isinstance(size, int)
    images, kinds, _ = damaged(load_images(paths, size), name)
    result = Embeddings(*(None if part is None else part.copy() for part in clean))
    for rows in torch.from_numpy(np.flatnonzero(kinds >= 0)).split(32):  # the others are unchanged
        descriptor, kappa, _, maps = model(model.preprocessing.normalize(images[rows]), patches=True)
        parts = (descriptor, kappa, None, maps.half())
        for whole, part in zip(result, parts, strict=True):
            if part is not None:
                whole[rows.numpy()] = part.numpy()
    return result


def columns_of(model: AnyModel, tables: dict[str, PlaceImages], cache: Path | None) -> Columns:
    """Return the columns of all datasets."""
    parts: dict[str, dict[str, Embeddings]] = {"query": {}, "reference": {}, "damaged": {}}
    for name, table in tables.items():
        for kind, rows in (("query", table.query_rows), ("reference", table.reference_rows)):
            paths = table.image_paths(rows)
            embed = partial(embed_images, model, model.preprocessing, paths, patches=True)
            parts[kind][name] = stored_embeddings(cache, f"{name}.{kind}", embed)
        embed = partial(
            embed_degraded, model, name, table.image_paths(table.query_rows), parts["query"][name]
        )
        if name in NAMES:  # the others only evaluate
            parts["damaged"][name] = stored_embeddings(cache, f"{name}.damaged", embed)
        print(name, flush=True)
    out: Columns = {}
    for name, table in tables.items():
        reference = parts["reference"][name]
        maps = torch.from_numpy(reference.patches)
        rows = table.query_rows[spread(len(table.query_rows), QUERIES)]
        out[f"appearance/{name}"] = appearance(table.image_paths(rows))
        others = foreign_queries(name, parts["query"])
        truth = no_truth(argparse.Namespace(table=table), FOREIGN)  # type: ignore[arg-type]
        variants = [("clean", parts["query"][name], table), ("outside", others, truth)]
        variants += [("damaged", parts["damaged"][name], table)] if name in NAMES else []
        for variant, query, place in variants:
            results = plain_columns(query, reference, place)  # type: ignore[arg-type]
            results |= patch_columns(torch.from_numpy(query.patches), maps, results)
            out |= {f"{ENCODER}/{name}/{variant}/{column}": values for column, values in results.items()}
            out[f"{HEAD}/{name}/{variant}/kappa_q"] = np.asarray(query.kappa, np.float32)
        print(name, f"R@1 re-ranked {out[f'{ENCODER}/{name}/clean/reranked'].mean():.4f}", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="kappaplace-lite0")
    parser.add_argument("--cache", type=Path, help="folder of embeddings")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model = load_model(arguments.model).eval()
    columns = columns_of(model, test_sets(arguments.data, tuple(FAMILY)), arguments.cache)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.out, **columns)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
