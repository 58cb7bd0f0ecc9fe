"""What can be asked for on the command line, each as one function: from files to an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kappaplace.data.near import Neighbourhood
from kappaplace.data.place_images import PlaceImages
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.fitting import Fitted
from kappaplace.evaluation.inputs import read_embeddings, read_positives, read_similarities
from kappaplace.evaluation.results import EvaluationResult
from kappaplace.evaluation.run import Choices, Resize, evaluate_sets, fit_on, preprocessing_for
from kappaplace.evaluation.sources import Retrieved, from_descriptors, from_similarities, from_table
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.encoder import model_fingerprint
from kappaplace.models.loading import AnyModel, load_model


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
        self.fingerprint = model_fingerprint(model)

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
    neighbourhood: str = "",
    own: Sequence[Path] = (),
    root: Path | None = None,
) -> Iterator[EvaluationResult]:
    """Similarity matrices, one file a set; one evaluation for each method that all files hold."""
    _check_counts(files, positives, tables)
    opened: list[PlaceImages | None] = [PlaceImages.open(path, root) for path in tables] or [None] * len(
        files
    )
    near = Neighbourhood.parse(neighbourhood) if neighbourhood else None
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
                        matrix, right, opened[i], k=choices.k, name=file.stem, neighbourhood=near
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
    neighbourhood: str = "",
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
    near = Neighbourhood.parse(neighbourhood) if neighbourhood else None
    title = name or descriptors[0].stem
    retrieved = from_descriptors(
        query,
        reference,
        right,
        table,
        k=choices.k,
        name=(table.name if table is not None else "") or title,
        neighbourhood=near,
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
