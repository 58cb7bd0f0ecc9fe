"""Post-training over the same views: cached features against the direct loop, in one run.

python benchmarks/cached_pt.py [--images 8192] [--epochs 30] [--batch 32] [--ways WAYS] [--csv FILE]

Both see every view in the same order and end with the same κ, which is printed. A first short run of each
kind, not counted, lets compilers and memory pools warm up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from kappaplace.bench.training import WAYS, post_training
from kappaplace.models.place_model import PlaceModel
from record import append_row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    encoder = PlaceModel.create(arguments.backbone, 512, "none").eval()
    found = post_training(
        encoder,
        {name: WAYS[name] for name in arguments.ways.split(",")},
        device,
        images=arguments.images,
        epochs=arguments.epochs,
        batch=arguments.batch,
        size=arguments.size,
    )
    seconds = {name: took for name, (took, _) in found.items()}
    results = {name: kappa for name, (_, kappa) in found.items()}
    for name in found:
        print(f"{name:<18} {seconds[name]:8.2f} s   mean κ {float(results[name].mean()):.4f}", flush=True)
    row: dict[str, float | int | str] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "backbone": arguments.backbone,
        "images": arguments.images,
        "epochs": arguments.epochs,
        "batch": arguments.batch,
        "size": arguments.size,
        **{f"{name} (s)": value for name, value in seconds.items()},
    }
    for name, title in (("direct", "direct / cached"), ("direct fp32 eager", "fp32 eager / cached")):
        if name in seconds:
            row[title] = seconds[name] / seconds["cached"]
            apart = (results["cached"] - results[name]).abs() / results[name]
            row[f"largest difference of κ, cached and {name}"] = float(apart.max())
    print(row)
    if arguments.csv:
        append_row(arguments.csv, row)


if __name__ == "__main__":
    main()
