"""Evaluation of images, descriptors or similarities: scores, metrics with intervals, and files of results."""

from __future__ import annotations

from kappaplace.evaluation.measuring import Evaluation, ScoreResult, evaluate, measure
from kappaplace.evaluation.results import EvaluationResult, ScoreColumns, SetResult, read_result, write_result
from kappaplace.evaluation.run import Choices, evaluate_sets, evaluate_table
from kappaplace.metrics import KS

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
