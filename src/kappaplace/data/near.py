"""Rules for which references show the same place: within some metres, within some frames, or only itself.

Margin, aliasing, SUE and self-calibration depend on them. `Neighborhood` is the rule of a dataset, and `Near`
applies it to rows of references. All distances in the package are compared by `within`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kappaplace.checks import choice
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

Numbers: TypeAlias = NDArray[np.number]
Circle: TypeAlias = tuple[float, float, float]
"""Circle as x, y and radius in metres; points on the rim are inside."""
Rule: TypeAlias = tuple[Sequence[Numbers] | Numbers, float, Numbers | None]
"""Columns to compare (empty for row numbers), their largest difference, and routes that must be equal."""
Kind = Literal["metres", "frames", "self"]
FARTHEST = 1e9
"""Largest size of a neighborhood in metres or frames: more than any distance on Earth."""
LARGEST = 1e150
"""Largest radius whose square is still finite."""


@dataclass(frozen=True)
class Neighborhood:
    """Rule that decides which references show the same place."""

    kind: Kind = "metres"
    """References that show the same place: "metres" (within a distance), "frames" (within a number of frames
    of the same route) or "self" (only the reference itself)."""
    value: float = 25.0
    """The distance in metres or frames, inclusive; 0 for "self"."""

    def __post_init__(self) -> None:
        choice(self.kind, Kind, "kind of neighborhood")
        value = 0.0 if self.kind == "self" else float(self.value)
        if not 0.0 <= value <= FARTHEST:
            raise KappaPlaceError(
                f"The neighborhood must have a finite size from 0 to {FARTHEST:.0e} {self.kind}, "
                f"got {self.value}."
            )
        object.__setattr__(self, "value", value)

    @classmethod
    def parse(cls, text: str) -> Neighborhood:
        """Parse the text form of a neighborhood.

        >>> Neighborhood.parse("frames:5")
        Neighborhood(kind='frames', value=5.0)

        Args:
            text: Such as ``metres:25``, ``frames:5`` or ``self``.

        Returns:
            The neighborhood.

        Raises:
            KappaPlaceError: If the text has another form.
        """
        kind, _, value = text.partition(":")
        if kind != "self" and not value:
            raise KappaPlaceError(f"Neighborhood {text!r} has no size. Write metres:25, frames:5 or self.")
        try:
            return cls(kind, float(value or 0))  # type: ignore[arg-type]
        except ValueError:
            raise KappaPlaceError(
                f"Neighborhood {text!r} must have a number as its size. Write metres:25, frames:5 or self."
            ) from None

    def __str__(self) -> str:
        return self.kind if self.kind == "self" else f"{self.kind}:{self.value:g}"


def within(gaps: Sequence[Numbers], reach: ArrayLike) -> NDArray[np.bool_]:
    """Return whether points are at most a distance apart; points with NaN never are.

    >>> within([np.array([3.0, np.nan]), np.array([4.0, 0.0])], 5.0).tolist()
    [True, False]

    Args:
        gaps: Difference along each axis.
        reach: Largest distance, inclusive.

    Returns:
        Booleans, of the shape of the differences.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if len(gaps) == 1:  # frames and distances travelled: not squared, to avoid rounding
            return np.asarray(np.abs(gaps[0]) <= reach)
        return np.asarray(sum(gap**2 for gap in gaps) <= np.square(reach))


class Near:
    """Rule that decides whether references show the same place: ``near(a, b)`` for rows that broadcast.

    An image is always near itself. By metres, an image without a position (NaN) is near no other image;
    frames of different routes are never near each other. The columns are not copied: changing them changes
    the result.

    Args:
        *rules: Rules, built by the class methods. Rows are near if at least one rule applies.
        positions: Position of each row in metres, N×2 or N×3. Default: unknown.
    """

    def __init__(self, *rules: Rule, positions: Numbers | None = None) -> None:
        self._rules, self.positions = rules, positions

    @classmethod
    def meters(cls, positions: Numbers, radius: float, traveled: Numbers | None = None) -> Near:
        """Return the rule that compares positions.

        Args:
            positions: Position of each row in metres, N×2 or N×3.
            radius: Largest distance in metres.
            traveled: Metres along a drive, N. Rows that were passed within ``radius`` metres of driving are
                then near, too, whatever their estimated positions are.

        Returns:
            The rule.
        """
        along: list[Rule] = [] if traveled is None else [([traveled], radius, None)]
        return cls((positions.T, radius, None), *along, positions=positions)

    @classmethod
    def frames(cls, reach: float, numbers: Numbers | None = None, routes: Numbers | None = None) -> Near:
        """Return the rule that compares frame numbers.

        Args:
            reach: Largest number of frames between two rows.
            numbers: Frame number of each row, N. Default: the row number.
            routes: Route of each row, N. Default: all rows are of the same route.

        Returns:
            The rule.
        """
        return cls(([] if numbers is None else [numbers], reach, routes))

    @classmethod
    def of(
        cls,
        neighborhood: Neighborhood,
        positions: Callable[[], Numbers],
        frames: Callable[[], Iterable[Numbers]],
    ) -> Near:
        """Return the rule of a dataset. Only the columns that it needs are loaded.

        Args:
            neighborhood: The rule.
            positions: Function that returns the positions in metres, N×2.
            frames: Function that returns frame numbers and routes, N each.

        Returns:
            The rule for these rows.
        """
        if neighborhood.kind == "metres":
            return cls.meters(positions(), neighborhood.value)
        return cls.frames(neighborhood.value, *frames()) if neighborhood.kind == "frames" else cls()

    def __call__(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.bool_]:
        """Return whether rows ``a`` and ``b`` show the same place."""
        a, b = np.asarray(a), np.asarray(b)
        near = np.asarray(a == b)
        for columns, reach, routes in self._rules:
            close = within([column[a] - column[b] for column in columns] or [np.subtract(a, b)], reach)
            near = near | (close if routes is None else close & (routes[a] == routes[b]))
        return near

    def within(self, circle: Circle) -> NDArray[np.int64]:
        """Find the rows inside a circle.

        Args:
            circle: x, y and radius in metres.

        Returns:
            Row numbers, ascending.

        Raises:
            KappaPlaceError: If positions are unknown.
        """
        if self.positions is None:
            raise KappaPlaceError("This map has no positions, so it cannot search an area. Omit the area.")
        x, y, radius = circle
        tree, rows = self._tree
        # The tree rounds differently, so it gets a slightly larger radius, and `within` decides.
        candidates = tree.query_ball_point((x, y), radius * (1 + 1e-9) + 1e-9)
        rows = np.sort(rows[np.array(candidates, np.int64)])
        points = np.asarray(self.positions[rows], np.float64)
        return rows[within([points[:, 0] - x, points[:, 1] - y], radius)]

    @cached_property
    def _tree(self) -> tuple[cKDTree, NDArray[np.int64]]:
        from scipy.spatial import cKDTree

        positions = np.asarray(self.positions, np.float64)[:, :2]
        rows = np.flatnonzero(np.isfinite(positions).all(axis=1))
        # Neither balanced nor compact: several times faster to build, and not slower for streets.
        return cKDTree(positions[rows], balanced_tree=False, compact_nodes=False), rows


def checked_circle(area: Circle) -> Circle:
    """Return the circle as floats, with a radius of at most `LARGEST`.

    Raises:
        KappaPlaceError: If it is not three finite numbers, or the radius is negative.
    """
    try:
        x, y, radius = map(float, area)
    except (TypeError, ValueError):
        raise KappaPlaceError(f"area must be x, y and a radius, got {area!r}.") from None
    if not all(map(math.isfinite, (x, y, radius))) or radius < 0:
        raise KappaPlaceError(f"area must have a finite x and y and a radius of at least 0, got {area}.")
    return x, y, min(radius, LARGEST)
