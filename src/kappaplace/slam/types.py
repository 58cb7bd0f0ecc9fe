"""The input and output of loop closing: frames and closures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kappaplace.data import Poses
from kappaplace.types import Json

if TYPE_CHECKING:
    from kappaplace.data import Source


@dataclass(frozen=True, eq=False)
class Frame:
    """One moment of a drive: an image or its descriptor, and the pose from odometry."""

    descriptor: NDArray[np.floating] | None = None
    """Unit vector, d. Default: computed from the image."""
    kappa: float | None = None
    """Concentration κ of the descriptor; None if the model has no κ."""
    image: Source | None = None
    """A path, a Pillow image or an H×W×3 array."""
    odometry: Poses | None = None
    """Pose in the drifting frame of odometry, as x, y, yaw or x, y, z, qx, qy, qz, qw. None if unknown."""
    time: float = float("nan")
    """Time stamp in seconds."""
    name: str = ""
    """Name of the image in exported files."""


@dataclass(frozen=True, eq=False)
class Closure:
    """A frame that may show the same place as an earlier one, and the decision about it."""

    query: int
    """Index of the frame, counted from 0 in input order."""
    match: int
    """Index of the earlier frame."""
    similarity: float
    """Cosine similarity of the two descriptors."""
    uncertainty: float
    """Uncertainty from the calibration; without a calibration, the raw score."""
    probability: float | None
    """Probability that both frames show the same place; None without a calibration."""
    concentration: float
    """‖κ_Q·z_Q + κ_R·z_R‖ of the two descriptors; NaN without κ."""
    support: int
    """Number of recent proposals that agree with this one, by odometry or by the order of frames."""
    inliers: int | None
    """Number of local features that fit one camera motion; None if it was not checked."""
    accepted: bool
    """Whether the closure may enter the pose graph."""
    reason: str
    """Reason for a rejection in a few words; empty for an accepted closure."""
    relative: Poses
    """Pose of the query relative to the match."""
    sigma: Poses
    """Standard deviations of ``relative`` (m, rad): x, y, yaw or x, y, z and rotations about x, y, z."""
    weight: float = 1.0
    """Information relative to a typical match; ``sigma`` already includes it."""
    agreement: float | None = None
    """Agreement of the patches of both frames, in [0, 1]; None if patches were not matched."""

    @property
    def information(self) -> NDArray[np.float64]:
        """The diagonal information matrix for a pose graph, in the order of ``sigma``."""
        return np.diag(1.0 / self.sigma**2)

    def to_dict(self) -> dict[str, Json]:
        """Convert to plain values for JSON.

        Returns:
            All fields by name; arrays become lists, and NaN becomes None.
        """
        values = asdict(self)
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = [float(number) for number in value]
            elif isinstance(value, float) and not np.isfinite(value):
                values[name] = None
        return values
