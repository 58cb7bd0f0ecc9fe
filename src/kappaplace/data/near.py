"""What counts as "near" on a map: metres, frames of a route, or the image itself.

Margin, aliasing, SUE and leave-out all need to know which references show the same place as another one.
`Neighborhood` states the rule of a dataset, `Near` answers it for rows of references, and `within` is the
one formula for a distance: every other part of the package asks here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

Numbers: TypeAlias = NDArray[Any]
Circle: TypeAlias = tuple[float, float, float]
"""x, y and radius in metres, rim included."""
Rule: TypeAlias = tuple[Sequence[Numbers] | Numbers, float, Numbers | None]
"""Columns (none: the row numbers themselves), how much they may differ, and routes that must be the same."""
Kind = Literal["metres", "frames", "self"]
FARTHEST = 1e9
"""Metres or frames: more than any two places on Earth, and a number that can be squared."""
LARGEST = 1e150
"""A radius that can still be squared."""


@dataclass(frozen=True)
class Neighborhood:
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
    def parse(cls, text: str) -> Neighborhood:
        """Read ``metres:25``, ``frames:5`` or ``self``.

        >>> Neighborhood.parse("frames:5")
        Neighborhood(kind='frames', value=5.0)
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


def within(gaps: Sequence[Numbers], reach: ArrayLike) -> NDArray[np.bool_]:
    """Return whether gaps along each axis add up to at most ``reach``; what is NaN or too far is not within.

    >>> within([np.array([3.0, np.nan]), np.array([4.0, 0.0])], 5.0).tolist()
    [True, False]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if len(gaps) == 1:  # frames and distances travelled: not squared, so that nothing is rounded
            return np.asarray(np.abs(gaps[0]) <= reach)
        return np.asarray(sum(gap**2 for gap in gaps) <= np.square(reach))


class Near:
    """Which references show one place: ``near(a, b)`` for rows that broadcast against each other.

    An image is always near itself. An image without a position (NaN) is near nothing else in metres, and
    frames of different routes are never near each other. The columns are kept as they are, not copied: what
    changes in them changes the answer.
    """

    def __init__(self, *rules: Rule, positions: Numbers | None = None) -> None:
        """Rows are near if any of the rules says so; build one with the class methods."""
        self._rules, self.positions = rules, positions

    @classmethod
    def metres(cls, positions: Numbers, radius: float, travelled: Numbers | None = None) -> Near:
        """Rows whose positions (N×2 or N×3) are at most ``radius`` metres apart.

        With ``travelled``, metres along a drive, also those that were passed shortly after each other: this
        holds whatever is believed of their positions.
        """
        along: list[Rule] = [] if travelled is None else [([travelled], radius, None)]
        return cls((positions.T, radius, None), *along, positions=positions)

    @classmethod
    def frames(cls, reach: float, numbers: Numbers | None = None, routes: Numbers | None = None) -> Near:
        """Rows at most ``reach`` frames apart on one route; without numbers the rows are the frames."""
        return cls(([] if numbers is None else [numbers], reach, routes))

    @classmethod
    def of(
        cls,
        neighborhood: Neighborhood,
        positions: Callable[[], Numbers],
        frames: Callable[[], Iterable[Numbers]],
    ) -> Near:
        """The rule of a dataset; only the column that it needs is read: positions, or numbers and routes."""
        if neighborhood.kind == "metres":
            return cls.metres(positions(), neighborhood.value)
        return cls.frames(neighborhood.value, *frames()) if neighborhood.kind == "frames" else cls()

    def __call__(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.bool_]:
        """Return whether rows ``a`` and ``b`` show one place."""
        a, b = np.asarray(a), np.asarray(b)
        near = np.asarray(a == b)
        for columns, reach, routes in self._rules:
            close = within([column[a] - column[b] for column in columns] or [np.subtract(a, b)], reach)
            near = near | (close if routes is None else close & (routes[a] == routes[b]))
        return near

    def within(self, circle: Circle) -> NDArray[np.int64]:
        """Return the rows whose position lies within the circle, ascending."""
        if self.positions is None:
            raise KappaPlaceError("This map has no positions: search without a place to be near.")
        x, y, radius = circle
        tree, placed = self._tree
        # The tree rounds in its own way: it is asked a little wider, and the one formula decides.
        found = tree.query_ball_point((x, y), radius * (1 + 1e-9) + 1e-9)
        rows = np.sort(placed[np.array(found, np.int64)])
        at = np.asarray(self.positions[rows], np.float64)
        return rows[within([at[:, 0] - x, at[:, 1] - y], radius)]

    @cached_property
    def _tree(self) -> tuple[cKDTree, NDArray[np.int64]]:
        from scipy.spatial import cKDTree

        positions = np.asarray(self.positions, np.float64)[:, :2]
        placed = np.flatnonzero(np.isfinite(positions).all(axis=1))
        # Neither balanced nor compact: built several times faster, and no slower on streets.
        return cKDTree(positions[placed], balanced_tree=False, compact_nodes=False), placed


def checked_circle(area: Circle) -> Circle:
    try:
        x, y, radius = map(float, area)
    except (TypeError, ValueError):
        raise KappaPlaceError(f"The area to search must be x, y and a radius, got {area!r}.") from None
    if not all(map(math.isfinite, (x, y, radius))) or radius < 0:
        raise KappaPlaceError(
            f"The area to search needs a finite x and y and a radius of at least 0, got {area}."
        )
    return x, y, min(radius, LARGEST)
