"""The von Mises-Fisher distribution on the unit sphere: mathematics only, no images, models or files.

    p(z; μ, κ) = C_d(κ) · exp(κ μᵀz),     z, μ unit vectors in R^d,  κ > 0

`bessel` has the fast closed form that training uses (Amos) and the exact Bessel functions. `distribution`
builds densities, fits, samples and products on them.

Half-precision inputs are computed in float32 and returned as float32, because κ up to 1e6 does not fit into
float16.
"""

from kappaplace.vmf.bessel import bessel_ratio, exact_bessel_ratio, exact_log_partition, log_partition
from kappaplace.vmf.distribution import best_kappa, fit_kappa, fuse, log_normalizer, nll, resultant, sample

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
