"""Descriptors of real images for measuring codes: any folder with ref/, query/ and gt.json.

python benchmarks/real_descriptors.py --data DATA --out real_lite0.npz
python benchmarks/real_descriptors.py --data DATA --backbone resnet50_v1 --weights FILE --out real_resnet.npz

All datasets together are one map. The feature map of the backbone (third stage of a ResNet) is pooled by GeM,
centred and projected to 512 dimensions by a PCA fitted on other images (--pca, a folder). This replaces the
last layer of CosPlace without training.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.models.aggregation import gem
from kappaplace.models.backbones import backbone_spec, build_backbone
from kappaplace.models.embedding import embed_images
from kappaplace.types import Embeddings
from record import Option, parse_options

DIM = 512
SETS = ("st_lucia", "nordland_winter_summer", "sped", "gp_dayleft_dayright", "berlin_kudamm")


class Pooled(nn.Module):
    """Feature map → GeM → unit length."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> Embeddings:
        return Embeddings(nn.functional.normalize(gem(self.features(images), 3.0)), None)  # type: ignore[arg-type]


def encoder(name: str, weights: Path | None) -> tuple[nn.Module, Preprocessing]:
    backbone = build_backbone(name, pretrained=weights is None)
    if weights is not None:
        from safetensors.torch import load_file

        backbone.load_state_dict({k: v.float() for k, v in load_file(weights).items()}, strict=False)
        backbone.layer4 = nn.Identity()
    spec = backbone_spec(name)
    return Pooled(backbone), Preprocessing((224, 320), "exact", mean=spec.mean, std=spec.std)


def embed(model: nn.Module, preprocessing: Preprocessing, files: list[Path]) -> NDArray[np.float32]:
    return embed_images(model, preprocessing, [str(file) for file in files], batch_size=16).descriptor


def images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in (".webp", ".jpg", ".png"))


def projection(sample: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and the strongest directions, divided by the square root of their energy."""
    mean = sample.mean(0)
    _, size, directions = np.linalg.svd(sample - mean, full_matrices=False)
    return mean, (directions[:DIM] / np.sqrt(size[:DIM, None])).T.astype(np.float32)


def main() -> None:
    options = parse_options(
        __doc__,
        data=Option(Path, required=True),
        pca=Option(Path, help="folder of images for the PCA; default: DATA/tmbud/images"),
        backbone="efficientnet_lite0",
        weights=Option(Path, help="weights file; default: pretrained weights of the backbone"),
        out=Option(Path, required=True),
    )
    model, preprocessing = encoder(options.backbone, options.weights)
    mean, turn = projection(
        embed(model, preprocessing, images(options.pca or options.data / "tmbud" / "images"))
    )

    def project(files: list[Path]) -> NDArray[np.float32]:
        with torch.inference_mode():
            wide = (embed(model, preprocessing, files) - mean) @ turn
        return wide / np.linalg.norm(wide, axis=1, keepdims=True)

    references, queries, owners, positives = [], [], [], []
    done = 0
    for number, name in enumerate(SETS):
        truth = json.loads((options.data / name / "gt.json").read_text(encoding="utf-8"))["positives"]
        references.append(project(images(options.data / name / "ref")))
        queries.append(project(images(options.data / name / "query")))
        owners += [number] * len(queries[-1])
        positives += [np.array(rows, np.int64) + done for rows in truth]
        done += len(references[-1])
    np.savez(
        options.out,
        references=np.concatenate(references),
        queries=np.concatenate(queries),
        owners=np.array(owners),
        counts=np.array([len(rows) for rows in positives]),
        positives=np.concatenate(positives),
        sets=np.array(SETS),
    )


if __name__ == "__main__":
    main()
