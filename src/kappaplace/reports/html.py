"""Self-contained HTML pages without scripts and external URLs, readable on a phone and in print."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).parent / "templates"


def template(name: str) -> str:
    """Return the text of a file in the folder ``templates``."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


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


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Return a table, which scrolls sideways on a narrow screen.

    Args:
        header: Column names.
        rows: Text of the cells, row by row.
        words: Whether the cells contain text instead of numbers.

    Returns:
        HTML of the table.
    """
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    kind = ' class="words"' if words else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def picture(png: bytes, alternative: str, caption: str) -> str:
    """Return a figure with its caption.

    Args:
        png: The image.
        alternative: Text for readers who cannot see it.
        caption: How to read it.
    """
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def card(kind: str, name: str, source: str, captions: Sequence[str], alternative: str = "") -> str:
    """Return an image with a frame and captions, for a ``<div class="row">``.

    Args:
        kind: Frame: query (gray), right (green) or wrong (red); empty for no color.
        name: Name of the image file.
        source: Image as a data URL; empty if it cannot be opened.
        captions: Lines of text below the image.
        alternative: Text for readers who cannot see the image. Default: the name.
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
