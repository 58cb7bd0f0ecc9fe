"""Pretrained models of the package, each in a subfolder.

A folder contains the files of `save_model`, and README.md, the model card that ``kappaplace models NAME``
prints. Maps without a calibration use its calibration.json, see `kappaplace.calibration.sources`. pairs.json
has the probability of two images, see `kappaplace.calibration.pairs`.
"""

from __future__ import annotations

from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling

DEFAULT = "kappaplace-lite0"
SHIPPED = (DEFAULT,)
MOST_BYTES = 9_000_000
"""Largest size of a model folder: every user downloads it with the package."""
FOLDER = Path(__file__).parent
PAGE, CALIBRATION, PAIRS = "README.md", "calibration.json", "pairs.json"
_CARD = "card.json"  # as in `kappaplace.models.checkpoint`, which imports torch: too slow for help texts


def is_shipped(name: str) -> bool:
    """Return whether a name is a pretrained model of the package, even if its files are missing."""
    return name in SHIPPED


def shipped_folder(name: str = DEFAULT) -> Path:
    """Return the folder of a pretrained model; raise an error if its files are missing."""
    folder = FOLDER / name
    if not (folder / _CARD).is_file():
        raise KappaPlaceError(
            f"The pretrained model '{name}' is not part of this installation (there is no {folder / _CARD}). "
            "Install kappaplace from its wheel, or use another model."
        )
    return folder


def installed() -> list[str]:
    """Return the names of the models whose files are installed."""
    return [name for name in SHIPPED if (FOLDER / name / _CARD).is_file()]


def size_bytes(folder: Path) -> int:
    """Return the total size of the files of a model."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def model_page(name: str) -> str:
    """Return the model card as Markdown."""
    file = shipped_folder(name) / PAGE
    with telling(f"The model card {file} cannot be read"):
        return file.read_text(encoding="utf-8")
