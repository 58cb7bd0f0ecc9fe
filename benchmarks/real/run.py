"""Train and evaluate on real images: one backbone, one seed, all columns in one file.

python benchmarks/real/run.py --data DATA --city city.npz --render 1200    # once: the synthetic city
python benchmarks/real/run.py --data DATA --weights DIR --city city.npz --seed 0 --out DIR

``--weights`` is a folder with BACKBONE.pt (ImageNet weights). Needs PYTHONPATH=benchmarks. Tables and plots:
benchmarks/real/tables.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from encoders import HEADS, SIZE, fit_head, start_model, train_encoder, train_stun
from sets import FAMILY, Training, load_images, render_city, test_sets, training_images, validation_sets
from signals import (
    DAMAGE,
    Columns,
    Pixels,
    damaged,
    embed,
    kappa_columns,
    maps_of,
    patch_columns,
    plain_columns,
)

from kappaplace.data.degradation import degrade
from kappaplace.models.checkpoint import AnyModel, save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.types import Embeddings
from record import DEVICE, Option, parse_options

LEVELS = (0.25, 0.5, 0.75, 1.0)
FOREIGN = 100  # out-of-map queries per map
STAGES = ("contrastive", "retrieval", "jt", "imagenet", "stun")
THINNED = (2, 4, 8)


def log(*words: object) -> None:
    print(f"{time.perf_counter() - BEGAN:7.1f} s", *words, flush=True)


BEGAN = time.perf_counter()


def main() -> None:
    arguments = parse_options(
        __doc__,
        data=Option(Path, required=True),
        weights=Path,
        city=Path,
        render=0,
        backbone="efficientnet_lite0",
        seed=0,
        out=Path,
        stages=",".join(STAGES),
        models=Path,
        more=[],
        sets="",
        heads=list(HEADS),
    )
    if arguments.render:
        import os

        render_city(arguments.city, arguments.render, 256, os.cpu_count() or 1)
        return
    device = DEVICE.type
    names = tuple(arguments.sets.split(",")) if arguments.sets else tuple(FAMILY)
    sets = {
        **{f"val/{name}": table for name, table in validation_sets(arguments.data).items()},
        **test_sets(arguments.data, names),
    }
    pixels = {
        name: Pixels(
            table,
            load_images(table.image_paths(table.query_rows), SIZE).to(device),
            load_images(table.image_paths(table.reference_rows), SIZE).to(device),
        )
        for name, table in sets.items()
    }
    data = training_images(arguments.data, SIZE, arguments.city)
    data = type(data)(data.images.to(device), data.positions, data.heading)
    log(f"{len(data.images)} training images;", {name: len(p.query) for name, p in pixels.items()})
    start = start_model(
        arguments.backbone, arguments.weights / f"{arguments.backbone}.pt", data.images, device
    )
    degraded_queries = {name: damaged(p.query, name) for name, p in pixels.items()}
    log("loaded")
    columns: Columns = {}
    stages = [stage for stage in STAGES if stage in arguments.stages.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        lab = Lab(start, data, Path(temporary), arguments.seed, arguments.more, arguments.heads)
        for stage in stages:
            encoder, heads = lab.models(stage)
            evaluate(stage, encoder.to(device).eval(), heads, pixels, degraded_queries, columns)
            log("evaluated", stage)
            if arguments.out:  # after each stage, so that an interrupted run keeps its results
                keep(arguments, columns, heads)
    log("done")


def keep(arguments: argparse.Namespace, columns: Columns, heads: dict[str, AnyModel]) -> None:
    """Save all columns, and the models that may be shipped."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"{arguments.backbone}_{arguments.seed}"
    np.savez_compressed(arguments.out / f"{name}.npz", **columns)  # type: ignore[arg-type]
    if arguments.models:
        for head in sorted({"layers", "layers-8", "layers-mlp-8"} & set(heads)):
            save_model(heads[head].cpu(), arguments.models / f"{name}_{head}")


@dataclass
class Lab:
    """Trains the encoder and heads of a stage."""

    start: PlaceModel
    data: Training
    folder: Path
    seed: int
    more: list[str]
    heads: list[str]

    def __post_init__(self) -> None:
        self.teacher: AnyModel | None = None

    def models(self, stage: str) -> tuple[AnyModel, dict[str, AnyModel]]:
        """Return an encoder and its heads by name; joint training and STUN have their own."""
        encoder = self.encoder(stage)
        log("encoder", stage)
        if stage in ("jt", "stun"):
            return encoder, {stage: encoder}
        heads = {}
        for name, (base, _, _) in HEADS.items():
            if base == stage and name in self.heads:
                heads[name] = fit_head(name, encoder, self.data, self.folder, self.seed)
                log("head", name)
        return encoder, heads

    def encoder(self, stage: str) -> AnyModel:
        if stage == "imagenet":
            return self.start
        if stage == "stun":
            assert self.teacher is not None, "run the stage retrieval first"
            return train_stun(self.teacher, self.data, self.folder, self.seed)
        model = train_encoder(stage, self.start, self.data, self.folder, self.seed, self.more)
        if stage == "retrieval":
            self.teacher = model
        return model


def evaluate(
    name: str,
    encoder: AnyModel,
    heads: dict[str, AnyModel],
    pixels: dict[str, Pixels],
    degraded_queries: dict[str, tuple[torch.Tensor, np.ndarray, np.ndarray]],
    columns: Columns,
) -> None:
    """Compute all columns of an encoder and its heads."""
    device = next(encoder.parameters()).device
    clean = {s: (embed(encoder, p.query), embed(encoder, p.reference)) for s, p in pixels.items()}
    damage = {s: embed(encoder, degraded_queries[s][0]) for s in pixels}
    with_maps = name in ("contrastive", "imagenet")
    plain: dict[str, Columns] = {}

    def put(prefix: str, results: Columns) -> None:
        for column, values in results.items():
            columns[f"{prefix}/{column}"] = values

    for s, p in pixels.items():
        reference_maps = maps_of(encoder, p.reference) if with_maps else None  # type: ignore[arg-type]
        for variant, query, images in (
            ("clean", clean[s][0], p.query),
            ("damaged", damage[s], degraded_queries[s][0]),
        ):
            results = plain_columns(query, clean[s][1], p.table)
            if reference_maps is not None:
                results |= patch_columns(maps_of(encoder, images), reference_maps, results)  # type: ignore[arg-type]
            plain[f"{s}/{variant}"] = results
            put(f"{name}/{s}/{variant}", results)
        columns[f"damage/{s}/kind"], columns[f"damage/{s}/level"] = degraded_queries[s][1:]
        if with_maps:
            foreign(name, s, clean, pixels, encoder, reference_maps, columns)
        thin(name, s, clean, p, put)
    for head, model in heads.items():
        model = model.to(device).eval()
        own = {s: (embed(model, p.query), embed(model, p.reference)) for s, p in pixels.items()}
        for s, p in pixels.items():
            put(f"{head}/{s}/clean", kappa_columns(*own[s], p.table, plain[f"{s}/clean"]))
            degraded_query = embed(model, degraded_queries[s][0])
            put(
                f"{head}/{s}/damaged",
                kappa_columns(degraded_query, own[s][1], p.table, plain[f"{s}/damaged"]),
            )
            if with_maps:
                query = foreign_queries(s, {t: o[0] for t, o in own.items()})
                put(f"{head}/{s}/outside", kappa_columns(query, own[s][1], no_truth(p, FOREIGN), {}))
            thin(head, s, own, p, put, kappa=True)
        if head in ("layers", "layers-8", "layers-mlp-8", "jt", "pt-classifier"):
            steps(head, model, pixels, own, columns)


def foreign_queries(s: str, queries: dict[str, Embeddings]) -> Embeddings:
    """Select queries of other families, the same for every model."""
    family = FAMILY[s.removeprefix("val/")]
    others = [t for t in queries if not t.startswith("val/") and FAMILY[t] != family]
    rng = np.random.default_rng(sum(map(ord, s)))
    selection = [
        (others[i], rng.integers(len(queries[others[i]].descriptor)))
        for i in rng.integers(len(others), size=FOREIGN)
    ]
    fields = zip(
        *[tuple(None if x is None else x[row] for x in queries[t]) for t, row in selection], strict=True
    )
    return Embeddings(*(None if c[0] is None else np.stack(c) for c in fields))


def no_truth(p: Pixels, count: int) -> object:
    """The set's map, asked by queries that have no positive in it."""
    from kappaplace.data.positives import Positives

    class Truth:
        is_near = staticmethod(p.table.is_near)

        @staticmethod
        def positives() -> Positives:
            return Positives.from_lists([[] for _ in range(count)], len(p.table.reference_rows))

    return Truth()


def foreign(
    name: str,
    s: str,
    clean: dict,
    pixels: dict[str, Pixels],
    encoder: AnyModel,
    maps: torch.Tensor | None,
    columns: Columns,
) -> None:
    query = foreign_queries(s, {t: pair[0] for t, pair in clean.items()})
    results = plain_columns(query, clean[s][1], no_truth(pixels[s], FOREIGN))  # type: ignore[arg-type]
    images = foreign_queries(s, {t: Embeddings(p.query.cpu().numpy()) for t, p in pixels.items()}).descriptor
    results |= patch_columns(maps_of(encoder, torch.from_numpy(images)), maps, results)  # type: ignore[arg-type]
    for column, values in results.items():
        columns[f"{name}/{s}/outside/{column}"] = values


def thin(name: str, s: str, own: dict, p: Pixels, put: object, kappa: bool = False) -> None:
    """Compute columns with only every n-th reference, for queries that still have a positive."""
    if s.startswith("val/") or p.table.neighborhood.kind == "self":
        return
    for step in THINNED:
        rows = np.concatenate([p.table.query_rows, p.table.reference_rows[::step]])
        some = p.table.select(np.sort(rows))
        left = np.flatnonzero(some.positives().counts > 0)
        some = some.select(np.sort(np.concatenate([some.query_rows[left], some.reference_rows])))
        query, reference = own[s][0].take(left), own[s][1].take(slice(None, None, step))
        results = (
            kappa_columns(query, reference, some, {}) if kappa else plain_columns(query, reference, some)
        )
        put(f"{name}/{s}/thin{step}", results)  # type: ignore[operator]


def steps(head: str, model: AnyModel, pixels: dict[str, Pixels], own: dict, columns: Columns) -> None:
    """Compute κ and recall at increasing degradation, for a hundred queries per dataset."""
    from kappaplace.retrieval.exact import search

    for s, p in pixels.items():
        if s.startswith("val/"):
            continue
        rows = np.linspace(0, len(p.query) - 1, min(100, len(p.query))).astype(int)
        images = p.query[torch.from_numpy(rows)].float() / 255
        kappa, right = [], []
        for kind in DAMAGE:
            for level in (0.0, *LEVELS):
                results = embed(model, degrade(images, kind, level, keys=np.arange(len(rows))))
                kappa.append(results.kappa)
                top = search(results.descriptor, own[s][1].descriptor, 1).indices
                right.append(p.table.positives().hits(top, rows)[:, 0])
        shape = (len(DAMAGE), 1 + len(LEVELS), len(rows))
        columns[f"{head}/{s}/steps/kappa"] = np.array(kappa, np.float32).reshape(shape)
        columns[f"{head}/{s}/steps/right"] = np.array(right).reshape(shape)


if __name__ == "__main__":
    main()
