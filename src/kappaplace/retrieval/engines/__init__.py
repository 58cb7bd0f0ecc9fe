"""Search engines behind one small interface: exact, faiss, Milvus, PostgreSQL."""

from kappaplace.retrieval.engines.base import Circle, Engine
from kappaplace.retrieval.engines.choose import EngineKind, open_engine
from kappaplace.retrieval.engines.rows import Descriptors, Quantized, Rows, quantize

__all__ = ["Circle", "Descriptors", "Engine", "EngineKind", "Quantized", "Rows", "open_engine", "quantize"]
