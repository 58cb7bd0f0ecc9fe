"""How good a model is on places kept for validation: recall, and the quality of its uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

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
from kappaplace.models.checkpoint import TrainableModel
from kappaplace.models.heads import Head
from kappaplace.models.network import with_spread
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.retrieval.retrieve import retrieve
from kappaplace.training.features import frozen_features
from kappaplace.training.images import Images, ImageSource
from kappaplace.types import Embeddings
from kappaplace.uncertainty import score_named

Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """Queries and references with known positives."""

    images: Images
    query_rows: NDArray[np.int64]
    reference_rows: NDArray[np.int64]
    positives: Positives

    @classmethod
    def from_table(cls, table: PlaceImages) -> ValidationSet:
        """A table's queries against its references."""
        if not len(table.query_rows) or not len(table.reference_rows):
            raise KappaPlaceError(f"The validation table {table!r} needs both queries and references.")
        return cls(table.image_paths(), table.query_rows, table.reference_rows, table.positives())


@dataclass
class Validator:
    """Measures a model on a validation set; with a frozen encoder everything but the head is kept."""

    data: ValidationSet
    score: str = ""
    binning: str = "clamp"
    frozen: bool = False
    batch_size: int = 32
    workers: int | None = None
    rank: int = 0
    processes: int = 1
    _kept: tuple[Evidence, Tensor, Tensor] | None = field(default=None, repr=False)

    def __call__(
        self,
        model: TrainableModel,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager],
        gather: Gather,
    ) -> dict[str, float]:
        """Metrics of the model as it is now; the model returns to its mode."""
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                if self.frozen:
                    evidence = self._from_kept(model, device, autocast, gather)
                else:
                    everything = self._embed(model, device, autocast, gather, model)
                    evidence = self._retrieve(Embeddings(*everything), device)
        finally:
            model.train(was_training)
        return self.measure(evidence)

    def measure(self, evidence: Evidence) -> dict[str, float]:
        """R@K, and where the model says how sure it is, ECE@1 and AUROC of its score."""
        hits = self.data.positives.hits(evidence.matches.indices)
        values = {f"R@{k}": recall_at(hits, k) for k in KS if k <= hits.shape[1]}
        embeddings = evidence.queries.embeddings
        assert embeddings is not None
        if embeddings.kappa is None and embeddings.variance is None and not self.score:
            return values
        name = self.score or ("variance" if embeddings.kappa is None else "kappaplace")
        score = score_named(name)
        uncertainty, success = score.query(evidence), success_at(hits, 1)
        values["ECE@1"] = self._ece(uncertainty, success, score.one_sided)
        values["AUROC"] = auroc(uncertainty, success)
        return values

    def _ece(self, uncertainty: Any, success: Any, one_sided: bool) -> float:
        clamp = (None, None) if self.binning == "zoom" else UPPER_TAIL if one_sided else BOTH_TAILS
        return expected_calibration_error(uncertainty, success, clamp, zoom=self.binning == "zoom")

    def _embed(
        self,
        model: TrainableModel,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager],
        gather: Gather,
        compute: Callable[[Tensor], Any],
    ) -> list[Tensor | None]:
        """Outputs for all images, each process computing its share: columns of tensors on the CPU."""
        preprocessing = model.preprocessing
        source = ImageSource(self.data.images, preprocessing, device, self.workers)
        rows = np.concatenate([self.data.query_rows, self.data.reference_rows])
        share = -(-len(rows) // self.processes)
        # Equal shares, the last ones filled up from the start: gathering needs equal sizes.
        mine = np.resize(rows, share * self.processes)[self.rank * share : (self.rank + 1) * share]
        parts: list[Any] = []
        for _, images in source.batches(mine, self.batch_size):
            with autocast():
                parts.append(compute(preprocessing.normalise(images)))
        columns = []
        for column in zip(*parts, strict=True):
            whole = None if column[0] is None else gather(torch.cat(column).float())[: len(rows)].cpu()
            columns.append(whole)
        return columns

    def _split(self, embeddings: Embeddings) -> tuple[Embeddings, Embeddings]:
        arrays = Embeddings(*(None if x is None else x.numpy() for x in embeddings))
        queries = len(self.data.query_rows)
        return arrays.take(slice(None, queries)), arrays.take(slice(queries, None))

    def _retrieve(self, embeddings: Embeddings, device: torch.device) -> Evidence:
        query, reference = self._split(embeddings)
        references = ArrayReferences(reference, device=str(device))
        return retrieve(Queries(query), references, min(max(KS), len(references)))

    def _from_kept(
        self,
        model: TrainableModel,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager],
        gather: Gather,
    ) -> Evidence:
        if self._kept is None:
            columns = self._embed(
                model, device, autocast, gather, lambda images: frozen_features(model, images)
            )
            reduced, descriptor = columns
            assert reduced is not None
            assert descriptor is not None
            self._kept = self._retrieve(Embeddings(descriptor), device), reduced.to(device), descriptor
        evidence, reduced, descriptor = self._kept
        assert isinstance(model.head, Head)
        spread = model.head.from_reduced(reduced).cpu()
        query, reference = self._split(with_spread(descriptor, model.head, spread))
        return replace(evidence, queries=Queries(query), references=ArrayReferences(reference))
