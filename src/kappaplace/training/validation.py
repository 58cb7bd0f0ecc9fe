"""Validation during training: recall and uncertainty on held-out places, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.metrics.calibration import BOTH_TAILS, UPPER_TAIL, expected_calibration_error
from kappaplace.metrics.retrieval import KS, recall_at, success_at
from kappaplace.metrics.selective import auroc
from kappaplace.metrics.summary import TIED, mean_cosine, tied_fraction
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.heads import Head
from kappaplace.models.network import with_spread
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.training.features import Autocast, frozen_features
from kappaplace.training.images import Images, ImageSource
from kappaplace.types import Embeddings, Json
from kappaplace.uncertainty import score_named
from kappaplace.uncertainty.base import Scores as Floats

Gather = Callable[[Tensor], Tensor]
Values = dict[str, float]
CPU = torch.device("cpu")
HIGHER_IS_BETTER = {"R@1": True, "ECE@1": False, "AUROC": True}
_STATE = ("phase", "best", "waited", "stopped", "best_epoch", "best_value", "model_epoch")

COINCIDENT = 0.995
"""Mean cosine of different references, from which descriptors count as equal."""


def flawed(values: Values) -> bool:
    """Return whether ECE@1 is meaningless, because at least half of the queries have the same score."""
    return values.get("tied", 0.0) >= TIED


def watched(values: Values) -> Values:
    """Return the metrics for early stopping, in which the ECE@1 of a flawed score is undefined."""
    return {**values, "ECE@1": math.nan} if flawed(values) else values


def warnings_of(values: Values) -> list[str]:
    """Return warnings about a model.

    Args:
        values: Validation metrics of `Validator`.

    Returns:
        Warnings about the score, κ and the descriptors.
    """
    warnings = []
    if flawed(values):
        same = "every query has" if values["tied"] == 1 else f"{values['tied']:.0%} of the queries have"
        warnings.append(f"The score is not usable, because {same} the same value. Its ECE@1 is meaningless.")
    if "kappa 95%" in values:
        low, high = values["kappa 5%"], values["kappa 95%"]
        if high <= 1:
            warnings.append(
                f"κ is {low:.2f} to {high:.2f} for 90% of the queries, so 1/κ is floored at κ = 1. Train "
                "longer, or with a higher optimizer.head_lr."
            )
        elif high < 1.01 * low:
            warnings.append(
                f"κ is nearly constant, {low:.4g} to {high:.4g} for 90% of the queries. Train longer, with a "
                "higher optimizer.head_lr, or with degraded views (augment.damage)."
            )
    if values.get("mean cosine", 0.0) >= COINCIDENT:
        warnings.append(
            "The descriptors coincide (the mean cosine of different references is "
            f"{values['mean cosine']:.3f}). Lower optimizer.lr or train the encoder longer."
        )
    return warnings


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """Queries and references, and which references are correct."""

    images: Images
    """Paths or other sources, or uint8 N×3×H×W in memory."""
    query_rows: NDArray[np.int64]
    """Rows of the queries among the images."""
    reference_rows: NDArray[np.int64]
    """Rows of the references among the images."""
    positives: Positives
    """The correct references of each query."""

    @classmethod
    def from_table(cls, table: PlaceImages) -> ValidationSet:
        """Return the queries and references of a table."""
        if not len(table.query_rows) or not len(table.reference_rows):
            raise KappaPlaceError(
                f"The validation table {table!r} must have queries and references. Pass a table with both "
                "roles."
            )
        return cls(table.image_paths(), table.query_rows, table.reference_rows, table.positives())


@dataclass
class Validator:
    """Measures a model on a validation set. If the encoder is frozen, only the head is computed again."""

    data: ValidationSet
    """Queries and references."""
    score: str = ""
    """Score to measure. Empty for kappaplace with a κ head and variance with other heads."""
    binning: str = "clamp"
    """Range of the bins of ECE@1: clamp or zoom."""
    frozen: bool = False
    """Whether the encoder is frozen."""
    batch_size: int = 32
    """Images per batch."""
    workers: int | None = None
    """Number of threads that decode images. Default: one per core."""
    device: torch.device = CPU
    """Device of the model."""
    autocast: Autocast = nullcontext
    """Function that returns a context that sets the precision."""
    gather: Gather = lambda part: part
    """Function that concatenates the parts of all processes."""
    rank: int = 0
    """Number of this process, from 0."""
    processes: int = 1
    """Number of processes."""
    _frozen: tuple[Evidence, Tensor, Tensor] | None = field(default=None, repr=False)

    def __call__(self, model: TrainableModel) -> Values:
        """Measure a model, and leave it in the same mode.

        Args:
            model: The model.

        Returns:
            Values by the name of the metric.
        """
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                if self.frozen:
                    evidence = self._with_head(model)
                else:
                    evidence = self._retrieve(Embeddings(*self._embed(model, model)))
        finally:
            model.train(was_training)
        return self.measure(evidence)

    def measure(self, evidence: Evidence) -> Values:
        """Return R@K, and if the model has an uncertainty also ECE@1 and AUROC of the score."""
        hits = self.data.positives.hits(evidence.matches.indices)
        values = {f"R@{k}": recall_at(hits, k) for k in KS if k <= hits.shape[1]}
        descriptors = evidence.references.descriptors
        if descriptors is not None:
            values["mean cosine"] = mean_cosine(np.asarray(descriptors[evidence.references.sample()]))
        embeddings = evidence.queries.embeddings
        assert embeddings is not None
        if embeddings.kappa is None and embeddings.variance is None and not self.score:
            return values
        name = self.score or ("variance" if embeddings.kappa is None else "kappaplace")
        score = score_named(name)
        uncertainty, success = score.query(evidence), success_at(hits, 1)
        values["ECE@1"] = self._ece(uncertainty, success, score.one_sided)
        values["AUROC"] = auroc(uncertainty, success)
        values["tied"] = tied_fraction(uncertainty)
        if embeddings.kappa is not None:
            low, high = np.percentile(embeddings.kappa, (5, 95))
            values |= {"kappa 5%": float(low), "kappa 95%": float(high)}
        return values

    def _ece(self, uncertainty: Floats, success: NDArray[np.bool_], one_sided: bool) -> float:
        clamp = (None, None) if self.binning == "zoom" else UPPER_TAIL if one_sided else BOTH_TAILS
        return expected_calibration_error(uncertainty, success, clamp, zoom=self.binning == "zoom")

    def _embed(
        self, model: TrainableModel, compute: Callable[[Tensor], Iterable[Tensor | None]]
    ) -> list[Tensor | None]:
        """Return the outputs for all images on the CPU. Each process computes a part of them."""
        preprocessing = model.preprocessing
        source = ImageSource(self.data.images, preprocessing, self.device, self.workers)
        rows = np.concatenate([self.data.query_rows, self.data.reference_rows])
        share = -(-len(rows) // self.processes)
        # Gathering needs parts of equal size, so the last ones are filled with the first rows.
        own = np.resize(rows, share * self.processes)[self.rank * share : (self.rank + 1) * share]
        parts = []
        for _, images in source.batches(own, self.batch_size):
            with self.autocast():
                parts.append(compute(preprocessing.normalize(images)))
        columns: list[Tensor | None] = []
        for column in zip(*parts, strict=True):
            tensors = [tensor for tensor in column if tensor is not None]
            columns.append(self.gather(torch.cat(tensors).float())[: len(rows)].cpu() if tensors else None)
        return columns

    def _split(self, embeddings: Embeddings) -> tuple[Embeddings, Embeddings]:
        arrays = Embeddings(*(None if x is None else x.numpy() for x in embeddings))
        queries = len(self.data.query_rows)
        return arrays.take(slice(None, queries)), arrays.take(slice(queries, None))

    def _retrieve(self, embeddings: Embeddings) -> Evidence:
        query, reference = self._split(embeddings)
        references = ArrayReferences(reference, device=str(self.device))
        return retrieve(Queries(query), references, min(max(KS), len(references)))

    def _with_head(self, model: TrainableModel) -> Evidence:
        if self._frozen is None:
            reduced, descriptor = self._embed(model, partial(frozen_features, model))
            assert reduced is not None
            assert descriptor is not None
            evidence = self._retrieve(Embeddings(descriptor))
            self._frozen = evidence, reduced.to(self.device), descriptor
        evidence, reduced, descriptor = self._frozen
        assert isinstance(model.head, Head)
        spread = model.head.from_reduced(reduced).cpu()
        query, reference = self._split(with_spread(descriptor, model.head, spread))
        return replace(evidence, queries=Queries(query), references=ArrayReferences(reference))


def better(metric: str, value: float, than: float | None, min_delta: float = 0.0) -> bool:
    """Return whether a value is better than another one; an undefined value is never better.

    Args:
        metric: Name of the metric.
        value: The new value.
        than: The best value so far; None if there is none.
        min_delta: Smallest difference that is an improvement.

    Returns:
        Whether the value is an improvement.
    """
    if value != value:
        return False
    if than is None or than != than:
        return True
    return value > than + min_delta if HIGHER_IS_BETTER[metric] else value < than - min_delta


@dataclass
class EarlyStopping:
    """Early stopping by several metrics in turn, each with its own patience.

    Joint training watches R@1 until its patience ends, and then ECE@1, starting from its current value.
    """

    metrics: tuple[str, ...]
    """Metrics to watch in turn."""
    patience: int
    """Number of epochs without an improvement, after which training stops. 0 to never stop."""
    min_delta: float = 0.0
    """Smallest difference that is an improvement."""
    phase: int = 0
    """Number of the metric that is watched."""
    best: float | None = None
    """Best value of the watched metric."""
    waited: int = 0
    """Epochs since the last improvement."""
    stopped: bool = False
    """Whether training stops after this epoch."""
    best_epoch: dict[str, int] = field(default_factory=dict)
    """Epoch of the best value of every metric, in all phases."""
    best_value: dict[str, float] = field(default_factory=dict)
    """Best value of every metric, in all phases."""
    model_epoch: int = 0
    """Epoch of the best model so far."""

    @property
    def metric(self) -> str:
        """Name of the metric that is watched now."""
        return self.metrics[self.phase]

    def update(self, epoch: int, values: dict[str, float]) -> list[str]:
        """Add the values of one epoch.

        Args:
            epoch: Number of the epoch; 0 is the model before the first step.
            values: Validation metrics.

        Returns:
            Names of the metrics that reached their best value, and "model" if the watched metric improved or
            has changed.
        """
        improved = []
        for metric in HIGHER_IS_BETTER:
            if metric in values and better(metric, values[metric], self.best_value.get(metric)):
                self.best_value[metric], self.best_epoch[metric] = values[metric], epoch
                improved.append(metric)
        if not self.metrics or self._watch(values):
            self.model_epoch = epoch
            improved.append("model")
        return improved

    def check(self, values: dict[str, float]) -> None:
        """Raise an error if a watched metric is missing, before any training."""
        for metric in self.metrics:
            if metric not in values:
                raise KappaPlaceError(
                    f"Early stopping watches {metric}, which this model does not have. Set stop.metrics."
                )

    def _watch(self, values: dict[str, float]) -> bool:
        self.check(values)
        if self.best is None or better(self.metric, values[self.metric], self.best, self.min_delta):
            self.best, self.waited = values[self.metric], 0
            return True
        self.waited += 1
        if not self.patience or self.waited < self.patience:
            return False
        if self.phase + 1 == len(self.metrics):
            self.stopped = True
            return False
        self.phase, self.waited = self.phase + 1, 0
        self.best = values.get(self.metric)
        return True

    def state_dict(self) -> dict[str, Json]:
        """Return the state to resume from."""
        return {key: getattr(self, key) for key in _STATE}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Restore the state that `state_dict` returned."""
        for key in _STATE:  # states of version 0.1.0 lack the last one
            setattr(self, key, state.get(key, 0))
