"""Entry points of ``torch.hub``: ``torch.hub.load(REPOSITORY, "kappaplace_lite0")``.

They return a `kappaplace.PlaceModel` in evaluation mode, which computes descriptors B×512 and κ of shape B
from a batch of normalized images. ``model.embed(paths)`` also does the preprocessing.
"""

import sys as _sys
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from kappaplace.models.checkpoint import AnyModel as _AnyModel
    from kappaplace.models.place_model import PlaceModel as _PlaceModel

dependencies = ["torch", "numpy", "PIL", "safetensors", "rich"]

# Use the code of this repository even if another version is installed.
_sys.path.insert(0, str(_Path(__file__).parent / "src"))


def kappaplace_lite0(pretrained: bool = True) -> "_PlaceModel":
    """Return the small pretrained model: EfficientNet-Lite0, 512 dimensions, κ from several layers.

    Args:
        pretrained: Load the weights, which are part of the repository. Otherwise, the weights are random.
    """
    from kappaplace import PlaceModel, load_model

    model = load_model("kappaplace-lite0")
    if pretrained:
        return model
    return PlaceModel(model.architecture, model.preprocessing).eval()


def kappaplace_model(source: str) -> "_AnyModel":
    """Return any model of ``kappaplace.load_model``.

    Args:
        source: A name that ``kappaplace models`` lists, a folder or a file.
    """
    from kappaplace import load_model

    return load_model(source)
