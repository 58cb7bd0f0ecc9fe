"""Top-k search of references for queries: exact, faiss, Milvus, PostgreSQL behind one small interface."""

from kappaplace.data.near import Circle
from kappaplace.models.embedding import patch_maps_of
from kappaplace.retrieval.columns import Coded, Columns, Descriptors, Quantized, quantize
from kappaplace.retrieval.engine import Engine, EngineKind, EngineOptions, open_engine
from kappaplace.retrieval.evidence import Evidence
from kappaplace.retrieval.exact import search, search_matrix
from kappaplace.retrieval.map_search import MapSource, Search, open_search
from kappaplace.retrieval.patches import CellCheck, Pair, PatchMaps, by_agreement, reordered
from kappaplace.retrieval.references import ArrayReferences, Floats, MatrixReferences, Queries, References
from kappaplace.retrieval.retrieve import retrieve

__all__ = [
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
    "MapSource",
    "MatrixReferences",
    "Pair",
    "PatchMaps",
    "Quantized",
    "Queries",
    "References",
    "Search",
    "by_agreement",
    "open_engine",
    "open_search",
    "patch_maps_of",
    "quantize",
    "reordered",
    "retrieve",
    "search",
    "search_matrix",
]
