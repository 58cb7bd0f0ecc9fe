"""Inputs of an evaluation: the matches of one dataset, from images, descriptors or similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.appearance import copies, taken_together
from kappaplace.data.columns import ImageNames
from kappaplace.data.near import Near, Neighborhood
from kappaplace.data.positives import NoPositives, Positives
from kappaplace.data.protocols import PROTOCOLS, check_protocol
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.exact import matrix_shape
from kappaplace.retrieval.references import ArrayReferences, MatrixReferences, Queries
from kappaplace.types import Embeddings, Json

ROWS = 1 << 16  # rows of descriptors or similarities to read at once
UNIT = 1e-3  # a length differs from 1 by less than this because of rounding, even in half precision
ROUNDING = 1e-3  # a cosine can exceed 1 by this much because of rounding
MOST_NAMED = 5
"""Maximum number of mislabelled copies that are reported."""
NONE = np.empty(0, np.int64)
NO_LABELS = "The correct references are unknown. Pass --positives FILE or a table."


@dataclass(frozen=True, eq=False)
class Retrieved:
    """One dataset after retrieval, before any score."""

    name: str
    """Name of the dataset."""
    evidence: Evidence
    """Queries, references and matches."""
    positives: Positives
    """The correct references of each query."""
    references: int
    """Number of references."""
    table: PlaceImages | None = None
    """Table of the images, if there is one."""
    neighborhood: Neighborhood | None = None
    """Neighborhood of references that show the same place, if it is specified."""
    facts: dict[str, Json] = field(default_factory=dict)
    """Facts to store with the result, such as the hash of the table."""

    @property
    def policy(self) -> NoPositives:
        """Policy of the dataset's protocol for queries without a positive."""
        protocol = PROTOCOLS.get(self.table.protocol) if self.table is not None else None
        return NoPositives.FAIL if protocol is None else protocol.no_positives


def from_table(table: PlaceImages, cache: EmbeddingStore, k: int = 10, name: str = "") -> Retrieved:
    """Embed the images of a table, unless they are cached, and retrieve.

    Args:
        table: Queries and references.
        cache: Store of embeddings, which also has the model.
        k: Number of matches per query.
        name: Name of the dataset. Default: the name of the table.

    Returns:
        The dataset after retrieval.

    Raises:
        KappaPlaceError: If the table lacks queries or references, or has fewer than k references.
    """
    _check_table(table, k)
    query = cache.embed(_names(table, table.query_rows))
    reference = cache.embed(_names(table, table.reference_rows))
    facts: dict[str, Json] = {"preprocessing": cache.preprocessing.to_dict()}
    if table.protocol in PROTOCOLS:  # warnings if the table is not the benchmark that its protocol states
        facts["warnings"] = list(check_protocol(table, table.protocol).warnings)
    references = ArrayReferences(
        reference, **_context(table, None), patch_maps=cache.patch_maps, device=cache.device or "cpu"
    )
    queries = Queries(query, _images(table, "query"), cache.patch_maps)
    retrieved = _retrieve(queries, references, None, table, k, name)
    return replace(retrieved, facts=retrieved.facts | facts)


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
    """Retrieve with stored descriptors.

    Args:
        query: Embeddings of the queries; descriptors are normalized if necessary.
        reference: Embeddings of the references.
        positives: The correct references of each query. Default: from the table.
        table: Table that provides positives, positions, neighborhood and images.
        k: Number of matches per query.
        name: Name of the dataset. Default: the name of the table.
        neighborhood: Without a table, which references show the same place: a number of frames, or "self" if
            every reference is a separate place.
        device: Device of the search. Default: the CPU.

    Returns:
        The dataset after retrieval.

    Raises:
        KappaPlaceError: If the parts contradict each other.
    """
    query = query._replace(descriptor=unit_length(query.descriptor, "queries"))
    reference = reference._replace(descriptor=unit_length(reference.descriptor, "references"))
    references = ArrayReferences(reference, **_context(table, neighborhood), device=device or "cpu")
    return _retrieve(
        Queries(query, _images(table, "query")), references, positives, table, k, name, neighborhood
    )


def _retrieve(
    queries: Queries,
    references: ArrayReferences,
    positives: Positives | None,
    table: PlaceImages | None,
    k: int,
    name: str,
    neighborhood: Neighborhood | None = None,
) -> Retrieved:
    vectors, descriptors = queries.vectors, references.descriptors
    # Counted from the searched arrays instead of the table, so that a mismatch is reported before the search.
    count = matrix_shape(vectors)[1] if descriptors is None else len(descriptors)
    labels = _positives(positives, table, len(vectors), count)
    evidence = retrieve(queries, references, k)
    title = name or (table.name if table is not None else "") or "set"
    near = _near_of(table, neighborhood)
    return Retrieved(title, evidence, labels, labels.references, table, near, _facts(table))


def from_similarities(
    matrix: NDArray[np.floating],
    positives: Positives | None,
    table: PlaceImages | None = None,
    *,
    k: int = 10,
    name: str = "",
    neighborhood: Neighborhood | None = None,
) -> Retrieved:
    """Retrieve from a matrix of cosines, without any model.

    Args:
        matrix: Cosine similarities of queries and references, N×R.
        positives: The correct references of each query. Default: from the table.
        table: Adds positives, positions, neighborhood and images.
        k: Number of matches per query.
        name: Name of the dataset. Default: the name of the table.
        neighborhood: Without a table, which references show the same place, see `from_descriptors`.

    Returns:
        The dataset after retrieval.

    Raises:
        KappaPlaceError: If the matrix does not contain cosines, or does not match the positives or the table.
    """
    references = MatrixReferences(count=np.shape(matrix)[-1], **_context(table, neighborhood))
    queries = Queries(images=_images(table, "query"), similarities=matrix)
    retrieved = _retrieve(queries, references, positives, table, k, name, neighborhood)
    _check_cosines(matrix)
    return retrieved


def unit_length(descriptors: NDArray[np.floating], whose: str) -> NDArray[np.floating]:
    """Return the same array if all rows have unit length, otherwise a normalized copy."""
    if descriptors.ndim != 2:
        raise KappaPlaceError(f"Descriptors of the {whose} must be N×d, got shape {descriptors.shape}.")
    lengths = np.empty(len(descriptors))
    for start in range(0, len(descriptors), ROWS):
        block = np.asarray(descriptors[start : start + ROWS], np.float32)
        lengths[start : start + ROWS] = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
    invalid = ~np.isfinite(lengths) | (lengths == 0)
    if invalid.any():
        raise KappaPlaceError(
            f"Row {int(np.argmax(invalid))} of the descriptors of the {whose} is NaN, infinite or zero. "
            "Check how they were computed."
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
        raise KappaPlaceError("Some similarities are NaN. Check how the matrix was computed.")
    if low < -1 - ROUNDING or high > 1 + ROUNDING:
        raise KappaPlaceError(
            f"Similarities must be cosines from −1 to 1, got values from {low:g} to {high:g}. Divide by the "
            "largest value, or convert distances d of unit vectors to 1 − d²/2."
        )


def _positives(
    positives: Positives | None, table: PlaceImages | None, queries: int, references: int
) -> Positives:
    if positives is None and table is None:
        raise KappaPlaceError(NO_LABELS)
    if positives is None:
        assert table is not None
        positives = table.positives()
    if (positives.queries, positives.references) != (queries, references):
        raise KappaPlaceError(
            f"There are {queries:,} queries and {references:,} references to evaluate but positives for "
            f"{positives.queries:,} and {positives.references:,}. Use files of the same dataset."
        )
    if table is not None and (len(table.query_rows), len(table.reference_rows)) != (queries, references):
        raise KappaPlaceError(
            f"There are {queries:,} queries and {references:,} references to evaluate but the table "
            f"{table.name} has {len(table.query_rows):,} and {len(table.reference_rows):,}. Use files of the "
            "same dataset."
        )
    return positives


def _check_table(table: PlaceImages, k: int) -> None:
    """Fail early if the table cannot be evaluated, before hours of embedding."""
    references = len(table.reference_rows)
    if not len(table.query_rows) or not references:
        raise KappaPlaceError(
            f"An evaluation needs queries and references, but the table {table.name} has "
            f"{len(table.query_rows):,} queries and {references:,} references."
        )
    if k > references:
        raise KappaPlaceError(
            f"k must be between 1 and {references} (the number of references in {table.name}), got {k}."
        )


def _near_of(table: PlaceImages | None, option: Neighborhood | None) -> Neighborhood | None:
    if table is not None and option is not None:
        raise KappaPlaceError(
            "The table already has a neighborhood. Omit --neighborhood, or import the table with another."
        )
    if option is not None and option.kind == "metres":
        raise KappaPlaceError(
            "A neighborhood in metres needs positions. Pass a table, or use frames:5 or self."
        )
    return option if table is None else table.neighborhood


class _Context(TypedDict, total=False):
    """Properties of references in addition to their descriptors; unknown ones are omitted."""

    positions: NDArray[np.float64] | None
    neighborhood: Near | None
    paths: Sequence[str] | None


def _context(table: PlaceImages | None, option: Neighborhood | None) -> _Context:
    neighborhood = _near_of(table, option)
    if table is None:
        # Rows are frames; "self" has the value 0.
        return {} if neighborhood is None else {"neighborhood": Near.frames(neighborhood.value)}
    positions = table.positions[table.reference_rows]
    has_meters = table.neighborhood.kind != "metres" or bool(np.isfinite(positions).all(axis=1).any())
    return {
        "positions": positions if bool(np.isfinite(positions).any()) else None,
        "neighborhood": table.is_near if has_meters else None,
        "paths": _images(table, "reference"),
    }


def _images(table: PlaceImages | None, side: str) -> Sequence[str] | None:
    if table is None:
        return None
    return _names(table, table.query_rows if side == "query" else table.reference_rows)


def _names(table: PlaceImages, rows: NDArray[np.int64]) -> Sequence[str]:
    return ImageNames(table.paths, str(table.root), rows)


def _facts(table: PlaceImages | None) -> dict[str, Json]:
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


@dataclass(frozen=True, eq=False)
class Twins:
    """Queries of a dataset that are near-copies of references, on which recall is too high.

    A twin is nearly the same image as its best match, or was taken within a minute of a reference. Both
    happen if a drive is uploaded more than once. The queries of a benchmark are defined by its protocol, so
    none of them is excluded.
    """

    rows: NDArray[np.int64] = field(default_factory=lambda: NONE)
    """Numbers of the twins in the dataset, ascending."""
    misplaced: tuple[str, ...] = ()
    """Images of the twins whose best match is nearly the same image, but not a positive."""

    def __str__(self) -> str:
        count = len(self.rows)
        return f"; {count:,} near-copies of references excluded" if count else ""

    @property
    def facts(self) -> dict[str, Json]:
        """Facts to store with a result; empty without twins."""
        facts: dict[str, Json] = {"twins": len(self.rows)} if len(self.rows) else {}
        return facts | ({"misplaced": list(self.misplaced[:MOST_NAMED])} if self.misplaced else {})


def find_twins(retrieved: Retrieved, rows: NDArray[np.int64]) -> Twins:
    """Find the twins among some queries of a dataset.

    Args:
        retrieved: The dataset after retrieval.
        rows: Numbers of the queries to check, ascending.

    Returns:
        The twins; empty without a table and for benchmarks.
    """
    table = retrieved.table
    if table is None or table.protocol in PROTOCOLS:
        return Twins()
    top = retrieved.evidence.top[rows]
    images = table.image_paths(table.query_rows[rows])
    same = copies(images, table.image_paths(table.reference_rows[top]))
    correct = retrieved.positives.hits(retrieved.evidence.matches.indices[:, :1])[rows, 0]
    together = taken_together(table.timestamp[table.query_rows[rows]], table.timestamp[table.reference_rows])
    misplaced = [image for image, wrong in zip(images, same & ~correct, strict=True) if wrong]
    return Twins(rows[same | together], tuple(misplaced))
