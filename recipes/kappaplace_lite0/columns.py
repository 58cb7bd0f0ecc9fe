"""Columns of a trained model for from_columns.py and benchmarks/real/tables.py, without training.

python recipes/kappaplace_lite0/columns.py --data DATA --cache embeddings --out DIR/efficientnet_lite0_0.npz

It embeds the test parts of the public datasets (docs/real_images.md) as benchmarks/real/run.py does: original
and degraded queries, and queries of other families. Needs PYTHONPATH=benchmarks:benchmarks/real. --cache
keeps the embeddings, so that another way to compare patches needs no encoder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from from_columns import NAMES
from run import FOREIGN, foreign_queries, no_truth
from sets import FAMILY, load_images, test_sets
from signals import Columns, damaged, patch_columns, plain_columns

from kappaplace.data.table import PlaceImages
from kappaplace.models import AnyModel, load_model
from kappaplace.models.embedding import embed_images
from kappaplace.types import Embeddings

ENCODER, HEAD = "contrastive", "layers-mlp"
"""Names of the shipped encoder and its head in benchmarks/real."""


@torch.inference_mode()
def embed_degraded(model: AnyModel, name: str, paths: list[str]) -> Embeddings:
    """Embed the queries of a dataset after degradation, the same for every model."""
    size = model.preprocessing.size
    assert isinstance(size, int)
    images, parts = damaged(load_images(paths, size), name)[0], []
    for batch in images.split(32):
        descriptor, kappa, _, maps = model(model.preprocessing.normalize(batch), patches=True)
        parts.append((descriptor.numpy(), kappa.numpy(), maps.half().numpy()))
    descriptor, kappa, patches = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Embeddings(descriptor, kappa, None, patches)


def kept(folder: Path | None, name: str, embed: Callable[[], Embeddings]) -> Embeddings:
    """Return embeddings from a folder; compute and save them if they are missing."""
    if folder is None:
        return embed()
    file, maps = folder / f"{name}.npz", folder / f"{name}.patches.npy"
    if not (file.exists() and maps.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        result = embed()
        np.save(maps, result.patches)
        np.savez(file, descriptor=result.descriptor, kappa=result.kappa)
    with np.load(file) as stored:
        return Embeddings(stored["descriptor"], stored["kappa"], None, np.load(maps, mmap_mode="r"))


def columns_of(model: AnyModel, tables: dict[str, PlaceImages], cache: Path | None) -> Columns:
    """Return the columns of all datasets."""
    parts: dict[str, dict[str, Embeddings]] = {"query": {}, "reference": {}, "damaged": {}}
    for name, table in tables.items():
        for kind, rows in (("query", table.query_rows), ("reference", table.reference_rows)):
            paths = table.image_paths(rows)
            embed = partial(embed_images, model, model.preprocessing, paths, patches=True)
            parts[kind][name] = kept(cache, f"{name}.{kind}", embed)
        embed = partial(embed_degraded, model, name, table.image_paths(table.query_rows))
        if name in NAMES:  # the others only evaluate
            parts["damaged"][name] = kept(cache, f"{name}.damaged", embed)
        print(name, flush=True)
    out: Columns = {}
    for name, table in tables.items():
        reference = parts["reference"][name]
        maps = torch.from_numpy(np.array(reference.patches))
        others = foreign_queries(name, parts["query"])
        truth = no_truth(argparse.Namespace(table=table), FOREIGN)  # type: ignore[arg-type]
        variants = [("clean", parts["query"][name], table), ("outside", others, truth)]
        variants += [("damaged", parts["damaged"][name], table)] if name in NAMES else []
        for variant, query, place in variants:
            results = plain_columns(query, reference, place)  # type: ignore[arg-type]
            results |= patch_columns(torch.from_numpy(np.array(query.patches)), maps, results)
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
