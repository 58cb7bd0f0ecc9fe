"""From files to descriptors against the model alone, and which stage holds the rest up."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from kappaplace.bench.photos import write_photos
from kappaplace.bench.rows import Row
from kappaplace.bench.timing import interleaved, ratio
from kappaplace.data.images import Preprocessing
from kappaplace.data.resample import resized
from kappaplace.models.embedding import Upload, embed_images, loader_for

PART = "embedding"
CPU_LIMIT, GPU_LIMIT = 0.9, 0.8
PHOTO = (640, 480)


def measure_pipeline(
    model: nn.Module,
    preprocessing: Preprocessing,
    name: str,
    device: torch.device,
    *,
    images: int = 64,
    batch_size: int = 32,
    rounds: int = 3,
) -> list[Row]:
    """Images a second from disk to descriptors; each stage alone over the same images, in turn with it."""
    model = model.to(device).eval()
    height, width = preprocessing.fixed_size or (512, 512)
    batches = [batch_size] * (images // batch_size) + [images % batch_size] * (images % batch_size > 0)
    ready = preprocessing.normalise(_noise(batch_size, (height, width)).to(device))
    ready = ready.to(next(model.parameters()).dtype)
    upload = Upload(device)

    @torch.inference_mode()
    def model_alone() -> None:
        for count in batches:
            model(ready[:count])

    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), images, PHOTO)
        left = loader_for(paths, preprocessing, batch_size, device).unresized
        pixels = _noise(batch_size, left or (height, width))

        def decode() -> None:
            loader = loader_for(paths, preprocessing, batch_size, device)
            assert sum(len(batch.rows) for batch in loader) == images

        @torch.inference_mode()
        def transfer() -> None:
            for count in batches:
                moved = upload(pixels[:count])
                preprocessing.normalise(moved if left is None else resized(moved, preprocessing))

        whole = partial(
            embed_images, model, preprocessing, [str(p) for p in paths], batch_size=batch_size, progress=False
        )
        stages = {"model": model_alone, "decode": decode, "transfer": transfer}
        taken = interleaved({"all": whole, **stages}, device, runs=1, rounds=rounds, warm_up=1)
    where = f"{name}, {height}×{width}, {device.type}"
    limit = GPU_LIMIT if device.type == "cuda" else CPU_LIMIT
    sent = "transfer and resizing alone" if left else "transfer alone"
    return _rows(taken, images, where, limit, {"decode": "decode alone", "transfer": sent})


def _rows(
    taken: Mapping[str, list[float]], images: int, where: str, limit: float, names: Mapping[str, str]
) -> list[Row]:
    """The whole, with the stage that holds it up, and then the other stages by name."""
    rate = {stage: images / statistics.median(values) for stage, values in taken.items()}
    slowest = min(("model", *names), key=lambda stage: rate[stage])
    titles = {"all": f"disk to descriptors; bottleneck: {slowest}", **names}
    return [
        Row(
            PART,
            where,
            title,
            rate[stage],
            rate["model"],
            "images/s",
            "model alone",
            ratio(taken["model"], taken[stage]),
            "higher",
            limit if stage == "all" else None,
        )
        for stage, title in titles.items()
    ]


def _noise(count: int, size: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 256, (count, *size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
