"""Evaluation of models, descriptors or similarity matrices: scores, metrics with intervals, comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.evaluation.arrays import Labels as Labels
    from kappaplace.evaluation.arrays import evaluate_descriptors as evaluate_descriptors
    from kappaplace.evaluation.arrays import evaluate_matrices as evaluate_matrices
    from kappaplace.evaluation.audit_files import read_answers as read_answers
    from kappaplace.evaluation.audits import Audit as Audit
    from kappaplace.evaluation.audits import OperatingPoint as OperatingPoint
    from kappaplace.evaluation.audits import ScoredAnswers as ScoredAnswers
    from kappaplace.evaluation.audits import audit as audit
    from kappaplace.evaluation.comparison import Cell as Cell
    from kappaplace.evaluation.comparison import ComparedSet as ComparedSet
    from kappaplace.evaluation.comparison import ComparisonTable as ComparisonTable
    from kappaplace.evaluation.comparison import SeedRow as SeedRow
    from kappaplace.evaluation.comparison import compare as compare
    from kappaplace.evaluation.comparison import comparison_rows as comparison_rows
    from kappaplace.evaluation.comparison import spread_over_seeds as spread_over_seeds
    from kappaplace.evaluation.comparison import write_comparison as write_comparison
    from kappaplace.evaluation.inputs import Retrieved as Retrieved
    from kappaplace.evaluation.inputs import from_table as from_table
    from kappaplace.evaluation.measuring import MEAN as MEAN
    from kappaplace.evaluation.measuring import POOLED as POOLED
    from kappaplace.evaluation.measuring import Evaluation as Evaluation
    from kappaplace.evaluation.measuring import ScoreResult as ScoreResult
    from kappaplace.evaluation.measuring import evaluate_scores as evaluate_scores
    from kappaplace.evaluation.measuring import flaws_of as flaws_of
    from kappaplace.evaluation.measuring import measure as measure
    from kappaplace.evaluation.measuring import measure_set as measure_set
    from kappaplace.evaluation.measuring import warnings_of as warnings_of
    from kappaplace.evaluation.options import AnswerFiles as AnswerFiles
    from kappaplace.evaluation.options import AuditOptions as AuditOptions
    from kappaplace.evaluation.paper import PaperComparison as PaperComparison
    from kappaplace.evaluation.paper import compare_with_paper as compare_with_paper
    from kappaplace.evaluation.paper import paper_rows as paper_rows
    from kappaplace.evaluation.paper import write_paper as write_paper
    from kappaplace.evaluation.results import EvaluationResult as EvaluationResult
    from kappaplace.evaluation.results import ScoreColumns as ScoreColumns
    from kappaplace.evaluation.results import SetResult as SetResult
    from kappaplace.evaluation.results import plain as plain
    from kappaplace.evaluation.results import read_result as read_result
    from kappaplace.evaluation.results import write_result as write_result
    from kappaplace.evaluation.results import write_rows as write_rows
    from kappaplace.evaluation.run import Choices as Choices
    from kappaplace.evaluation.run import Machine as Machine
    from kappaplace.evaluation.run import evaluate as evaluate
    from kappaplace.evaluation.run import evaluate_model as evaluate_model
    from kappaplace.evaluation.run import evaluate_sets as evaluate_sets
    from kappaplace.evaluation.scoring import score_set as score_set
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
