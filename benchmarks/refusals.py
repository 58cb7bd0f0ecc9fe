"""How often is a risk refused that the answers keep, and how much is accepted, if a confident label is
incorrect?

python benchmarks/refusals.py --csv results/refusals.csv

125 labelled queries, of which about 9% are answered incorrectly, mostly those with a high uncertainty; a risk
of 20% with 90% confidence; half of the queries set the threshold. In the second row, the label of the most
confident one is incorrect. A refusal names a number of labels: with that many, drawn again and with the same
fraction of incorrect labels, the risk is granted in the fraction "granted at the number named". If the sample
does not show that a number is enough, the refusal names none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kappaplace.calibration.examples import Examples
from kappaplace.calibration.fit import fit_calibration
from kappaplace.calibration.options import CalibrateOptions
from kappaplace.calibration.risk import METHODS, RiskRefused
from record import append_row

QUERIES, SEEDS, AGAIN = 125, 20, 20
MAX_RISK, CONFIDENCE = 0.2, 0.9


def trial(seed: int, method: str, incorrect_labels: int, queries: int = QUERIES) -> float | int | None:
    """Return the fraction accepted; if the risk is refused, the number of labels that the refusal names."""
    rng = np.random.default_rng(seed)
    uncertainty = rng.random(queries)
    right = rng.random(queries) >= 0.26 * uncertainty**2
    right[np.argsort(uncertainty)[: round(incorrect_labels * queries / QUERIES)]] = False
    options = CalibrateOptions(MAX_RISK, CONFIDENCE, method=method, seed=seed)
    try:
        calibration = fit_calibration(Examples(uncertainty, right, ["margin"]), options)
    except RiskRefused as refusal:
        return refusal.needed
    assert calibration.rule is not None
    assert calibration.rule.accepted is not None
    return calibration.rule.accepted.coverage


def main() -> None:
    """Print and store one row per method and number of incorrect labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    for incorrect in (0, 1, 2):
        for method in METHODS:
            outcomes = [trial(seed, method, incorrect) for seed in range(SEEDS)]
            coverage = [each for each in outcomes if isinstance(each, float)]
            named = [each for each in outcomes if isinstance(each, int)]
            again = [
                isinstance(trial(SEEDS + seed, method, incorrect, number), float)
                for number in named
                for seed in range(AGAIN)
            ]
            row: dict[str, object] = {
                "method": method,
                "incorrect labels": incorrect,
                "trials": SEEDS,
                "refused": SEEDS - len(coverage),
                "accepted": round(sum(coverage) / SEEDS, 3),
                "labels named": int(np.median(named)) if named else "",
                "granted at the number named": round(float(np.mean(again)), 2) if again else "",
            }
            print(row)
            if arguments.csv:
                append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
