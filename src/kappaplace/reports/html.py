"""Self-contained HTML pages, readable on a phone and in print, their tables, and the files next to them."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from kappaplace.files import make_folder, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_TEMPLATES = Path(__file__).parent / "templates"


def template(name: str) -> str:
    """Return the text of a file in the folder ``templates``."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


CAPTIONS: Mapping[str, str] = json.loads(template("captions.json"))
"""Captions that explain how to read each table and figure."""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: Title of the page.
        lead: Text below the title.
        sections: HTML of the content, from the functions below.

    Returns:
        The whole page.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{template('page.css')}</style>\n</head>\n<body>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="lead">{html.escape(lead)}</p>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def heading(text: str, anchor: str = "", level: int = 2) -> str:
    """Return a heading.

    Args:
        text: Text of the heading.
        anchor: Target of the link in `contents`.
        level: Level of the heading, 2 or more.

    Returns:
        HTML of the heading.
    """
    mark = f' id="{html.escape(anchor)}"' if anchor else ""
    return f"<h{level}{mark}>{html.escape(text)}</h{level}>"


def contents(entries: Sequence[tuple[str, str]]) -> str:
    """Return the table of contents from the (anchor, title) of each section."""
    items = "".join(f'<li><a href="#{html.escape(a)}">{html.escape(t)}</a></li>' for a, t in entries)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def paragraph(text: str, small: bool = False) -> str:
    """Return a paragraph of plain text."""
    start = '<p class="note">' if small else "<p>"
    return f"{start}{html.escape(text)}</p>"


def grid(pieces: Sequence[str]) -> str:
    """Return figures side by side, or one below the other on a narrow screen."""
    joined = "".join(pieces)
    return f'<div class="grid">{joined}</div>' if pieces else ""


# Characters that LaTeX reads as commands, and those that its default fonts lack.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "κ": r"$\kappa$",
    "σ": r"$\sigma$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "→": r"$\rightarrow$",
    "↔": r"$\leftrightarrow$",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "–": r"\textendash{}",
    "\u00a0": "~",
    "\n": " ",
    "\r": " ",
}


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    small: str = ""
    """Small print below the text, such as an interval."""
    best: bool = False
    """Whether the value is the best of its column."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    words: bool = False
    """Whether the cells contain text instead of numbers."""

    @classmethod
    def of_words(cls, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
        """Return a table of text.

        Args:
            header: Column names.
            rows: Text of the cells, row by row.
            caption: Caption of the table.

        Returns:
            The table.
        """
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), caption, words=True)

    def html(self) -> str:
        """Return the table as HTML; it scrolls sideways on a narrow screen."""
        kind = ' class="words"' if self.words else ""
        kind += f' aria-label="{html.escape(self.caption)}"' if self.caption else ""
        top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.header)
        body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        # Not a <caption>: it would be as wide as the table, which may be wider than the screen.
        caption = f'<p class="caption">{html.escape(self.caption)}</p>' if self.caption else ""
        inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
        return f'{caption}<div class="scroll"><table{kind}>{inner}</table></div>'

    def latex(self) -> str:
        r"""Return the table as a LaTeX environment; the document needs \usepackage{booktabs}."""
        rest = len(self.header) - 1
        columns = "l" * rest + r"p{0.6\linewidth}" if self.words else "l" + "r" * rest
        head = _latex_line(map(latex_text, self.header))
        body = "".join(map(_latex_row, self.rows))
        caption = f"\\caption{{{latex_text(self.caption)}}}\n" if self.caption else ""
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
            f"{caption}\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\\midrule\n{body}\\bottomrule\n"
            "\\end{tabular}\n\\end{table}\n"
        )


def latex_text(text: str) -> str:
    """Return text that is safe inside a LaTeX document."""
    return "".join(_LATEX.get(letter, letter) for letter in text).replace("--", "-{}-")  # no ligature


def _html_cell(cell: Cell) -> str:
    text = html.escape(cell.text)
    small = f"<small>{html.escape(cell.small)}</small>" if cell.small else ""
    return f"<td>{f'<strong>{text}</strong>' if cell.best else text}{small}</td>"


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\\n"


def _latex_row(row: Sequence[Cell]) -> str:
    """Return one line, and a second one for the small print, which would not fit next to the numbers."""
    texts = [(rf"\textbf{{{latex_text(c.text)}}}" if c.best else latex_text(c.text)) for c in row]
    small = [rf"{{\scriptsize {latex_text(c.small)}}}" if c.small else "" for c in row]
    return _latex_line(texts) + (_latex_line(small) if any(small) else "")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Return a table of text.

    Args:
        header: Column names.
        rows: Text of the cells, row by row.
        words: Whether the cells contain text instead of numbers.

    Returns:
        HTML of the table.
    """
    return Table(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), words=words).html()


def picture(png: bytes, alternative: str, caption: str, kind: str = "png") -> str:
    """Return a figure with its caption.

    Args:
        png: The image.
        alternative: Text for readers who cannot see it.
        caption: Explanation of how to read the figure.
        kind: Format of the image: png or jpeg.

    Returns:
        HTML of the figure.
    """
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{html.escape(alternative)}" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def card(kind: str, name: str, source: str, captions: Sequence[str], alternative: str = "") -> str:
    """Return an image with a frame and captions, for a ``<div class="row">``.

    Args:
        kind: Kind of frame: query (gray), right (green) or wrong (red). Empty for no color.
        name: Name of the image file.
        source: Image as a data URL; empty if it cannot be opened.
        captions: Lines of text below the image.
        alternative: Text for readers who cannot see the image. Default: the name.

    Returns:
        HTML of the image with its captions.
    """
    name = html.escape(name)
    inner = f'<div class="gone">{name or "image"} cannot be opened</div>'
    if source:
        inner = f'<img alt="{html.escape(alternative) or name}" src="{source}">'
    return f'<div class="{kind}">{inner}<p>{"<br>".join(map(html.escape, captions))}</p></div>'


def png_of(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def svg_of(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as SVG; equal figures give equal bytes. ``dpi`` applies to rasterized parts."""
    from kappaplace.reports.figures import styled

    buffer = io.BytesIO()  # the style contains the salt of names inside the file
    styled(figure.savefig)(buffer, format="svg", dpi=dpi, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


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
        file, png = self._save(name, figure, DPI, COLORS)
        return self._fitted(picture(png, alternative, caption), file)

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
        write_file(self.folder / f"{stem}.svg", svg_of(figure, dpi), sync=False)
        return f"{stem}.png", png

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
