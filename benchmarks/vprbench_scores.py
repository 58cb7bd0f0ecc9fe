"""All scores of a similarity matrix, for the ten methods of two VPR-Bench datasets.

    python benchmarks/vprbench_scores.py --data DATA/scores_vprbench --csv results/vprbench_scores.csv

DATA/scores_vprbench contains SPEDTEST.npz and corridor.npz (cosines of queries × references, one matrix per
method) and their positives. The same on the command line: kappaplace evaluate --similarities SPEDTEST.npz
--positives SPEDTEST_positives.json --neighbourhood self --out DIR.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kappaplace.evaluation.arrays import Labels, evaluate_matrices
from kappaplace.evaluation.run import Choices
from record import Option, append_row, parse_options

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
    arguments = parse_options(__doc__, data=Option(Path, required=True), resamples=1000, csv=Path)
    for i, word in enumerate(sys.argv):  # rows do not contain local paths
        if word == str(arguments.data):
            sys.argv[i] = f"DATA/{arguments.data.name}"
    different = []
    for name, neighborhood in NEIGHBORHOODS.items():
        labels = Labels([arguments.data / f"{name}_positives.json"], neighborhood=neighborhood)
        choices = Choices(resamples=arguments.resamples)
        for result in evaluate_matrices([arguments.data / f"{name}.npz"], labels, choices):
            values = result.metrics[name]
            recall = {f"R@{k}": values["recall"][f"R@{k}"] for k in (1, 5, 10)}
            print(f"{name:10}{result.name:14}" + "".join(f"{k} {v:.3f}  " for k, v in recall.items()))
            if name == "SPEDTEST" and round(recall["R@1"], 3) != SPED[result.name]:
                different.append(result.name)
            for score, metrics in values["scores"].items():
                low, high = values["intervals"]["scores"][score]["AUROC"]
                columns = {metric: metrics.get(metric, "") for metric in METRICS}
                row = {"set": name, "method": result.name, **recall, "score": score, **columns}
                append_row(arguments.csv, {**row, "AUROC_low": low, "AUROC_high": high})
    if different:
        sys.exit(f"R@1 on SPED differs from the published value for {', '.join(different)}.")


if __name__ == "__main__":
    main()
