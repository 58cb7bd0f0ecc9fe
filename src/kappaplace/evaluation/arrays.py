"""Evaluation of similarity matrices and descriptors from files, and the files of their positives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Neighborhood
from kappaplace.data.positives import Positives
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import NO_LABELS, Retrieved, from_descriptors, from_similarities
from kappaplace.evaluation.results import EvaluationResult
from kappaplace.evaluation.run import Choices, evaluate_sets
from kappaplace.files import telling
from kappaplace.types import Embeddings, Json

Array = NDArray[Any]
"""Array from a file, with values of any type."""


@dataclass(frozen=True)
class Labels:
    """Files that define which references are correct, for descriptors or similarities from files."""

    positives: Sequence[Path] = ()
    """Files with the correct references of each query, one per dataset."""
    tables: Sequence[Path] = ()
    """Tables, one per dataset, which provide positives, positions and images."""
    neighborhood: str = ""
    """Neighborhood of references that show the same place, without a table: "frames:5" or "self"."""
    root: Path | None = None
    """Folder of the images. Default: the folder stored in each table."""

    def check(self, count: int) -> None:
        """Fail unless there are labels for this many datasets."""
        for name, files in (("positives files", self.positives), ("tables", self.tables)):
            if files and len(files) != count:
                raise KappaPlaceError(
                    f"There are {count} datasets but {len(files)} {name}. Pass one per dataset, in the same "
                    "order."
                )
        if not self.positives and not self.tables:
            raise KappaPlaceError(NO_LABELS)

    def positives_of(self, number: int, references: int) -> Positives | None:
        """Return the positives of one dataset; None if they come from its table."""
        return read_positives(self.positives[number], references) if self.positives else None

    def table_of(self, number: int) -> PlaceImages | None:
        """Return the table of one dataset; None if there is none."""
        return PlaceImages.open(self.tables[number], self.root) if self.tables else None

    @property
    def near(self) -> Neighborhood | None:
        """Neighborhood, parsed from the option."""
        return Neighborhood.parse(self.neighborhood) if self.neighborhood else None


def evaluate_matrices(
    files: Sequence[Path],
    labels: Labels,
    choices: Choices,
    *,
    method: str = "",
    name: str = "",
    own: Sequence[Path] = (),
) -> Iterator[EvaluationResult]:
    """Evaluate similarity matrices, one file per dataset.

    Args:
        files: Files with cosine similarities of queries × references.
        labels: Which references are correct.
        choices: Options.
        method: Name of the matrix to evaluate. Default: every matrix that all files contain.
        name: Name of the evaluation, if each file has a single matrix. Default: the name of the matrix.
        own: CSV files with the user's own scores.

    Yields:
        One evaluation per method.

    Raises:
        KappaPlaceError: If the files have no method in common, or do not match the labels.
    """
    labels.check(len(files))
    tables = [labels.table_of(number) for number in range(len(files))]
    matrices = [read_similarities(file, method) for file in files]
    if all(len(each) == 1 for each in matrices):  # a single matrix per file, whose name does not matter
        title = name or next(iter(matrices[0]))
        matrices = [dict(zip([title], each.values(), strict=True)) for each in matrices]
    methods = [each for each in matrices[0] if all(each in other for other in matrices)]
    if not methods:
        raise KappaPlaceError(
            f"{files[0]} and the other files have no method in common. Pass files with the same methods."
        )

    def retrieve(number: int, matrix: NDArray[np.floating]) -> Retrieved:
        positives = labels.positives_of(number, matrix.shape[1])
        return _with_hash(
            from_similarities(
                matrix,
                positives,
                tables[number],
                k=choices.k,
                name=files[number].stem,
                neighborhood=labels.near,
            )
        )

    for each in methods:
        sets = (retrieve(number, arrays[each]) for number, arrays in enumerate(matrices))
        yield evaluate_sets(each, sets, choices, own=own, facts={"similarities": [f.name for f in files]})


def evaluate_descriptors(
    descriptors: tuple[Path, Path],
    kappa: tuple[Path, Path] | None,
    labels: Labels,
    choices: Choices,
    *,
    name: str = "",
    own: Sequence[Path] = (),
    device: str | None = None,
) -> EvaluationResult:
    """Evaluate stored descriptors.

    Args:
        descriptors: Files of the descriptors of queries and references.
        kappa: Files of their κ, if the model has it.
        labels: Which references are correct.
        choices: Options.
        name: Name of the evaluation. Default: the name of the first file.
        own: CSV files with the user's own scores.
        device: Device of the search. Default: the CPU.

    Returns:
        Scores and metrics.

    Raises:
        KappaPlaceError: If the files do not match each other or the labels.
    """
    labels.check(1)
    query, reference = (
        read_embeddings(*files) for files in zip(descriptors, kappa or (None, None), strict=True)
    )
    table = labels.table_of(0)
    title = name or descriptors[0].stem
    retrieved = from_descriptors(
        query,
        reference,
        labels.positives_of(0, len(reference.descriptor)),
        table,
        k=choices.k,
        name=(table.name if table is not None else "") or title,
        neighborhood=labels.near,
        device=device,
    )
    facts: dict[str, Json] = {"descriptors": [file.name for file in descriptors]}
    return evaluate_sets(title, [_with_hash(retrieved)], choices, own=own, facts=facts)


def _with_hash(retrieved: Retrieved) -> Retrieved:
    """Add a hash of the positives, by which evaluations with the same queries are detected."""
    if "hash" in retrieved.facts:
        return retrieved
    positives = retrieved.positives
    digest = hashlib.sha256(f"kappaplace positives 1|{positives.references}|".encode())
    digest.update(positives.indptr.astype("<i8").tobytes())
    digest.update(np.asarray(positives.indices).astype("<i4").tobytes())
    return replace(retrieved, facts=retrieved.facts | {"hash": digest.hexdigest()})


def read_similarities(file: Path, method: str = "") -> dict[str, NDArray[np.floating]]:
    """Read similarity matrices by name. A .npy file has one, an .npz file has one per method.

    Args:
        file: File to read. The matrix of a .npy file is named after the file.
        method: Name of the matrix to read. Default: all.

    Returns:
        Matrices of queries × references by name.

    Raises:
        KappaPlaceError: If the file cannot be read, or does not have the matrix.
    """
    arrays = _arrays(file, method)
    matrices = {name: array for name, array in arrays.items() if array.ndim == 2 and array.dtype.kind == "f"}
    if not matrices:
        raise KappaPlaceError(
            f"{file} must contain a matrix of floating-point similarities, queries × references, got "
            f"{_shapes(arrays)}."
        )
    if not method:
        return matrices
    if method not in matrices:
        raise KappaPlaceError(
            f"{file} does not contain the method '{method}'. Choose from: {', '.join(matrices)}."
        )
    return {method: matrices[method]}


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape} of {array.dtype}" for name, array in arrays.items())


def read_positives(file: Path, references: int) -> Positives:
    """Read the correct references of each query, as numbers from 0.

    Args:
        file: JSON or NumPy file. JSON has a list of lists, or an object with such a list as "positives".
            NumPy has a boolean matrix N×R, or the arrays "indptr" and "indices" of compressed rows.
        references: Number of references (R).

    Returns:
        The correct references of each query.

    Raises:
        KappaPlaceError: If the file cannot be read, or does not match the number of references.
    """
    if file.suffix.lower() == ".json":
        return _from_json(file, references)
    arrays = _arrays(file)
    if {"indptr", "indices"} <= set(arrays):
        return Positives(arrays["indptr"], arrays["indices"], references)
    matrix = arrays.get("positives", next(iter(arrays.values())))
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or matrix.shape[1] != references:
        raise KappaPlaceError(
            f"{file} must contain a boolean matrix of queries × {references:,} references, or indptr and "
            f"indices, got {matrix.shape} of {matrix.dtype}."
        )
    query, reference = np.nonzero(matrix)
    counts = np.bincount(query, minlength=len(matrix))
    return Positives(np.concatenate([[0], np.cumsum(counts)]), reference.astype(np.int32), references)


def read_embeddings(descriptors: Path, kappa: Path | None = None) -> Embeddings:
    """Read descriptors N×d, memory-mapped from a .npy file, and optionally κ of shape N.

    Args:
        descriptors: File of the descriptors.
        kappa: File of κ.

    Returns:
        Descriptors, with κ if it has a file.

    Raises:
        KappaPlaceError: If a file cannot be read, or has another shape or type.
    """
    values = _one_array(descriptors)
    if values.ndim != 2 or values.dtype.kind != "f":
        raise KappaPlaceError(
            f"{descriptors} must contain descriptors N×d as floats, got {values.shape} of {values.dtype}."
        )
    if kappa is None:
        return Embeddings(values)
    concentration = np.asarray(_one_array(kappa), np.float64).squeeze()
    if concentration.shape != (len(values),):
        raise KappaPlaceError(
            f"{kappa} must contain one κ for each of {len(values):,} descriptors, got {concentration.shape}."
        )
    if not (np.isfinite(concentration).all() and (concentration > 0).all()):
        raise KappaPlaceError(f"{kappa} has values of κ that are not finite or not above 0. Check the model.")
    return Embeddings(values, concentration)


def _from_json(file: Path, references: int) -> Positives:
    with telling(f"{file} cannot be read as JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, Mapping):
        content = content.get("positives")
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        raise KappaPlaceError(
            f"{file} must be a list with one list of reference numbers per query, or an object with such a "
            'list as "positives".'
        )
    if not all(isinstance(i, int) and not isinstance(i, bool) for row in content for i in row):
        raise KappaPlaceError(f"{file}: positives must be row numbers of references, starting at 0.")
    with telling(f"{file} contains numbers that are not references"):
        return Positives.from_lists(content, references)


def _one_array(file: Path) -> Array:
    arrays = _arrays(file)
    if len(arrays) != 1:
        raise KappaPlaceError(
            f"{file} must contain one array, got {len(arrays)} ({', '.join(arrays)}). Save one per file."
        )
    return next(iter(arrays.values()))


def _arrays(file: Path, only: str = "") -> dict[str, Array]:
    """Return the arrays of a NumPy file by name, or only one of them. A .npy file is memory-mapped."""
    if not file.is_file():
        raise KappaPlaceError(f"There is no file {file}. Check the path.")
    if file.suffix.lower() not in (".npy", ".npz"):
        raise KappaPlaceError(f"{file} is neither .npy nor .npz. Save the array with NumPy.")
    with telling(f"{file} cannot be read as a NumPy file"):
        if file.suffix.lower() == ".npy":
            return _checked({file.stem: np.load(file, mmap_mode="c", allow_pickle=False)})
        with np.load(file, allow_pickle=False) as stored:
            names = [only] if only in stored.files else stored.files
            return _checked({name: stored[name] for name in names})


def _checked(arrays: dict[str, Array]) -> dict[str, Array]:
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):  # a zip file with other content
        raise ValueError("it contains something that is not an array")
    return arrays
