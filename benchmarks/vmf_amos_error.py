"""Error of the Amos approximation of the von Mises-Fisher distribution, as Markdown tables.

python benchmarks/vmf_amos_error.py
"""

from collections.abc import Callable

from kappaplace import vmf

DIMS = [2, 8, 64, 256, 512, 2048, 8192]
KAPPAS = [0.01, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]


def ratio_error(dim: int, kappa: float) -> float:
    """Return the relative error of the mean cosine for κ."""
    return vmf.bessel_ratio(kappa, dim).item() / vmf.exact_bessel_ratio(kappa, dim).item() - 1


def kappa_error(dim: int, kappa: float) -> float:
    """Return the relative error of the best κ for descriptors with concentration κ."""
    cosine = vmf.exact_bessel_ratio(kappa, dim)
    return vmf.best_kappa(cosine, dim, max_kappa=1e9).item() / kappa - 1


def table(title: str, error: Callable[[int, float], float]) -> str:
    head = [f"| {title} | " + " | ".join(f"κ = {kappa:g}" for kappa in KAPPAS) + " |"]
    rule = ["|---|" + "---:|" * len(KAPPAS)]
    rows = [f"| d = {dim} | " + " | ".join(f"{error(dim, k):+.1e}" for k in KAPPAS) + " |" for dim in DIMS]
    return "\n".join(head + rule + rows)


if __name__ == "__main__":
    print(table("ratio", ratio_error))
    print()
    print(table("best κ", kappa_error))
