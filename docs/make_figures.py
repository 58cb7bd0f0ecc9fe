"""The drawn figures of the documentation: python docs/make_figures.py"""

from __future__ import annotations

from pathlib import Path

from kappaplace.reports.html import png_of
from kappaplace.reports.score_tables import rescaling_figure

ASSETS = Path(__file__).parent / "assets"

if __name__ == "__main__":
    (ASSETS / "rescaling.png").write_bytes(png_of(rescaling_figure(), dpi=150))
