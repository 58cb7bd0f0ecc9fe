"""Files that a researcher brings instead of a model: similarities, descriptors, κ, positives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.positives import Positives
from kappaplace.data.unreadable import telling
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Embeddings


def read_similarities(file: Path, method: str = "") -> dict[str, NDArray[np.floating]]:
    """Matrices by name: a .npy file holds one, named as the file; an .npz file one for each method.

    ``method`` picks one of them.
    """
    arrays = _arrays(file, method)
    matrices = {name: array for name, array in arrays.items() if array.ndim == 2 and array.dtype.kind == "f"}
    if not matrices:
        shapes = ", ".join(f"{name} {array.shape} of {array.dtype}" for name, array in arrays.items())
        raise KappaPlaceError(
            f"{file} holds no matrix of floating-point similarities, queries × references: {shapes}."
        )
    if not method:
        return matrices
    if method not in matrices:
        raise KappaPlaceError(f"{file} holds no method {method!r}; it has {', '.join(matrices)}.")
    return {method: matrices[method]}


def read_positives(file: Path, references: int) -> Positives:
    """Positives of each query, references counted from 0.

    JSON: a list of lists, or an object with such a list as "positives". NumPy: a boolean matrix N×R, or
    (.npz) the arrays "indptr" and "indices" of compressed rows.
    """
    if file.suffix.lower() == ".json":
        return _from_json(file, references)
    arrays = _arrays(file)
    if {"indptr", "indices"} <= set(arrays):
        return Positives(arrays["indptr"], arrays["indices"], references)
    matrix = arrays.get("positives", next(iter(arrays.values())))
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or matrix.shape[1] != references:
        raise KappaPlaceError(
            f"{file} must hold a boolean matrix of queries × {references:,} references, or indptr and "
            f"indices; it has {matrix.shape} of {matrix.dtype}."
        )
    query, reference = np.nonzero(matrix)
    counts = np.bincount(query, minlength=len(matrix))
    return Positives(np.concatenate([[0], np.cumsum(counts)]), reference.astype(np.int32), references)


def read_embeddings(descriptors: Path, kappa: Path | None = None) -> Embeddings:
    """Descriptors N×d (memory-mapped .npy) and, if given, κ of shape N."""
    values = _one_array(descriptors)
    if values.ndim != 2 or values.dtype.kind != "f":
        raise KappaPlaceError(
            f"{descriptors} must hold descriptors N×d as floats, it has {values.shape} of {values.dtype}."
        )
    if kappa is None:
        return Embeddings(values)
    concentration = np.asarray(_one_array(kappa), np.float64).squeeze()
    if concentration.shape != (len(values),):
        raise KappaPlaceError(
            f"{kappa} must hold one κ for each of {len(values):,} descriptors, it has {concentration.shape}."
        )
    if not (np.isfinite(concentration).all() and (concentration > 0).all()):
        raise KappaPlaceError(f"{kappa} holds κ that is not finite and above 0; check the model.")
    return Embeddings(values, concentration)


def _from_json(file: Path, references: int) -> Positives:
    with telling(f"{file} cannot be read as JSON"):
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, Mapping):
        content = content.get("positives")
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        raise KappaPlaceError(
            f"{file} must be a list with one list of reference numbers a query, or an object with such a "
            'list as "positives".'
        )
    if not all(isinstance(i, int) and not isinstance(i, bool) for row in content for i in row):
        raise KappaPlaceError(f"{file}: positives are whole numbers, references counted from 0.")
    with telling(f"{file} holds numbers that are no references"):
        return Positives.from_lists(content, references)


def _one_array(file: Path) -> NDArray[Any]:
    arrays = _arrays(file)
    if len(arrays) != 1:
        raise KappaPlaceError(f"{file} holds {len(arrays)} arrays ({', '.join(arrays)}); give one alone.")
    return next(iter(arrays.values()))


def _arrays(file: Path, only: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a NumPy file by name, or one of them; .npy is mapped, not read."""
    if not file.is_file():
        raise KappaPlaceError(f"There is no file {file}; check the path.")
    if file.suffix.lower() not in (".npy", ".npz"):
        raise KappaPlaceError(f"{file} is neither .npy nor .npz: save the array with NumPy.")
    with telling(f"{file} cannot be read as a NumPy file"):
        if file.suffix.lower() == ".npy":
            return {file.stem: _array(np.load(file, mmap_mode="c", allow_pickle=False))}
        with np.load(file, allow_pickle=False) as stored:
            names = [only] if only in stored.files else stored.files
            return {name: _array(stored[name]) for name in names}


def _array(found: Any) -> NDArray[Any]:
    if not isinstance(found, np.ndarray):  # a zip file of other things, or one called .npy
        raise ValueError("it holds something that is no array")
    return found
