"""Everything that can be evaluated, brought to one form: what was retrieved, and what would be right.

Files that a researcher brings instead of a model: similarities, descriptors, κ, positives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.near import Near, Neighborhood
from kappaplace.data.positives import NoPositives, Positives
from kappaplace.data.protocols import PROTOCOLS, check_protocol
from kappaplace.data.table import ImageNames, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import matrix_shape
from kappaplace.retrieval.references import ArrayReferences, MatrixReferences, Queries
from kappaplace.retrieval.retrieve import retrieve
from kappaplace.types import Embeddings

ROWS = 1 << 16  # descriptors or similarities looked at together
UNIT = 1e-3  # lengths this close to 1 are rounding, of half precision at worst
ROUNDING = 1e-3  # a cosine may exceed 1 by this much


@dataclass(frozen=True, eq=False)
class Retrieved:
    """One set after retrieval, before any score."""

    name: str
    evidence: Evidence
    positives: Positives
    references: int
    table: PlaceImages | None = None
    neighborhood: Neighborhood | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def policy(self) -> NoPositives:
        """What the set's protocol does with queries without positives."""
        protocol = PROTOCOLS.get(self.table.protocol) if self.table is not None else None
        return NoPositives.FAIL if protocol is None else protocol.no_positives


def from_table(table: PlaceImages, cache: EmbeddingStore, k: int = 10, name: str = "") -> Retrieved:
    """Embed a table's images, or find them in the cache, and retrieve."""
    _check_table(table, k)
    query = cache.embed(_names(table, table.query_rows))
    reference = cache.embed(_names(table, table.reference_rows))
    facts = {"preprocessing": cache.preprocessing.to_dict(), **_protocol_facts(table)}
    context = _context(table, None) | {"patch_maps": cache.patch_maps, "device": cache.device or "cpu"}
    queries = Queries(query, _images(table, "query"), cache.patch_maps)
    found = _retrieved(queries, ArrayReferences(reference, **context), None, table, k, name)
    return replace(found, facts=found.facts | facts)


def from_descriptors(
    query: Embeddings,
    reference: Embeddings,
    positives: Positives | None,
    table: PlaceImages | None = None,
    *,
    k: int = 10,
    name: str = "",
    neighborhood: Neighborhood | None = None,
    device: str | None = None,
) -> Retrieved:
    """Retrieve with given descriptors; a table adds positives, positions, neighbourhood and images.

    Without a table ``neighbourhood`` may be in frames, or "self" where every reference is its own place.
    """
    query = query._replace(descriptor=unit_length(query.descriptor, "queries"))
    reference = reference._replace(descriptor=unit_length(reference.descriptor, "references"))
    references = ArrayReferences(reference, device=device or "cpu", **_context(table, neighborhood))
    queries = Queries(query, _images(table, "query"))
    return _retrieved(queries, references, positives, table, k, name, neighborhood)


def _retrieved(
    queries: Queries,
    references: ArrayReferences,
    positives: Positives | None,
    table: PlaceImages | None,
    k: int,
    name: str,
    neighborhood: Neighborhood | None = None,
) -> Retrieved:
    vectors, descriptors = queries.vectors, references.descriptors
    # Counted by what is searched, not by what the table adds; a mismatch is reported before the search.
    count = matrix_shape(vectors)[1] if descriptors is None else len(descriptors)
    known = _positives(positives, table, len(vectors), count)
    evidence = retrieve(queries, references, k)
    near = _near_of(table, neighborhood)
    return Retrieved(_name(name, table), evidence, known, known.references, table, near, _facts(table))


def from_similarities(
    matrix: NDArray[np.floating],
    positives: Positives | None,
    table: PlaceImages | None = None,
    *,
    k: int = 10,
    name: str = "",
    neighborhood: Neighborhood | None = None,
) -> Retrieved:
    """Retrieve from a matrix of cosines, N×R, without any model; the rest as in `from_descriptors`."""
    references = MatrixReferences(count=np.shape(matrix)[-1], **_context(table, neighborhood))
    queries = Queries(images=_images(table, "query"), similarities=matrix)
    found = _retrieved(queries, references, positives, table, k, name, neighborhood)
    _check_cosines(matrix)
    return found


def unit_length(descriptors: NDArray[np.floating], whose: str) -> NDArray[np.floating]:
    """The same array if all its rows have unit length, else a normalised copy."""
    if descriptors.ndim != 2:
        raise KappaPlaceError(f"Descriptors of the {whose} must be N×d, got the shape {descriptors.shape}.")
    lengths = np.empty(len(descriptors))
    for start in range(0, len(descriptors), ROWS):
        block = np.asarray(descriptors[start : start + ROWS], np.float32)
        lengths[start : start + ROWS] = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
    wrong = ~np.isfinite(lengths) | (lengths == 0)
    if wrong.any():
        raise KappaPlaceError(
            f"Row {int(np.argmax(wrong))} of the descriptors of the {whose} is NaN, infinite or zero; "
            "check how they were made."
        )
    if np.abs(lengths - 1).max(initial=0.0) <= UNIT:
        return descriptors
    scaled = np.empty(descriptors.shape, np.float32)
    for start in range(0, len(descriptors), ROWS):
        part = slice(start, start + ROWS)
        scaled[part] = descriptors[part] / lengths[part, None]
    return scaled


def _check_cosines(matrix: NDArray[np.floating]) -> None:
    step = max(1, ROWS * 1024 // max(1, matrix.shape[1]))
    low, high = np.inf, -np.inf
    for start in range(0, len(matrix), step):
        block = np.asarray(matrix[start : start + step])
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    if np.isnan(low + high):
        raise KappaPlaceError("Some similarities are NaN; check how the matrix was made.")
    if low < -1 - ROUNDING or high > 1 + ROUNDING:
        raise KappaPlaceError(
            f"Similarities must be cosines from −1 to 1, the matrix holds {low:g} to {high:g}; divide by the "
            "largest, or turn distances d of unit vectors into 1 − d²/2."
        )


def _positives(
    given: Positives | None, table: PlaceImages | None, queries: int, references: int
) -> Positives:
    if given is None and table is None:
        raise KappaPlaceError("Which references are right is not known: give --positives FILE or a table.")
    if given is None:
        assert table is not None
        given = table.positives()
    if (given.queries, given.references) != (queries, references):
        raise KappaPlaceError(
            f"There are {queries:,} queries and {references:,} references to evaluate but positives for "
            f"{given.queries:,} and {given.references:,}; both must come from the same set."
        )
    if table is not None and (len(table.query_rows), len(table.reference_rows)) != (queries, references):
        raise KappaPlaceError(
            f"There are {queries:,} queries and {references:,} references to evaluate but the table "
            f"{table.name or ''} holds {len(table.query_rows):,} and {len(table.reference_rows):,}."
        )
    return given


def _check_table(table: PlaceImages, k: int) -> None:
    """What would fail after hours of embedding fails before it."""
    if not len(table.query_rows) or not len(table.reference_rows):
        raise KappaPlaceError(
            f"The table {table.name or 'given'} has {len(table.query_rows):,} queries and "
            f"{len(table.reference_rows):,} references; an evaluation needs both."
        )
    if k > len(table.reference_rows):
        raise KappaPlaceError(
            f"Cannot retrieve {k} matches: there are {len(table.reference_rows)} references in {table.name}; "
            "choose k from 1 to that."
        )


def _near_of(table: PlaceImages | None, stated: Neighborhood | None) -> Neighborhood | None:
    if table is not None and stated is not None:
        raise KappaPlaceError(
            "The table says what is near: leave --neighborhood out, or import it with another."
        )
    if stated is not None and stated.kind == "metres":
        raise KappaPlaceError("A neighbourhood in metres needs positions: give a table, or frames:5 or self.")
    return stated if table is None else table.neighborhood


def _context(table: PlaceImages | None, stated: Neighborhood | None) -> dict[str, Any]:
    """What is known of the map beyond its descriptors."""
    neighborhood = _near_of(table, stated)
    if table is None:
        # The rows are the frames; "self" has the value 0.
        return {} if neighborhood is None else {"neighborhood": Near.frames(neighborhood.value)}
    positions = table.positions[table.reference_rows]
    has_metres = table.neighborhood.kind != "metres" or bool(np.isfinite(positions).all(axis=1).any())
    return {
        "positions": positions if bool(np.isfinite(positions).any()) else None,
        "neighborhood": table.is_near if has_metres else None,
        "paths": _images(table, "reference"),
    }


def _images(table: PlaceImages | None, side: str) -> Sequence[str] | None:
    if table is None:
        return None
    return _names(table, table.query_rows if side == "query" else table.reference_rows)


def _names(table: PlaceImages, rows: NDArray[np.int64]) -> Sequence[str]:
    return ImageNames(table.paths, str(table.root), rows)


def _name(name: str, table: PlaceImages | None) -> str:
    return name or (table.name if table is not None else "") or "set"


def _facts(table: PlaceImages | None) -> dict[str, Any]:
    if table is None:
        return {}
    return {
        "table": table.name,
        "hash": table.content_hash,
        "protocol": table.protocol,
        "root": str(table.root),
        "radius": table.radius,
        "neighbourhood": str(table.neighborhood),
        "frame": table.frame,
    }


def _protocol_facts(table: PlaceImages) -> dict[str, Any]:
    """Whether a table that claims to be a benchmark is that benchmark."""
    if table.protocol not in PROTOCOLS:
        return {}
    return {"warnings": list(check_protocol(table, table.protocol).warnings)}


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
