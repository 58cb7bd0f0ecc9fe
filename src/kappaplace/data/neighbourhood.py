"""What counts as "near" on a map: metres, frames of a route, or the image itself.

Margin, aliasing, SUE and leave-out all need to know which references show the same place as another one.
Every set states it once, here, and every method asks the same question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from kappaplace.errors import KappaPlaceError

Kind = Literal["metres", "frames", "self"]
FARTHEST = 1e9
"""Metres or frames: more than any two places on Earth, and a number that can be squared."""


@dataclass(frozen=True)
class Neighbourhood:
    """Two references are near when they lie within ``value`` metres or frames, or are the same image."""

    kind: Kind = "metres"
    value: float = 25.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise KappaPlaceError(
                f"Neighbourhood kind {self.kind!r} is unknown: choose metres, frames or self."
            )
        value = 0.0 if self.kind == "self" else float(self.value)
        if not 0.0 <= value <= FARTHEST:
            raise KappaPlaceError(
                f"A neighbourhood of {self.value} {self.kind} is not a finite size from 0 to {FARTHEST:.0e}."
            )
        object.__setattr__(self, "value", value)

    @classmethod
    def parse(cls, text: str) -> Neighbourhood:
        """Read ``metres:25``, ``frames:5`` or ``self``.

        >>> Neighbourhood.parse("frames:5")
        Neighbourhood(kind='frames', value=5.0)
        """
        kind, _, value = text.partition(":")
        if kind != "self" and not value:
            raise KappaPlaceError(
                f"Neighbourhood {text!r} lacks its size: write metres:25, frames:5 or self."
            )
        try:
            return cls(kind, float(value or 0))  # type: ignore[arg-type]
        except ValueError:
            raise KappaPlaceError(f"Neighbourhood {text!r}: {value!r} is not a number.") from None

    def __str__(self) -> str:
        return self.kind if self.kind == "self" else f"{self.kind}:{self.value:g}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "value": self.value}
