"""Pages and figures of evaluations, maps, drives and training runs. `kappaplace.metrics` computes the
numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kappaplace._names import lazy_exports

if TYPE_CHECKING:
    from kappaplace.reports.evaluation import write_report as write_report
    from kappaplace.reports.figures import GalleryRow as GalleryRow
    from kappaplace.reports.figures import gallery_figure as gallery_figure
    from kappaplace.reports.figures import kappa_figure as kappa_figure
    from kappaplace.reports.figures import reliability_figure as reliability_figure
    from kappaplace.reports.ground import write_place_map as write_place_map
    from kappaplace.reports.ground import write_table_map as write_table_map
    from kappaplace.reports.html import card as card
    from kappaplace.reports.html import chapter as chapter
    from kappaplace.reports.html import counts as counts
    from kappaplace.reports.html import drawing as drawing
    from kappaplace.reports.html import heading as heading
    from kappaplace.reports.html import image_url as image_url
    from kappaplace.reports.html import page as page
    from kappaplace.reports.html import paragraph as paragraph
    from kappaplace.reports.html import png_of as png_of
    from kappaplace.reports.html import table as table
    from kappaplace.reports.label import write_label_page as write_label_page
    from kappaplace.reports.localization import write_answers as write_answers
    from kappaplace.reports.localization import write_geotags as write_geotags
    from kappaplace.reports.map_tune import fit_verdict as fit_verdict
    from kappaplace.reports.map_tune import write_drift as write_drift
    from kappaplace.reports.map_tune import write_fit_report as write_fit_report
    from kappaplace.reports.pairs import draw_evidence as draw_evidence
    from kappaplace.reports.runs import draw_trajectory as draw_trajectory
    from kappaplace.reports.runs import write_paper_report as write_paper_report
    from kappaplace.reports.runs import write_slam as write_slam
    from kappaplace.reports.runs import write_training as write_training
else:
    __all__, __getattr__ = lazy_exports(__name__, __file__)
