"""A model as TorchScript, by tracing: for C++ programs that have libtorch already."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from kappaplace.export.graph import ExportGraph
from kappaplace.models.runtimes import KEY


def write_torchscript(graph: ExportGraph, example: Tensor, file: Path, text: str) -> None:
    """The traced graph with the record beside it; the parity check tells whether other sizes work."""
    with warnings.catch_warnings(), torch.no_grad():
        # torch recommends torch.export instead, which C++ programs cannot open without Python or a compiler.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(graph, example)
        content = BytesIO()  # in memory first: torch's own writer ends the process where the disk is full
        torch.jit.save(traced, content, _extra_files={KEY: text})
    file.write_bytes(content.getbuffer())
