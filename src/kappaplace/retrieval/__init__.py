"""Top-k search of references: exact, or with faiss, Milvus or PostgreSQL, behind one interface."""

from kappaplace.data.near import Circle
from kappaplace.models.embedding import patch_maps_of
from kappaplace.retrieval.agreement import AGREEMENT, PatchMatches
from kappaplace.retrieval.columns import Coded, Columns, Descriptors, Quantized, quantize
from kappaplace.retrieval.engine import Engine
from kappaplace.retrieval.evidence import Evidence, retrieve
from kappaplace.retrieval.exact import search, search_matrix
from kappaplace.retrieval.open import EngineKind, EngineOptions, MapSource, Search, open_engine, open_search
from kappaplace.retrieval.patch_codes import LocalFeatures
from kappaplace.retrieval.patches import (
    CellCheck,
    Pair,
    PatchMaps,
    by_agreement,
    patch_matches,
    reordered,
)
from kappaplace.retrieval.references import ArrayReferences, Floats, MatrixReferences, Queries, References

__all__ = [
    "AGREEMENT",
    "ArrayReferences",
    "CellCheck",
    "Circle",
    "Coded",
    "Columns",
    "Descriptors",
    "Engine",
    "EngineKind",
    "EngineOptions",
    "Evidence",
    "Floats",
    "LocalFeatures",
    "MapSource",
    "MatrixReferences",
    "Pair",
    "PatchMaps",
    "PatchMatches",
    "Quantized",
    "Queries",
    "References",
    "Search",
    "by_agreement",
    "open_engine",
    "open_search",
    "patch_maps_of",
    "patch_matches",
    "quantize",
    "reordered",
    "retrieve",
    "search",
    "search_matrix",
]
