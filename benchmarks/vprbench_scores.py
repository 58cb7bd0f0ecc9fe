"""Every score that a similarity matrix allows, for the ten methods of two VPR-Bench sets.

    python benchmarks/vprbench_scores.py --data DATA/scores_vprbench --csv results/vprbench_scores.csv

DATA/scores_vprbench holds SPEDTEST.npz and corridor.npz (cosines of queries × references, one matrix a
method) and the positives beside them. The same by hand: kappaplace evaluate --similarities SPEDTEST.npz
--positives SPEDTEST_positives.json --neighbourhood self --out DIR.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kappaplace.evaluation.arrays import Labels, evaluate_matrices
from kappaplace.evaluation.run import Choices
from record import append_row

NEIGHBORHOODS = {"SPEDTEST": "self", "corridor": "frames:5"}  # single places; one route of 111 frames
METRICS = ("AUROC", "AURC", "AUGRC", "coverage@10%", "ECE@1", "ECE@5", "ECE@10", "match ECE@10")
# R@1 on SPED, as published with these matrices.
SPED = {
    "AMOSNet": 0.794,
    "HybridNet": 0.794,
    "denseVLAD": 0.728,
    "NetVLAD": 0.679,
    "RegionVLAD": 0.567,
    "ap-gem-r101": 0.517,
    "AlexNet_VPR": 0.516,
    "HOG": 0.499,
    "CoHOG": 0.494,
    "CALC": 0.427,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--csv", type=Path, help="append the results to this file as dated rows")
    arguments = parser.parse_args()
    for i, word in enumerate(sys.argv):  # rows name no machine's folders
        if word == str(arguments.data):
            sys.argv[i] = f"DATA/{arguments.data.name}"
    wrong = []
    for name, neighborhood in NEIGHBORHOODS.items():
        labels = Labels([arguments.data / f"{name}_positives.json"], neighborhood=neighborhood)
        choices = Choices(resamples=arguments.resamples)
        for result in evaluate_matrices([arguments.data / f"{name}.npz"], labels, choices):
            found = result.metrics[name]
            recall = {f"R@{k}": found["recall"][f"R@{k}"] for k in (1, 5, 10)}
            print(f"{name:10}{result.name:14}" + "".join(f"{k} {v:.3f}  " for k, v in recall.items()))
            if name == "SPEDTEST" and round(recall["R@1"], 3) != SPED[result.name]:
                wrong.append(result.name)
            for score, metrics in found["scores"].items():
                low, high = found["intervals"]["scores"][score]["AUROC"]
                values = {metric: metrics[metric] for metric in METRICS if metric in metrics}
                blank = dict.fromkeys(METRICS, "")
                row = {"set": name, "method": result.name, **recall, "score": score, **(blank | values)}
                if arguments.csv:
                    append_row(arguments.csv, {**row, "AUROC_low": low, "AUROC_high": high})
    if wrong:
        sys.exit(f"R@1 on SPED is not the published one for {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
