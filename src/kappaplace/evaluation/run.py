"""The evaluation as one call: retrieve, score, measure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import kappaplace
from kappaplace.data.images import Preprocessing
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import NoPositives
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.fitting import Fitted, fit
from kappaplace.evaluation.measuring import MEAN, POOLED, RESAMPLES, measure
from kappaplace.evaluation.own_scores import check_own_score, read_own_score
from kappaplace.evaluation.results import EvaluationResult, SetResult
from kappaplace.evaluation.scoring import chosen_scores, score_set
from kappaplace.evaluation.sources import Retrieved, from_table
from kappaplace.metrics import MOST_RESAMPLES
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.loading import AnyModel
from kappaplace.uncertainty.registry import score_named

Resize = Literal["model", "protocol"]


@dataclass(frozen=True)
class Choices:
    """What the user decides, apart from the data."""

    scores: str = ""
    """Names with commas between them, "all", or nothing: all that are quick."""
    k: int = 10
    policy: NoPositives | None = None
    """None: as the set's protocol says, else fail."""
    resamples: int = RESAMPLES
    seed: int = 0
    fuse: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        chosen_scores(self.scores)  # an unknown name is told before anything is embedded
        for name in self.fuse:
            score_named(name)
        if self.k < 1 or not 0 <= self.resamples <= MOST_RESAMPLES or self.seed < 0:
            raise KappaPlaceError(
                f"An evaluation needs k ≥ 1, resamples from 0 to {MOST_RESAMPLES:,} and seed ≥ 0; got "
                f"{self.k}, {self.resamples} and {self.seed}."
            )


def evaluate_table(
    model: AnyModel,
    table: PlaceImages,
    scores: str | Sequence[str] = "",
    *,
    k: int = 10,
    policy: NoPositives | str | None = None,
    cache: str | Path | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> SetResult:
    """Embed (or find in the cache), retrieve and score one table; `measure` then gives the metrics."""
    names = scores if isinstance(scores, str) else ",".join(scores)
    known = [each.value for each in NoPositives]
    if policy is not None and policy not in known:
        raise KappaPlaceError(f"The policy is one of {', '.join(known)}, not {policy!r}.")
    chosen = Choices(names, k, None if policy is None else NoPositives(policy))
    embedding = EmbeddingStore.of(model, cache, batch_size=batch_size, device=device)
    return _scored(from_table(table, embedding, k), chosen, None, ())


def evaluate_sets(
    name: str,
    sets: Iterable[Retrieved],
    choices: Choices,
    *,
    fitted: Fitted | None = None,
    own: Sequence[Path] = (),
    facts: dict[str, Any] | None = None,
) -> EvaluationResult:
    """Score and measure any number of sets; they are taken one after the other, so one is held at a time."""
    for file in own:
        check_own_score(file)
    stems = [file.stem for file in own]
    if len(set(stems)) < len(stems):
        raise KappaPlaceError("Two files of own scores have the same name; a score is called after its file.")
    started, clock = datetime.now(timezone.utc), time.monotonic()
    scored: list[SetResult] = []
    for retrieved in sets:
        if retrieved.name in (*(each.name for each in scored), POOLED, MEAN):
            raise KappaPlaceError(f"Two sets are called {retrieved.name}; give them different names.")
        scored.append(_scored(retrieved, choices, fitted, own))
    if not scored:
        raise KappaPlaceError("There is no set to evaluate.")
    metrics = measure(scored, resamples=choices.resamples, seed=choices.seed)
    times = {"started": started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock, 3)}
    about = {"version": kappaplace.__version__, **_plain(choices), **(facts or {})}
    if fitted is not None and fitted.combination is not None:
        about["fused"] = fitted.combination.to_dict()
    return EvaluationResult(name, tuple(scored), metrics, about, times)


def fit_on(retrieved: Retrieved, choices: Choices) -> Fitted:
    """Calibrate and combine scores on a validation set."""
    return fit(retrieved, chosen_scores(choices.scores)[0], choices.fuse)


def preprocessing_for(model: AnyModel, table: PlaceImages, resize: Resize) -> Preprocessing:
    """The model's own, or its normalisation with the resizing that the table's protocol asks for."""
    protocol = PROTOCOLS.get(table.protocol)
    if resize == "model" or protocol is None:
        return model.preprocessing
    asked = protocol.preprocessing
    return replace(model.preprocessing, size=asked.size, mode=asked.mode)


def _scored(retrieved: Retrieved, choices: Choices, fitted: Fitted | None, own: Sequence[Path]) -> SetResult:
    scores, not_asked = chosen_scores(choices.scores)
    if fitted is not None and fitted.combined is not None:
        scores = [*scores, fitted.combined]
    return score_set(
        retrieved,
        scores,
        policy=choices.policy,
        calibrations=None if fitted is None else fitted.calibrations,
        own=[read_own_score(file, retrieved) for file in own],
        not_asked=not_asked,
    )


def _plain(choices: Choices) -> dict[str, Any]:
    values = asdict(choices)
    values["policy"] = "" if choices.policy is None else choices.policy.value
    values["fuse"] = list(choices.fuse)
    return values
