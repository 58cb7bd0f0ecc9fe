"""The demo on real images: any folder with queries, references and positives, and a trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.calibration.calibration import Calibration
from kappaplace.calibration.combination import features_of
from kappaplace.calibration.decision import Decision
from kappaplace.calibration.sources import calibration_with
from kappaplace.data.table import PlaceImages
from kappaplace.data.table_io import TABLE_FORMATS
from kappaplace.demo.damage import Damage, kappa_under_damage
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import Evaluation, evaluate
from kappaplace.evaluation.inputs import Retrieved, from_table
from kappaplace.metrics import brier, smooth_ece, success_at
from kappaplace.models.checkpoint import AnyModel
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.uncertainty import SCORES, available, score_named
from kappaplace.uncertainty.score import Evidence, Score, Scores

MATCHES = 10
SHOWN = ("l2", "pa", "margin", "inverse-kappa", "kappaplace")
PROBABILITY = "probability"
# A folder is recognised by the file that states its positives.
_LAYOUTS = {
    "gt.json": "gt-json",
    "ground_truth_new.npy": "vpr-bench",
    "ground_truth.npy": "vpr-bench",
}
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class RealResult:
    """What the report shows."""

    model: str
    retrieved: Retrieved
    evaluation: Evaluation
    calibration: Calibration | None
    """What came with the model; None for any other model."""
    damage: Damage | None
    """None for a model without κ."""

    @property
    def evidence(self) -> Evidence:
        return self.retrieved.evidence

    @property
    def without_positives(self) -> int:
        """Queries that no reference of the set is right for; they count as wrong."""
        return int((self.retrieved.positives.counts == 0).sum())

    @property
    def uncertainty(self) -> tuple[str, Scores]:
        """The score by which queries are called sure or unsure, with its label."""
        by_name = {each.score.name: each for each in self.evaluation.scores}
        best = next(by_name[name] for name in (PROBABILITY, "kappaplace", "l2") if name in by_name)
        return best.score.label, best.uncertainty

    def probability_facts(self) -> dict[str, Any] | None:
        """How good the probabilities that came with the model are here; None without them."""
        if self.calibration is None or self.calibration.rule is None:
            return None
        probability = 1.0 - self.uncertainty[1]
        right = success_at(self.evaluation.hits, 1)
        accepted = self.calibration.rule.decide(probability=probability) == Decision.ACCEPT
        wrong = int((accepted & ~right).sum())
        return {
            "smooth ECE": smooth_ece(probability, right),
            "Brier": brier(probability, right),
            "accepted": int(accepted.sum()),
            "accepted and wrong": wrong,
            "accepted from": self.calibration.rule.accept_at,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        facts = {"set": self.retrieved.name, "model": self.model, "references": self.retrieved.references}
        counts = {"without_positives": self.without_positives, "probability": self.probability_facts()}
        return {**facts, **self.evaluation.to_dict(), **counts}


def real_table(path: Path, layout: str = "") -> PlaceImages:
    """Queries and references of a folder or table; a folder's layout is recognised, or named."""
    from kappaplace.data.readers import READERS, read_layout

    if path.is_file() and path.suffix.lower() in TABLE_FORMATS:
        table = PlaceImages.open(path)
    else:
        found = layout or next((kind for file, kind in _LAYOUTS.items() if (path / file).is_file()), "")
        if path.is_dir() and not found:
            raise KappaPlaceError(
                f"Nothing in {path} tells which references are right ({', '.join(_LAYOUTS)}); name its "
                f"layout with --layout ({', '.join(READERS)}), or give a table that `data import` made."
            )
        table = read_layout(found or "gt-json", path)
    if not table.positives().counts.any():
        raise KappaPlaceError(
            f"No query of {path} has a right reference, so nothing can be judged; it holds "
            f"{len(table.query_rows):,} queries and {len(table.reference_rows):,} references."
        )
    return table


def run_real(
    table: PlaceImages,
    model: AnyModel,
    name: str,
    *,
    device: str | None = None,
    cache: str | Path | None = None,
    say: Say = lambda sentence: None,
) -> RealResult:
    """Embed, retrieve and judge; ``say`` is told what is going on."""
    queries, references = len(table.query_rows), len(table.reference_rows)
    say(f"Embedding {queries:,} queries and {references:,} references with {name}")
    embedding = EmbeddingStore.of(model, cache, device=device)
    retrieved = from_table(table, embedding, min(MATCHES, references))
    evidence = retrieved.evidence
    calibration = calibration_with(embedding.fingerprint, embedding.preprocessing)
    if calibration is not None and any(SCORES[each].reason(evidence) for each in calibration.scores):
        calibration = None  # a set of one place, say: the margin has nothing to compare with
    scores = available([score_named(each) for each in SHOWN], evidence)[0]
    if calibration is not None:
        scores.append(_as_score(calibration))
    hits = retrieved.positives.hits(evidence.matches.indices)
    damage = None
    if evidence.queries.embeddings is not None and evidence.queries.embeddings.kappa is not None:
        say("Damaging some queries in known ways to see what κ makes of it")
        damage = kappa_under_damage(model, retrieved)
    return RealResult(name, retrieved, evaluate(evidence, hits, scores), calibration, damage)


def image_paths(images: Any, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
    """Files of some queries or references."""
    return [str(images[int(row)]) for row in rows]


def _as_score(calibration: Calibration) -> Score:
    """1 − the probability that came with the model, as a score like any other."""
    parts = [score_named(name) for name in calibration.scores]

    def query(evidence: Evidence) -> Scores:
        return 1.0 - calibration.probability(features_of(evidence, parts))

    return Score(PROBABILITY, "Calibrated probability", query, one_sided=False)
