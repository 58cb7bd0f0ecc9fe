"""Figures of one group of queries, made from its scores and put into the page."""

from __future__ import annotations

from kappaplace.reports import how_to_read
from kappaplace.reports.artifacts import Artefacts
from kappaplace.reports.figures import (
    ece_bars_figure,
    ece_sensitivity_figure,
    reliability_figure,
    risk_coverage_figure,
    score_histogram_figure,
)
from kappaplace.reports.groups import Group


def risk_coverage(made: Artefacts, group: Group) -> str:
    """Errors left at each share of answered queries, all scores in one plot."""
    curves = {column.label: group.risk_coverage(name) for name, column in group.scores.items()}
    alternative = f"Risk over coverage of {', '.join(curves)}, {group.title}"
    figure = risk_coverage_figure(curves)
    return made.figure(f"risk-coverage-{group.name}", figure, alternative, how_to_read.RISK)


def reliability(made: Artefacts, group: Group) -> str:
    """Success in each bin against what the bin promises, a plot a score."""
    curves = {column.label: group.reliability(name) for name, column in group.scores.items()}
    errors = {column.label: group.values[name]["ECE@1"] for name, column in group.scores.items()}
    figure = reliability_figure(curves, errors, 1, columns=min(2, len(curves)))
    alternative = f"Reliability curves of {', '.join(curves)}, {group.title}"
    return made.figure(f"reliability-{group.name}", figure, alternative, how_to_read.RELIABILITY)


def histograms(made: Artefacts, group: Group) -> str:
    """Each score for right and for wrong top matches."""
    scores = {column.label: column.query for column in group.scores.values()}
    figure = score_histogram_figure(scores, group.success)
    alternative = f"Histograms of {', '.join(scores)} for right and wrong matches, {group.title}"
    return made.figure(f"histograms-{group.name}", figure, alternative, how_to_read.HISTOGRAMS)


def ece_bars(made: Artefacts, group: Group) -> str:
    """ECE@K of every score."""
    errors = {
        column.label: {k: group.values[name][f"ECE@{k}"] for k in group.ks}
        for name, column in group.scores.items()
    }
    alternative = f"Bars of ECE at several K for {', '.join(errors)}, {group.title}"
    return made.figure("ece-bars", ece_bars_figure(errors, group.ks), alternative, how_to_read.BARS)


def ece_sensitivity(made: Artefacts, group: Group) -> str:
    """ECE@1 under other bins, clamps and zoom."""
    surfaces = {column.label: group.surface(name) for name, column in group.scores.items()}
    alternative = f"ECE@1 over the number of bins, with and without zoom, for {', '.join(surfaces)}"
    figure = ece_sensitivity_figure(surfaces)
    return made.figure("ece-sensitivity", figure, alternative, how_to_read.SENSITIVITY)
