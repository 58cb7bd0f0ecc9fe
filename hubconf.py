"""Entry points of ``torch.hub``: ``torch.hub.load(REPOSITORY, "kappaplace_lite0")``.

What comes back is a `kappaplace.PlaceModel` in evaluation mode: a normalised image batch in, descriptor B×512
and κ B out; ``model.embed(paths)`` does the preprocessing, too.
"""

import sys as _sys
from pathlib import Path as _Path
from typing import Any as _Any

dependencies = ["torch", "numpy", "PIL", "safetensors", "rich"]

# The code of this very repository, whether or not it is installed.
_sys.path.insert(0, str(_Path(__file__).parent / "src"))


def kappaplace_lite0(pretrained: bool = True) -> _Any:
    """EfficientNet-Lite0, 512 dimensions, κ from several layers; weights are part of the repository.

    ``pretrained=False`` gives the same architecture with fresh weights.
    """
    from kappaplace import PlaceModel, load_model

    model = load_model("kappaplace-lite0")
    if pretrained:
        return model
    return PlaceModel(model.architecture, model.preprocessing).eval()


def kappaplace_model(source: str) -> _Any:
    """Any model of ``kappaplace.load_model``: a name that ``kappaplace models`` lists, a folder, a file."""
    from kappaplace import load_model

    return load_model(source)
