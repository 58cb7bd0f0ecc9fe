"""The evaluation as one call: retrieve, score, measure.

What can be asked for on the command line, each as one function: from files to an evaluation.

From retrieval results to the numbers that judge them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.images import Preprocessing
from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import NoPositives, Positives
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import (
    Retrieved,
    from_descriptors,
    from_similarities,
    from_table,
    read_embeddings,
    read_positives,
    read_similarities,
)
from kappaplace.evaluation.measuring import MEAN, POOLED, RESAMPLES, measure
from kappaplace.evaluation.own_scores import check_own_score, read_own_score
from kappaplace.evaluation.results import EvaluationResult, SetResult
from kappaplace.evaluation.scoring import Fitted, chosen_scores, fit, score_set
from kappaplace.metrics import MOST_RESAMPLES
from kappaplace.metrics.calibration import BOTH_TAILS, UPPER_TAIL, ReliabilityCurve, reliability_curve
from kappaplace.metrics.retrieval import KS, recall_at, success_at
from kappaplace.metrics.selective import auroc
from kappaplace.models.checkpoint import AnyModel, load_model
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.records import to_plain
from kappaplace.types import Embeddings
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Evidence, Score, Scores
from kappaplace.version import package_version

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
        if self.policy is not None and self.policy not in [each.value for each in NoPositives]:
            known = ", ".join(each.value for each in NoPositives)
            raise KappaPlaceError(f"policy must be one of {known}, got {self.policy!r}.")
        chosen_scores(self.scores)  # an unknown name is told before anything is embedded
        for name in self.fuse:
            score_named(name)
        if self.k < 1 or not 0 <= self.resamples <= MOST_RESAMPLES or self.seed < 0:
            raise KappaPlaceError(
                f"An evaluation needs k ≥ 1, resamples from 0 to {MOST_RESAMPLES:,} and seed ≥ 0; got "
                f"{self.k}, {self.resamples} and {self.seed}."
            )


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
    about = {"version": package_version(), **_plain(choices), **(facts or {})}
    if fitted is not None and fitted.combination is not None:
        about["fused"] = to_plain(fitted.combination)
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


@dataclass(frozen=True)
class Machine:
    """Where and how images are embedded; none of it changes a result."""

    cache: Path | None = None
    device: str | None = None
    batch_size: int = 32
    root: Path | None = None
    """Where the images lie, if they have moved."""

    def __post_init__(self) -> None:
        # Told at once, not after an hour of reading files, nor only where something is left to embed.
        if self.device is not None:
            usable_device(self.device)
        if self.batch_size < 1:
            raise KappaPlaceError(f"The batch size must be at least 1, got {self.batch_size}.")


def evaluate(
    source: AnyModel | str | Path | tuple[Embeddings, Embeddings],
    table: PlaceImages | str | Path,
    choices: Choices = Choices(),  # frozen
    machine: Machine = Machine(),
    *,
    name: str = "",
) -> EvaluationResult:
    """Evaluate retrieval and uncertainty scores on one table.

    Args:
        source: A model, its name or folder; or the embeddings of the table's queries and of its references.
        table: Images with positions and their roles, or the file of such a table.
        choices: Scores, number of matches per query, handling of queries without positives, bootstrap.
        machine: Cache, device and batch size for embedding; no effect on the result.
        name: Name of the evaluation. Default: name of the table.

    Returns:
        Scores of all queries and matches, and every metric. `write_result` saves it, `compare` tests several.

    Raises:
        KappaPlaceError: If the model or the table cannot be read, if the table has too few images, or if
            embeddings and table differ in length.
    """
    images = table if isinstance(table, PlaceImages) else PlaceImages.open(table, machine.root)
    if isinstance(source, tuple):
        retrieved = from_descriptors(*source, None, images, k=choices.k, device=machine.device)
    else:
        model = load_model(source) if isinstance(source, str | Path) else source
        retrieved = from_table(images, _Embedder(model, machine, "model").cache(images), choices.k)
    return evaluate_sets(name or retrieved.name, [_told(retrieved)], choices)


def evaluate_model(
    source: str,
    tables: Sequence[Path],
    choices: Choices,
    machine: Machine = Machine(),  # frozen
    *,
    name: str = "",
    validation: Path | None = None,
    own: Sequence[Path] = (),
    resize: Resize = "model",
) -> EvaluationResult:
    """A model on tables; ``validation`` is the table on which scores are calibrated and fused."""
    if not tables:
        raise KappaPlaceError("A model is evaluated on tables: kappaplace evaluate MODEL TABLE… --out DIR.")
    named = named_tables(tables, machine.root)
    fitting = None if validation is None else PlaceImages.open(validation, machine.root)
    if fitting is not None and any(fitting.content_hash == each.hash for each in named):
        raise KappaPlaceError(f"{validation} is evaluated, too: fit on a table of other places.")
    if fitting is None and choices.fuse:
        raise KappaPlaceError("A combination must be fitted on other queries: give --fit-on TABLE.")
    embedder = _Embedder(load_model(source), machine, resize)
    fitted: Fitted | None = None
    facts = {"model": source, "fingerprint": embedder.fingerprint, "resize": resize}
    if fitting is not None:
        fitted = fit_on(from_table(fitting, embedder.cache(fitting), choices.k), choices)
        facts |= {"fitted on": fitting.name, "fitted on hash": fitting.content_hash}

    def sets() -> Iterator[Retrieved]:
        for each in named:
            table = PlaceImages.open(each.path, machine.root)
            yield from_table(table, embedder.cache(table), choices.k, each.name)

    return evaluate_sets(name or Path(source).name, sets(), choices, fitted=fitted, own=own, facts=facts)


class _Embedder:
    """A model whose weights are hashed once for all tables."""

    def __init__(self, model: AnyModel, machine: Machine, resize: Resize) -> None:
        self.model, self.machine, self.resize = model, machine, resize
        self.fingerprint = model.fingerprint

    def cache(self, table: PlaceImages) -> EmbeddingStore:
        return EmbeddingStore.of(
            self.model,
            self.machine.cache,
            preprocessing_for(self.model, table, self.resize),
            batch_size=self.machine.batch_size,
            device=self.machine.device,
            fingerprint=self.fingerprint,
        )


class NamedTable(NamedTuple):
    """A table to be opened when its turn comes: several maps of millions need not be in memory together."""

    name: str
    path: Path
    hash: str


def named_tables(paths: Sequence[Path], root: Path | None = None) -> list[NamedTable]:
    """Tables with a name each: their own, or that of the file where two share one."""
    found = []
    for path in paths:
        table = PlaceImages.open(path, root)
        found.append(NamedTable(table.name or path.stem, path, table.content_hash))
    if len({each.name for each in found}) < len(found):
        found = [each._replace(name=each.path.stem) for each in found]
    return found


def evaluate_matrices(
    files: Sequence[Path],
    positives: Sequence[Path],
    tables: Sequence[Path],
    choices: Choices,
    *,
    method: str = "",
    name: str = "",
    neighborhood: str = "",
    own: Sequence[Path] = (),
    root: Path | None = None,
) -> Iterator[EvaluationResult]:
    """Similarity matrices, one file a set; one evaluation for each method that all files hold."""
    _check_counts(files, positives, tables)
    opened: list[PlaceImages | None] = [PlaceImages.open(path, root) for path in tables] or [None] * len(
        files
    )
    near = Neighborhood.parse(neighborhood) if neighborhood else None
    matrices = [read_similarities(file, method) for file in files]
    if all(len(each) == 1 for each in matrices):  # one matrix a file, whatever it is called in each
        title = name or next(iter(matrices[0]))
        matrices = [dict(zip([title], each.values(), strict=True)) for each in matrices]
    methods = [each for each in matrices[0] if all(each in other for other in matrices)]
    if not methods:
        raise KappaPlaceError(f"{files[0]} and the other files have no method in common; give --method NAME.")
    for each in methods:

        def sets(each: str = each) -> Iterator[Retrieved]:
            for i, file in enumerate(files):
                matrix = matrices[i][each]
                right = read_positives(positives[i], matrix.shape[1]) if positives else None
                yield _told(
                    from_similarities(
                        matrix, right, opened[i], k=choices.k, name=file.stem, neighborhood=near
                    )
                )

        yield evaluate_sets(each, sets(), choices, own=own, facts={"similarities": [f.name for f in files]})


def evaluate_descriptors(
    descriptors: tuple[Path, Path],
    kappa: tuple[Path, Path] | None,
    positives: Sequence[Path],
    tables: Sequence[Path],
    choices: Choices,
    *,
    name: str = "",
    neighborhood: str = "",
    own: Sequence[Path] = (),
    root: Path | None = None,
    device: str | None = None,
) -> EvaluationResult:
    """Descriptors of queries and references, with or without their κ."""
    _check_counts(descriptors[:1], positives, tables)
    files = kappa or (None, None)
    query, reference = (read_embeddings(d, c) for d, c in zip(descriptors, files, strict=True))
    right = read_positives(positives[0], len(reference.descriptor)) if positives else None
    table = PlaceImages.open(tables[0], root) if tables else None
    near = Neighborhood.parse(neighborhood) if neighborhood else None
    title = name or descriptors[0].stem
    retrieved = from_descriptors(
        query,
        reference,
        right,
        table,
        k=choices.k,
        name=(table.name if table is not None else "") or title,
        neighborhood=near,
        device=device,
    )
    facts = {"descriptors": [file.name for file in descriptors]}
    return evaluate_sets(title, [_told(retrieved)], choices, own=own, facts=facts)


def _check_counts(files: Sequence[Path], positives: Sequence[Path], tables: Sequence[Path]) -> None:
    for what, given in (("positives files", positives), ("tables", tables)):
        if given and len(given) != len(files):
            raise KappaPlaceError(
                f"There are {len(files)} sets but {len(given)} {what}; give one for each set, in order."
            )
    if not positives and not tables:
        raise KappaPlaceError("Which references are right is not known: give --positives FILE or a table.")


def _told(retrieved: Retrieved) -> Retrieved:
    """With a hash of the right answers, by which two evaluations know that they share their queries."""
    if "hash" in retrieved.facts:
        return retrieved
    return replace(retrieved, facts=retrieved.facts | {"hash": _positives_hash(retrieved.positives)})


def _positives_hash(positives: Positives) -> str:
    import hashlib

    digest = hashlib.sha256(f"kappaplace positives 1|{positives.references}|".encode())
    digest.update(positives.indptr.astype("<i8").tobytes())
    digest.update(np.asarray(positives.indices).astype("<i4").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """One score, judged."""

    score: Score
    uncertainty: Scores
    """Per query, N."""
    curves: dict[int, ReliabilityCurve]
    """Reliability at each K."""
    auroc: float
    """Of success at K = 1."""

    @property
    def ece(self) -> dict[int, float]:
        """ECE@K in the paper's protocol."""
        return {k: curve.error for k, curve in self.curves.items()}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Recall of a retrieval and the quality of every score on it."""

    hits: NDArray[np.bool_]
    """Whether each match is a positive, N×K."""
    recall: dict[int, float]
    scores: tuple[ScoreResult, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "queries": len(self.hits),
            "recall": {f"R@{k}": value for k, value in self.recall.items()},
            "scores": {
                result.score.name: {
                    **{f"ECE@{k}": v for k, v in result.ece.items()},
                    # JSON has no NaN: None says that all queries were right, or all wrong.
                    "AUROC": None if math.isnan(result.auroc) else result.auroc,
                }
                for result in self.scores
            },
        }


def evaluate_scores(evidence: Evidence, hits: NDArray[np.bool_], scores: list[Score]) -> Evaluation:
    """Judge scores on one retrieval; ``hits`` says which matches are positives."""
    ks = [k for k in KS if k <= hits.shape[1]]
    success = {k: success_at(hits, k) for k in ks}
    results = []
    for score in scores:
        uncertainty = score.query(evidence)
        clamp = UPPER_TAIL if score.one_sided else BOTH_TAILS
        curves = {k: reliability_curve(uncertainty, success[k], clamp) for k in ks}
        results.append(ScoreResult(score, uncertainty, curves, auroc(uncertainty, success[1])))
    return Evaluation(hits, {k: recall_at(hits, k) for k in ks}, tuple(results))
