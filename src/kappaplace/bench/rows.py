"""One measured comparison: ours, the peer or limit, and their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """What was measured, as a ratio that means the same on every machine."""

    part: str
    """Which part of the bench it belongs to."""
    where: str
    """Model, size and device, or how much of what."""
    what: str
    ours: float
    peer: float
    unit: str
    peer_name: str
    ratio: float
    better: Literal["higher", "lower"]
    """Which way the ratio is good."""
    limit: float | None = None
    """What the ratio must reach, or must not exceed."""

    @property
    def met(self) -> bool | None:
        """Whether the ratio keeps its limit; None without one."""
        if self.limit is None:
            return None
        return self.ratio >= self.limit if self.better == "higher" else self.ratio <= self.limit

    def record(self) -> dict[str, float | int | str]:
        """As a row of a CSV file."""
        values = asdict(self)
        values["limit"] = "" if self.limit is None else self.limit
        values["met"] = {None: "", True: "yes", False: "no"}[self.met]
        return values


HEADER = ("what", "ours", "peer or limit", "ratio", "limit")


def heading(row: Row) -> str:
    """What rows of one section have in common."""
    return f"{row.part}: {row.where}"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table as text."""
    sign = "≥" if row.better == "higher" else "≤"
    asked = "" if row.limit is None else f"{sign} {row.limit:g}{'' if row.met else ', missed'}"
    unit = f" {row.unit}" if row.unit else ""
    return (
        row.what,
        f"{shown(row.ours)}{unit}",
        f"{shown(row.peer)}{unit} ({row.peer_name})",
        f"{row.ratio:.4f}" if 0.9 < row.ratio < 1.1 else f"{row.ratio:.4g}",
        asked,
    )


def shown(value: float) -> str:
    """A number as it is best read."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_text(rows: Sequence[Row]) -> str:
    """The table in plain text, columns aligned."""
    body = [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in [HEADER, *body]) for i in range(len(HEADER))]

    def line(texts: Sequence[str]) -> str:
        return "  ".join(f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()

    lines = [line(HEADER)]
    for i, row in enumerate(rows):
        if i == 0 or heading(row) != heading(rows[i - 1]):
            lines.append(f"-- {heading(row)}")
        lines.append(line(body[i]))
    return "\n".join(lines)
