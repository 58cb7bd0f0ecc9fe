"""Self-contained HTML pages, readable on a phone and in print, their tables, and the files next to them."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_TEMPLATES = Path(__file__).parent / "templates"
_SERVED = Path(__file__).parents[1] / "serve" / "page"


def template(name: str) -> str:
    """Return the text of a file in the folder ``templates``."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


CAPTIONS: Mapping[str, str] = json.loads(template("captions.json"))
"""Captions that explain how to read each table and figure."""


def tokens() -> str:
    """Return the colors of the page of `kappaplace serve`, light and dark, which reports share."""
    style = (_SERVED / "style.css").read_text(encoding="utf-8")
    return style[style.index(":root {") : style.index("\n* {")]


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: Title of the page.
        lead: Summary below the title.
        sections: HTML of the content, from the functions below.

    Returns:
        The whole page.
    """
    icon = icon_url()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="{icon}">\n'
        f"<style>\n{tokens()}{template('page.css')}</style>\n</head>\n<body>\n"
        f'<header class="top"><img alt="KappaPlace" src="{icon}" width="26" height="26">KappaPlace</header>\n'
        f'<main>\n<h1>{html.escape(title)}</h1>\n<p class="lead">{html.escape(lead)}</p>\n'
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def icon_url() -> str:
    """Return the icon of KappaPlace as a data URL."""
    return image_url((_SERVED / "icon.svg").read_bytes(), "svg+xml")


def image_url(image: bytes, kind: str) -> str:
    """Return an image as a data URL.

    Args:
        image: The encoded image.
        kind: Its format: png, jpeg or svg+xml.

    Returns:
        The URL.
    """
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"


def counts(numbers: Mapping[str, tuple[str, int]]) -> str:
    """Return counts side by side, such as the number of accepted answers.

    Args:
        numbers: Kind of frame (accept, doubtful, reject, or empty) and count by name.

    Returns:
        HTML of the list.
    """
    items = "".join(
        f'<li class="{kind}"><strong>{count:,}</strong> {html.escape(name)}</li>'
        for name, (kind, count) in numbers.items()
    )
    return f'<ul class="counts">{items}</ul>'


def chapter(
    title: str, pieces: Sequence[str], anchor: str, opened: bool = False, badge: tuple[str, str] = ("", "")
) -> str:
    """Return a chapter that folds; a link to its anchor unfolds it.

    Args:
        title: Title, which stays visible.
        pieces: HTML of the content.
        anchor: Target of links.
        opened: Whether the chapter is unfolded at first.
        badge: Kind (accept, doubtful, reject or empty) and text of a mark beside the title. Default: none.

    Returns:
        HTML of the chapter.
    """
    mark = " open" if opened else ""
    inner = "\n".join(pieces)
    sign = f'<span class="badge {badge[0]}">{html.escape(badge[1])}</span>' if badge[1] else ""
    return (
        f"<details{mark}><summary>{sign}<h2>{html.escape(title)}</h2></summary>\n"
        f'<div class="inside" id="{html.escape(anchor)}">\n{inner}\n</div></details>'
    )


def short(value: float) -> str:
    """Return a number with three digits and without an exponent; a dash if it is not finite."""
    if not math.isfinite(value):
        return "–"
    if 0 < abs(value) < 0.001:
        return "<0.001" if value > 0 else "−0.000"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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
        return f'{caption}<div class="scroll" tabindex="0"><table{kind}>{inner}</table></div>'

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


def picture(image: bytes, alternative: str, caption: str, kind: str = "png") -> str:
    """Return a figure with its caption, in its natural size or as wide as the screen.

    Args:
        image: The image.
        alternative: Text for readers who cannot see it.
        caption: Explanation of how to read the figure.
        kind: Format of the image: png, jpeg or svg+xml.

    Returns:
        HTML of the figure.
    """
    return (
        f'<figure><img alt="{html.escape(alternative)}" src="{image_url(image, kind)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def drawing(figure: Figure, alternative: str, caption: str) -> str:
    """Return a matplotlib figure as SVG with its caption.

    Args:
        figure: The figure.
        alternative: Text for readers who cannot see it.
        caption: Explanation of how to read the figure.

    Returns:
        HTML of the figure.
    """
    return picture(svg_of(figure), alternative, caption, "svg+xml")


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
