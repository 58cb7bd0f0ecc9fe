"""Evaluations made up for tests; to look at their reports: python -m tests.reports.synthetic FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from kappaplace.evaluation.results import EvaluationResult, ScoreColumns, SetResult
from kappaplace.metrics import score_summary
from kappaplace.types import Matches

MATCHES = 10
MANY = (
    "TLD distribution",
    "TLD ratio spread",
    "TLD statistical",
    "SUE",
    "log-SUE",
    "Variance",
    "1/κ",
    "Margin",
)


def make_set(
    name: str = "harbour",
    queries: int = 300,
    references: int = 800,
    *,
    seed: int = 0,
    noise: float = 1.0,
    kappa: bool = True,
    poses: bool = True,
    images: tuple[str, ...] = (),
    all_right: bool = False,
    extra: int = 0,
    few: bool = False,
) -> SetResult:
    """A set whose scores know more or less about its failures; ``images`` are reused in turn.

    ``few`` keeps two scores and no poses, for tests that look elsewhere.
    """
    rng = np.random.default_rng(seed)
    ease = rng.normal(0.8, 1.0, queries)
    hits = rng.normal(0, 1, (queries, MATCHES)) * 0.7 + ease[:, None] > np.linspace(0, 0.6, MATCHES)
    if all_right:
        hits[:] = True
    indices = np.stack([rng.choice(references, MATCHES, replace=False) for _ in range(queries)])
    similarities = np.sort(rng.random((queries, MATCHES)) * 0.5 + 0.3, axis=1)[:, ::-1].astype(np.float32)

    def uncertainty_of(power: float) -> np.ndarray:
        return np.exp(-ease / 2 + rng.normal(0, noise * power, queries))

    query_kappa = 300 / uncertainty_of(0.6)
    pairs = (0.002 * uncertainty_of(0.5))[:, None] * np.linspace(1, 1.6, MATCHES)
    cosine = 1 - similarities.astype(np.float64)
    scores = [
        ScoreColumns("l2", "L2", np.sqrt(2 * cosine[:, 0]), np.sqrt(2 * cosine)),
        ScoreColumns("pa", "PA", 1 - 0.3 * rng.beta(1 + 2 * (ease > 0), 6)),
    ]
    scores += [ScoreColumns(f"extra-{i}", MANY[i], uncertainty_of(0.4 + 0.2 * i)) for i in range(extra)]
    if kappa:
        scores.append(ScoreColumns("kappaplace", "KappaPlace", pairs[:, 0], pairs, one_sided=False))
    fused = 1 / (1 + uncertainty_of(0.8) ** 2)
    scores.append(ScoreColumns("fused", "Fused", 1 - fused, one_sided=False, probability=fused))
    ground = np.array([550_000.0, 4_180_000.0])
    along = np.sort(rng.random(references)) * 1500
    reference_positions = ground + np.stack([along, 200 * np.sin(along / 200)], 1)
    near = reference_positions[rng.integers(0, references, queries)] + rng.normal(0, 6, (queries, 2))
    return SetResult(
        name=name,
        hits=hits,
        matches=Matches(indices, similarities),
        scores={score.name: score for score in (scores[::2] if few else scores)},
        left_out={} if poses else {"sue": "SUE needs the positions of the references; this table has none."},
        references=references,
        without_positives=7,
        query_kappa=query_kappa if kappa else None,
        reference_kappa=rng.gamma(9, 50, references) if kappa else None,
        query_positions=near if poses and not few else None,
        reference_positions=reference_positions if poses and not few else None,
        query_images=tuple(images[i % len(images)] for i in range(queries)) if images else (),
        reference_images=tuple(images[i % len(images)] for i in range(references)) if images else (),
        facts={"protocol": "25 m"},
    )


def make_result(name: str = "model A", *sets: SetResult, measured: bool = False) -> EvaluationResult:
    """An evaluation of these sets, else of two different ones; ``measured`` adds metrics with intervals."""
    parts = sets or (make_set(), make_set("hills & <woods>", 200, seed=1, kappa=False, poses=False))
    metrics = {part.name: _measured(part) for part in parts} if measured else {}
    return EvaluationResult(name, parts, metrics, {"version": "0", "command": "kappaplace evaluate"})


def _measured(part: SetResult) -> dict[str, Any]:
    """As an evaluation would give it, but for the intervals, which are made up."""
    success = part.hits[:, 0]
    scores = {score.name: score_summary(score.query, success) for score in part.scores.values()}
    intervals = {
        score: {metric: (value - 0.021, value + 0.034) for metric, value in values.items()}
        for score, values in scores.items()
    }
    recall = {"R@1": float(success.mean())}
    return {
        "recall": recall,
        "scores": scores,
        "intervals": {"recall": {"R@1": (recall["R@1"] - 0.05, recall["R@1"] + 0.05)}, "scores": intervals},
    }


def make_images(folder: Path, count: int = 12) -> tuple[str, ...]:
    """Small street-like pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    names = []
    for number in range(count):
        picture = Image.new("RGB", (320, 240), (150, 180, 220))
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, 190, 320, 240), fill=(90, 90, 90))
        for left in range(0, 320, 64):
            top = int(rng.integers(30, 130))
            draw.rectangle((left, top, left + 58, 190), fill=tuple(rng.integers(60, 220, 3).tolist()))
        names.append(str(folder / f"street-{number:02d}.jpg"))
        picture.save(names[-1], quality=85)
    return tuple(names)


def main(folder: Path) -> None:
    """Reports to look at: two sets with everything, many scores side by side, and a poor one."""
    from kappaplace.reports.evaluation import write_report

    images = make_images(folder / "images")
    full = make_set(images=images)
    poor = make_set("hills & <woods>", 200, seed=1, noise=1.6, kappa=False, poses=False)
    print(write_report(make_result("model A", full, poor, measured=True), folder / "two"))
    many = make_result("model A", make_set(images=images, extra=8), make_set("hills", seed=1, extra=8))
    other = make_result("model B", make_set(noise=2, extra=8), make_set("hills", seed=1, noise=2, extra=8))
    print(write_report(many, folder / "many", [other]))
    print(write_report(make_result("one", make_set(queries=1, kappa=False, poses=False)), folder / "one"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
