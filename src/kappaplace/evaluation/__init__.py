"""From images, descriptors or similarities to the numbers that judge them, and to files that keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kappaplace.evaluation.results import EvaluationResult, ScoreColumns, SetResult
from kappaplace.evaluation.run import Evaluation, ScoreResult, evaluate
from kappaplace.metrics import KS

if TYPE_CHECKING:
    from kappaplace.evaluation.measuring import measure
    from kappaplace.evaluation.results import read_result, write_result
    from kappaplace.evaluation.run import Choices, evaluate_sets, evaluate_table

__all__ = [
    "KS",
    "Choices",
    "Evaluation",
    "EvaluationResult",
    "ScoreColumns",
    "ScoreResult",
    "SetResult",
    "evaluate",
    "evaluate_sets",
    "evaluate_table",
    "measure",
    "read_result",
    "write_result",
]

# Imported on first use: these bring models and files along.
_LATER = {
    "measure": "measuring",
    "Choices": "run",
    "evaluate_sets": "run",
    "evaluate_table": "run",
    "read_result": "results",
    "write_result": "results",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
