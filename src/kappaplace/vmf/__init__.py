"""The von Mises-Fisher distribution on the unit sphere, alone: no images, no models, no I/O.

    p(z; μ, κ) = C_d(κ) · exp(κ μᵀz),     z, μ unit vectors in R^d,  κ > 0

`amos` holds the cheap closed form that training uses, `bessel` the exact Bessel functions, `density` what is
built on either of them, `sampling` random draws and the product of several distributions.

Half-precision inputs are computed in, and returned as, float32: κ up to 1e6 does not fit into float16.
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
