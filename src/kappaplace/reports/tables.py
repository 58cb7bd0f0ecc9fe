"""A table, written as HTML for a page and as LaTeX for a paper."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DIGITS = 3
MISSING = "–"
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
        """
        return cls(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), caption, words=True)

    def html(self) -> str:
        """Return the table as HTML; it scrolls sideways on a narrow screen."""
        kind = ' class="words"' if self.words else ""
        top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self.header)
        body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        # Not a <caption>: it would be as wide as the table, which may be wider than the screen.
        caption = f'<p class="caption">{html.escape(self.caption)}</p>' if self.caption else ""
        kind += f' aria-label="{html.escape(self.caption)}"' if self.caption else ""
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


def number(value: float | None, digits: int = DIGITS) -> str:
    """Return a number as text, or a dash if it is not defined."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def interval(limits: Sequence[float | None] | None) -> str:
    """Return an interval as text, or nothing if it is not defined."""
    if limits is None or any(limit is None or not math.isfinite(limit) for limit in limits):
        return ""
    return f"[{number(limits[0])}, {number(limits[1])}]"


def mark_best(values: Sequence[float], larger: bool) -> list[bool]:
    """Return which numbers are the best.

    Numbers that look the same in print are marked the same. Nothing is marked if all are equal, or if there
    is only one.

    Args:
        values: Numbers of a column.
        larger: Whether larger numbers are better.
    """
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return [False] * len(values)
    best = number(max(finite) if larger else min(finite))
    if all(number(value) == best for value in finite):
        return [False] * len(values)
    return [math.isfinite(value) and number(value) == best for value in values]


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
