"""Each figure and table twice: in the page, and as a file beside it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from kappaplace.files import make_folder, replace_file
from kappaplace.reports import html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kappaplace.reports.tables import Table


DPI = 150
PHOTO_DPI = 110
"""Of galleries: what their thumbnails have."""
COLOURS = 128
"""A drawing needs no more, and takes a third of the bytes; photographs keep all of theirs."""
MOST_BYTES = 7_500_000
"""Of pictures inside the page: more is slow on a phone. Later ones are then only files beside it."""


class Artefacts:
    """Writes figures/*.png and *.svg and tables/*.tex below a folder, and gives the piece of the page."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = make_folder(folder)
        self.figures = make_folder(self.folder / "figures")
        self.tables = make_folder(self.folder / "tables")
        self._taken: set[str] = set()
        self._room = MOST_BYTES

    def figure(self, name: str, figure: Figure, alternative: str, how_to_read: str) -> str:
        """The figure for the page, with the sentence that says how to read it."""
        file, png = self._save(name, figure, DPI, COLOURS)
        return self._fitted(html.picture(png, alternative, how_to_read), file)

    def piece(self, name: str, figure: Figure, page: str) -> str:
        """A piece of the page that shows in its own way what the figure's files show."""
        file, _ = self._save(name, figure, PHOTO_DPI)
        return self._fitted(page, file)

    def table(self, name: str, table: Table) -> str:
        """The table for the page."""
        _write(self.folder / f"{self._free(f'tables/{slug(name)}')}.tex", table.latex().encode())
        return table.html()

    def page(self, text: str) -> Path:
        """report.html itself; written last, so that a page never lacks its files, and then old ones go."""
        file = self.folder / "report.html"
        _write(file, text.encode())
        for old in (*self.figures.glob("*.png"), *self.figures.glob("*.svg"), *self.tables.glob("*.tex")):
            if f"{old.parent.name}/{old.stem}" not in self._taken:
                old.unlink()
        return file

    def _save(self, name: str, figure: Figure, dpi: int, colours: int | None = None) -> tuple[str, bytes]:
        stem = self._free(f"figures/{slug(name)}")
        png = html.png_of(figure, dpi)
        if colours:
            png = _fewer_colours(png, colours)
        figure.set_layout_engine("none")  # the places are found; finding them again would double the time
        _write(self.folder / f"{stem}.png", png)
        _write(self.folder / f"{stem}.svg", html.svg_of(figure, dpi))
        return f"{stem}.png", png

    def _fitted(self, piece: str, file: str) -> str:
        if len(piece) > self._room:
            return html.paragraph(f"To keep this page small, this picture is only in {file}.", small=True)
        self._room -= len(piece)
        return piece

    def _free(self, stem: str) -> str:
        """Two names may differ only in letters that no file name has."""
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}-{count}"
        self._taken.add(name)
        return name


def slug(text: str) -> str:
    """Letters, digits, dots and dashes: a name that every file system takes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80] or "unnamed"


def _fewer_colours(png: bytes, colours: int) -> bytes:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _write(file: Path, data: bytes) -> None:
    replace_file(file, lambda part: part.write_bytes(data), sync=False)
