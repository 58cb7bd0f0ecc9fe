"""What goes into loop closing and what comes out of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import Poses

if TYPE_CHECKING:
    from kappaplace.data import Source


@dataclass(frozen=True, eq=False)
class Frame:
    """One moment of a drive: an image or its descriptor, and where odometry believes to be."""

    descriptor: NDArray[np.floating] | None = None
    """Unit vector, d; None: made from the image."""
    kappa: float | None = None
    """Concentration of the descriptor, where the model has one."""
    image: Source | None = None
    """A path, a Pillow image or an H×W×3 array."""
    odometry: Poses | None = None
    """Pose in the odometry's own, drifting frame: x, y, yaw or x, y, z, qx, qy, qz, qw; None: unknown."""
    time: float = float("nan")
    """Seconds."""
    name: str = ""


@dataclass(frozen=True, eq=False)
class Closure:
    """A frame that may show the place of an earlier one, and what was decided about it."""

    query: int
    """Number of the frame, counted from 0 as they came."""
    match: int
    """Number of the earlier frame."""
    similarity: float
    uncertainty: float
    """Of the calibration, where there is one; else the score's own."""
    probability: float | None
    """That both show one place; None without a calibration."""
    concentration: float
    """‖κ_Q·z_Q + κ_R·z_R‖ of the two descriptors; NaN without κ."""
    support: int
    """How many of the last proposals agree with this one, by odometry or by the order of frames."""
    inliers: int | None
    """Local features that fit one camera motion; None where nobody looked."""
    accepted: bool
    reason: str
    """Why it was rejected, in a few words; empty for an accepted one."""
    relative: Poses
    """The query's pose as seen from the match."""
    sigma: Poses
    """Standard deviations of ``relative``, 3 (x, y, yaw) or 6 (x, y, z, then about x, y, z), m and rad."""
    weight: float = 1.0
    """Information compared with that of a typical match; ``sigma`` has it in already."""
    agreement: float | None = None
    """Share of the images' cells that agree on one shift; None where nobody looked."""

    @property
    def information(self) -> NDArray[np.float64]:
        """The diagonal matrix that a pose graph wants, in the order of ``sigma``."""
        return np.diag(1.0 / self.sigma**2)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = [float(number) for number in value]
            elif isinstance(value, float) and not np.isfinite(value):
                values[name] = None
        return values
