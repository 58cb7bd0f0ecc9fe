"""`load_model`: one way to any model, from a folder, a weights file or a name."""

from __future__ import annotations

from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import load_checkpoint
from kappaplace.models.foreign import load_foreign
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.hub import HUB, fetch, load_torch_hub
from kappaplace.models.place_model import PlaceModel


def load_model(
    source: str | Path, *, dim: int | None = None, backbone: str | None = None
) -> PlaceModel | FrozenEncoder:
    """Load a model for inference.

    ``source`` is a folder written by `save_model`, a foreign weights file, or a name that
    ``kappaplace models`` lists. ``dim`` refuses any other descriptor dimension; ``backbone`` overrides what
    is recognised from a foreign file (``resnet50_v1`` cannot be told from ``resnet50`` by its weights).
    """
    path = Path(source)
    if path.is_dir():
        return load_checkpoint(path, dim=dim)[0]
    if path.is_file():
        return load_foreign(path, dim=dim, backbone=backbone)
    hub = HUB.get(str(source))
    if hub is None:
        raise KappaPlaceError(
            f"No model '{source}': it is neither a folder, nor a weights file, nor a known name; "
            "`kappaplace models` lists the names."
        )
    if hub.kind == "torch.hub":
        return load_torch_hub(hub)
    return load_foreign(fetch(hub), dim=dim)
