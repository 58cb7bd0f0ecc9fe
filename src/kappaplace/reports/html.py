"""One self-contained HTML page: no script, no outside address, readable on a phone and in print."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; }
body { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
.lead { color: #444; margin-top: 0; }
figure { margin: 1rem 0; }
figure img { width: 100%; height: auto; }
figcaption { color: #444; font-size: .92rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
@media (max-width: 40rem) { th, td { padding: .25rem .4rem; font-size: .9rem; } }
@media print { h2, figure { break-inside: avoid; } }
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """The whole document; ``sections`` are pieces of HTML made by the functions below."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="lead">{html.escape(lead)}</p>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A section's title."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Plain words."""
    return f"<p>{html.escape(text)}</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Numbers in rows; scrolls sideways on a narrow screen."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(png: bytes, alternative: str, how_to_read: str) -> str:
    """A figure with the sentence that says how to read it."""
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{html.escape(how_to_read)}</figcaption></figure>"
    )


def png_of(figure: Figure, dpi: int = 130) -> bytes:
    """A figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
