"""The von Mises-Fisher distribution on the unit sphere: mathematics only, no images, models or files.

    p(z; μ, κ) = C_d(κ) · exp(κ μᵀz),     z, μ unit vectors in R^d,  κ > 0

`amos` has the fast closed form that training uses and `bessel` the exact Bessel functions. `density` builds
on either of them. `sampling` generates samples and multiplies several distributions.

Half-precision inputs are computed in float32 and returned as float32, because κ up to 1e6 does not fit into
float16.
"""

from kappaplace.vmf.amos import bessel_ratio, log_partition
from kappaplace.vmf.bessel import exact_bessel_ratio, exact_log_partition
from kappaplace.vmf.density import best_kappa, fit_kappa, log_normalizer, nll
from kappaplace.vmf.sampling import fuse, resultant, sample

__all__ = [
    "bessel_ratio",
    "best_kappa",
    "exact_bessel_ratio",
    "exact_log_partition",
    "fit_kappa",
    "fuse",
    "log_normalizer",
    "log_partition",
    "nll",
    "resultant",
    "sample",
]
