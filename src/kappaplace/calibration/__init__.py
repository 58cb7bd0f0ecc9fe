"""Calibration: from scores to probabilities and decisions (accept, doubtful, reject), and drift of the
queries. Functions work on NumPy arrays and do not read maps. See docs/calibration.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.calibration.calibration import PATCH_SIGNALS as PATCH_SIGNALS
    from kappaplace.calibration.calibration import QUERY_SIGNALS as QUERY_SIGNALS
    from kappaplace.calibration.calibration import Calibration as Calibration
    from kappaplace.calibration.calibration import Judgment as Judgment
    from kappaplace.calibration.calibration import judge as judge
    from kappaplace.calibration.calibration import pair_features as pair_features
    from kappaplace.calibration.calibration import query_features as query_features
    from kappaplace.calibration.calibration import usable_signals as usable_signals
    from kappaplace.calibration.calibrators import CALIBRATORS as CALIBRATORS
    from kappaplace.calibration.calibrators import Calibrator as Calibrator
    from kappaplace.calibration.calibrators import best_calibrator as best_calibrator
    from kappaplace.calibration.calibrators import fit_calibrator as fit_calibrator
    from kappaplace.calibration.candidates import Candidates as Candidates
    from kappaplace.calibration.candidates import PlaceSet as PlaceSet
    from kappaplace.calibration.combination import Combination as Combination
    from kappaplace.calibration.combination import Signal as Signal
    from kappaplace.calibration.combination import features_of as features_of
    from kappaplace.calibration.combination import fit_combination as fit_combination
    from kappaplace.calibration.combination import fused as fused
    from kappaplace.calibration.decision import Decision as Decision
    from kappaplace.calibration.decision import DecisionRule as DecisionRule
    from kappaplace.calibration.decision import decide_matches as decide_matches
    from kappaplace.calibration.decision import fit_rule as fit_rule
    from kappaplace.calibration.decision import match_probabilities as match_probabilities
    from kappaplace.calibration.decision import rule_by_probability as rule_by_probability
    from kappaplace.calibration.drift import SHOWN as SHOWN
    from kappaplace.calibration.drift import DriftMonitor as DriftMonitor
    from kappaplace.calibration.drift import DriftWarning as DriftWarning
    from kappaplace.calibration.drift import Sketch as Sketch
    from kappaplace.calibration.examples import Examples as Examples
    from kappaplace.calibration.examples import examples_of as examples_of
    from kappaplace.calibration.examples import join as join
    from kappaplace.calibration.expected import ExpectedCurve as ExpectedCurve
    from kappaplace.calibration.expected import expected_at as expected_at
    from kappaplace.calibration.expected import expected_curve as expected_curve
    from kappaplace.calibration.expected import reject_risk as reject_risk
    from kappaplace.calibration.expected import rule_for as rule_for
    from kappaplace.calibration.expected import stated_risk as stated_risk
    from kappaplace.calibration.fit import fit_calibration as fit_calibration
    from kappaplace.calibration.groups import GroupRules as GroupRules
    from kappaplace.calibration.options import CalibrateOptions as CalibrateOptions
    from kappaplace.calibration.options import split_queries as split_queries
    from kappaplace.calibration.options import thin_to_places as thin_to_places
    from kappaplace.calibration.outside import shift_prior as shift_prior
    from kappaplace.calibration.pairs import PairCalibration as PairCalibration
    from kappaplace.calibration.pairs import fit_pairs as fit_pairs
    from kappaplace.calibration.pairs import load_pairs as load_pairs
    from kappaplace.calibration.pairs import save_pairs as save_pairs
    from kappaplace.calibration.risk import RiskRefused as RiskRefused
    from kappaplace.calibration.risk import RiskThreshold as RiskThreshold
    from kappaplace.calibration.risk import control_risk as control_risk
    from kappaplace.calibration.risk import needed_acceptances as needed_acceptances
    from kappaplace.calibration.sources import MODEL as MODEL
    from kappaplace.calibration.sources import calibration_with as calibration_with
    from kappaplace.calibration.sources import load_calibration as load_calibration
    from kappaplace.calibration.sources import save_calibration as save_calibration
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
