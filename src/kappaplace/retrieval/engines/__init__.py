"""Search engines behind one small interface: exact, faiss, Milvus, PostgreSQL."""

from kappaplace.retrieval.engines.base import Circle, Engine
from kappaplace.retrieval.engines.choose import EngineKind, open_engine
from kappaplace.retrieval.engines.rows import Coded, Descriptors, Quantized, Rows, quantize

__all__ = [
    "Circle",
    "Coded",
    "Descriptors",
    "Engine",
    "EngineKind",
    "Quantized",
    "Rows",
    "open_engine",
    "quantize",
]
