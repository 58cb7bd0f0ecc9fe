"""The probability that two images show the same place: left-out families against simpler scores.

python benchmarks/pairs.py --data DATA --csv results/pairs.csv --out pairs.json

Each query of a public dataset (benchmarks/real/README.md; up to 300 per dataset) gives two pairs: with a
random correct reference, and with the best-looking wrong one. That is the most similar reference of
another place, or, for every second query, the one of the ten most similar whose patches agree best.
Frames within ten of a correct one are not used. Probabilities of a family are fitted on all other
families; for cosine and SIFT inliers alone, by logistic regression. "with map" compares also with the
other references of the dataset.
--out writes the calibration that is shipped with the model, fitted on all families.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "real"))
from sets import FAMILY, ROUTES, UNSEEN, test_sets

from kappaplace.calibration import fit_combination, fit_pairs, save_pairs
from kappaplace.calibration.pairs import background_signals, pair_signals
from kappaplace.data.table import PlaceImages
from kappaplace.metrics import auroc, brier, smooth_ece
from kappaplace.models import load_model
from kappaplace.models.embedding import embed_images
from kappaplace.retrieval import ArrayReferences
from kappaplace.retrieval.patches import compare
from kappaplace.retrieval.references import Queries
from kappaplace.types import Embeddings
from kappaplace.uncertainty.geometric import Verification, count_inliers, extract
from record import Option, log_row, parse_options

MOST = 300
"""Queries per dataset, so that no family dominates."""
LOOK_ALIKES = 10
SIFT = Verification()
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
NAMES = {
    "st_lucia": "St Lucia",
    "nordland_winter_summer": "Nordland",
    "sped": "SPED",
    "gardens_point": "Gardens Point",
    "essex3in1": "ESSEX3IN1",
    "berlin_kudamm": "Berlin Kudamm",
}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of one dataset."""

    signals: dict[str, Floats]
    same: NDArray[np.bool_]
    inliers: Floats


def embedded(table: PlaceImages, model: torch.nn.Module, file: Path) -> tuple[Embeddings, Embeddings]:
    """Return queries and references with their patches, from the cache if possible."""
    if not file.exists():
        parts = {}
        for side, rows in (("q", table.query_rows), ("r", table.reference_rows)):
            images = table.image_paths(rows)
            values = embed_images(model, model.preprocessing, images, patches=True, progress=False)
            parts |= {f"{side}d": values.descriptor, f"{side}k": values.kappa, f"{side}p": values.patches}
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **parts)
    with np.load(file) as stored:
        query, reference = (
            Embeddings(stored[f"{side}d"], stored[f"{side}k"], None, stored[f"{side}p"]) for side in "qr"
        )
    return query, reference


def references_of(table: PlaceImages, reference: Embeddings) -> ArrayReferences:
    """Return the references, whose "images" are their row numbers, with stored patches."""
    names = [str(row) for row in range(len(reference.descriptor))]
    return ArrayReferences(
        reference,
        neighborhood=table.is_near,
        paths=names,
        patch_maps=lambda rows: torch.from_numpy(reference.patches[[int(str(row)) for row in rows]]),
    )


def drawn(table: PlaceImages, query: Embeddings, references: ArrayReferences) -> tuple[Rows, Rows]:
    """Return queries and references of the pairs: all correct ones first, then the wrong ones."""
    positives, rng = table.positives(), np.random.default_rng(0)
    usable = np.flatnonzero(positives.counts > 0)
    usable = usable[np.unique(np.linspace(0, len(usable) - 1, min(MOST, len(usable))).astype(np.int64))]
    right = np.array([rng.choice(positives.of(int(row))) for row in usable])
    everything = np.arange(len(references))
    similarities = query.descriptor[usable] @ references.descriptors.T
    for row, values in zip(usable, similarities, strict=True):
        correct = positives.of(int(row))
        values[table.is_near(correct[:, None], everything[None]).any(0)] = -np.inf
    alike = np.argsort(-similarities, axis=1)[:, :LOOK_ALIKES]
    agreement = compare(Queries(query.take(usable)), references, alike)
    column = np.where(np.arange(len(usable)) % 2, agreement.argmax(1), 0)
    wrong = alike[np.arange(len(usable)), column]
    return np.concatenate([usable, usable]), np.concatenate([right, wrong])


def read_pairs(table: PlaceImages, model: torch.nn.Module, cache: Path, name: str) -> Pairs:
    query, reference = embedded(table, model, cache / f"{name}.npz")
    references = references_of(table, reference)
    rows, others = drawn(table, query, references)
    a, b = query.take(rows), reference.take(others)
    signals = pair_signals(a, b)
    signals |= background_signals(a, b, references, 1.0 - signals["patches"])
    inliers = sift_inliers(table, rows, others, cache / f"{name}.sift.npz")
    same = np.arange(len(rows)) < len(rows) // 2
    return Pairs(signals, same, inliers)


def sift_inliers(table: PlaceImages, rows: Rows, others: Rows, file: Path) -> Floats:
    """Return the SIFT inliers of pairs, from the cache if possible."""
    counts: dict[tuple[int, int], float] = {}
    if file.exists():
        with np.load(file) as stored:
            pairs = map(tuple, stored["pairs"].tolist())
            counts = dict(zip(pairs, stored["counts"].tolist(), strict=True))
    images = [table.image_paths(part) for part in (table.query_rows, table.reference_rows)]
    for i, j in zip(rows.tolist(), others.tolist(), strict=True):
        if (i, j) not in counts:
            counts[i, j] = count_inliers(extract(images[0][i], SIFT), extract(images[1][j], SIFT), SIFT)
    np.savez(file, pairs=np.array(list(counts)), counts=np.array(list(counts.values()), np.float64))
    return np.array([counts[pair] for pair in zip(rows.tolist(), others.tolist(), strict=True)], np.float64)


def joined(parts: list[Pairs]) -> Pairs:
    return Pairs(
        {name: np.concatenate([part.signals[name] for part in parts]) for name in parts[0].signals},
        np.concatenate([part.same for part in parts]),
        np.concatenate([part.inliers for part in parts]),
    )


def predictions(others: Pairs, held: Pairs) -> dict[str, Floats]:
    """Return the probabilities of held-out pairs by each method."""
    calibration = fit_pairs(others.signals, others.same)
    bare = {name: values for name, values in held.signals.items() if name != "patch-margin"}
    scores = {
        "cosine": (others.signals["cosine"], held.signals["cosine"]),
        "SIFT inliers": (-np.log1p(others.inliers), -np.log1p(held.inliers)),
    }
    alone = {
        name: fit_combination(one[:, None], others.same, [name]).probability(other[:, None])
        for name, (one, other) in scores.items()
    }
    return {
        **alone,
        "pair (patches)": calibration.probability(bare),
        "pair with map": calibration.probability(held.signals),
    }


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, "folder of the datasets", required=True),
        cache=Option(Path, "folder for embeddings and inliers", required=True),
        csv=Path,
        out=Option(Path, "calibration to write"),
    )
    model = load_model()
    tables = test_sets(options.data, (*ROUTES, *UNSEEN))
    parts = {name: read_pairs(table, model, options.cache, name) for name, table in tables.items()}
    families = list(dict.fromkeys(FAMILY[name] for name in parts))
    sums: dict[str, list[list[float]]] = {}
    for family in families:
        held = joined([part for name, part in parts.items() if FAMILY[name] == family])
        others = joined([part for name, part in parts.items() if FAMILY[name] != family])
        for method, probability in predictions(others, held).items():
            values = [
                smooth_ece(probability, held.same),
                auroc(1 - probability, held.same),
                brier(probability, held.same),
            ]
            sums.setdefault(method, []).append(values)
            write(options.csv, family, method, len(held.same), values)
    for method, rows in sums.items():
        write(options.csv, "mean", method, sum(len(part.same) for part in parts.values()), np.mean(rows, 0))
    if options.out is not None:
        every = joined(list(parts.values()))
        origin = ", ".join(NAMES[family] for family in families)
        save_pairs(fit_pairs(every.signals, every.same, model.fingerprint, {"origin": origin}), options.out)


def write(csv: Path | None, family: str, method: str, pairs: int, values: list[float] | Floats) -> None:
    shown = {
        name: f"{value:.3f}" for name, value in zip(("smooth_ece", "auroc", "brier"), values, strict=True)
    }
    log_row(csv, {"family": family, "method": method, "pairs": pairs, **shown})


if __name__ == "__main__":
    main()
