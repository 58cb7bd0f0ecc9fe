"""Output files of a report: figures as PNG and SVG, tables as LaTeX, and the page that contains them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from kappaplace.files import make_folder, write_file
from kappaplace.reports.html import Table, paragraph, picture, png_of, svg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
PHOTO_DPI = 110
"""Resolution of galleries, which matches that of their thumbnails."""
COLORS = 128
"""Number of colors of a drawing, which reduces its size to a third. Photographs keep all colors."""
MOST_BYTES = 7_500_000
"""Maximum size of all images in a page: more is slow on a phone. Further images are only separate files."""


class Artifacts:
    """Output files of a report: every method writes figures or tables to the folder and returns HTML."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = make_folder(folder)
        self.figures = make_folder(self.folder / "figures")
        self.tables = make_folder(self.folder / "tables")
        self._names: set[str] = set()
        self._remaining = MOST_BYTES

    def figure(self, name: str, figure: Figure, alternative: str, caption: str) -> str:
        """Write a figure, and return it as HTML.

        Args:
            name: Name of the files.
            figure: The figure.
            alternative: Text for readers who cannot see it.
            caption: Explanation of how to read the figure.

        Returns:
            HTML of the figure, or a note with the name of the file if the page is full.
        """
        file, svg = self._save(name, figure, DPI, COLORS)
        return self._fitted(picture(svg, alternative, caption, "svg+xml"), file)

    def piece(self, name: str, figure: Figure, page: str) -> str:
        """Write a figure, and return the HTML of ``page``, which shows the same in another form."""
        file, _ = self._save(name, figure, PHOTO_DPI)
        return self._fitted(page, file)

    def table(self, name: str, table: Table) -> str:
        """Write a table as LaTeX, and return it as HTML."""
        write_file(self.folder / f"{self._free(f'tables/{slug(name)}')}.tex", table.latex(), sync=False)
        return table.html()

    def page(self, text: str) -> Path:
        """Write report.html after its files, then delete the files of an earlier report; return its path."""
        file = self.folder / "report.html"
        write_file(file, text, sync=False)
        for old in (*self.figures.glob("*.png"), *self.figures.glob("*.svg"), *self.tables.glob("*.tex")):
            if f"{old.parent.name}/{old.stem}" not in self._names:
                old.unlink()
        return file

    def _save(self, name: str, figure: Figure, dpi: int, colors: int | None = None) -> tuple[str, bytes]:
        stem = self._free(f"figures/{slug(name)}")
        png = png_of(figure, dpi)
        if colors:
            png = _fewer_colors(png, colors)
        figure.set_layout_engine("none")  # the layout is done; repeating it would double the time
        write_file(self.folder / f"{stem}.png", png, sync=False)
        svg = svg_of(figure, dpi)
        write_file(self.folder / f"{stem}.svg", svg, sync=False)
        return f"{stem}.png", svg

    def _fitted(self, piece: str, file: str) -> str:
        if len(piece) > self._remaining:
            return paragraph(f"To keep this page small, this figure is only in {file}.", small=True)
        self._remaining -= len(piece)
        return piece

    def _free(self, stem: str) -> str:
        """Return a name that is not in use: names may differ only in characters that file names lack."""
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}-{count}"
        self._names.add(name)
        return name


def slug(text: str) -> str:
    """Return a name of letters, digits, dots and dashes, which every file system accepts."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80] or "unnamed"


def _fewer_colors(png: bytes, colors: int) -> bytes:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(colors, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
