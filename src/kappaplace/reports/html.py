"""Self-contained HTML pages without scripts and external URLs, readable on a phone and in print."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #444; --line: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b8b8b8; --line: #444; --paper: #16181b; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 64rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
a { color: inherit; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; }
h4 { font-size: .95rem; margin: 1rem 0 .3rem; }
.lead { color: var(--soft); margin-top: 0; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
figure { margin: 1rem 0; }
figure img { width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption, .note { color: var(--soft); font-size: .92rem; }
.grid { columns: 2 24rem; column-gap: 1.5rem; }
.grid figure { max-width: 36rem; margin: 0; padding: .8rem 0; break-inside: avoid; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; vertical-align: top; font-size: .95rem; }
td { white-space: nowrap; }
th { vertical-align: bottom; line-height: 1.25; }
.caption { color: var(--soft); font-size: .92rem; margin: 1rem 0 -.4rem; }
th, td { border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
td small { display: block; color: var(--soft); font-size: .7rem; }
table.words td { text-align: left; white-space: normal; }
table.words th { text-align: left; }
.row { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 0 0 1rem; }
.row img, .row .gone { box-sizing: border-box; width: 100%; aspect-ratio: 4 / 3; object-fit: cover; }
.row img, .row .gone { border: 5px solid #8a8a8a; border-radius: 4px; display: block; }
.row .right img, .row .right .gone { border-color: #1a9850; }
.row .wrong img, .row .wrong .gone { border-color: #d73027; border-style: dashed; }
.row .gone { display: grid; place-content: center; text-align: center; font-size: .8rem; }
.row p { margin: .2rem 0 0; font-size: .85rem; line-height: 1.3; }
@media (max-width: 40rem) {
  th, td { padding: .25rem .4rem; font-size: .88rem; }
  .row { grid-template-columns: repeat(2, 1fr); }
}
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #333; --line: #bbb; --paper: #fff; }
  body { font-size: 10pt; max-width: none; padding: 0; }
  h2, h3, h4 { break-after: avoid; }
  .grid { columns: 2; }
  figure, .row, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
  th, td { padding: .15rem .3rem; font-size: 7.5pt; }
  td small { font-size: 5.5pt; }
}
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Return a page.

    Args:
        title: Title of the page.
        lead: Text below the title.
        sections: HTML of the content, from the functions below.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
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


def png_of(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def svg_of(figure: Figure, dpi: int = 130) -> bytes:
    """Return a figure as SVG; equal figures give equal bytes. ``dpi`` applies to rasterized parts."""
    import matplotlib

    from kappaplace.reports.figures import PLOT_STYLE

    buffer = io.BytesIO()
    with matplotlib.rc_context(PLOT_STYLE):  # the salt of names inside the file
        figure.savefig(buffer, format="svg", dpi=dpi, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
