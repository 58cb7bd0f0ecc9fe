"""What κ costs in time, memory and parameters, against the same model without it, in one run.

python benchmarks/overhead.py [--backbone resnet50] [--size 512] [--ways auto compiled] [--csv FILE]
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch

from kappaplace.bench.overhead import Setting, measure_overhead
from kappaplace.bench.rows import as_text
from record import append_row


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="resnet50" if device.type == "cuda" else "efficientnet_lite0")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=200 if device.type == "cuda" else 40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=20 if device.type == "cuda" else 3)
    parser.add_argument("--ways", nargs="*", default=["auto"])
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    setting = Setting(given.backbone, given.size, device, given.runs, given.rounds, given.warm_up)
    rows = measure_overhead(setting, given.ways, partial(print, flush=True))
    print(as_text(rows))
    for row in rows if given.csv else []:
        append_row(given.csv, row.record())


if __name__ == "__main__":
    main()
