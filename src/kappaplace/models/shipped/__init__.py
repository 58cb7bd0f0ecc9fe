"""Pretrained models that come with the package: a folder each, beside this file.

A folder holds what `save_model` writes, README.md (the model card that ``kappaplace models NAME`` shows) and
calibration.json (probabilities for maps that are not calibrated, see `kappaplace.calibration.sources`).
"""

from __future__ import annotations

from pathlib import Path

from kappaplace.errors import KappaPlaceError

DEFAULT = "kappaplace-lite0"
SHIPPED = (DEFAULT,)
MOST_BYTES = 9_000_000
"""What the folder of one model may weigh: everybody downloads it with the package."""
FOLDER = Path(__file__).parent
PAGE, CALIBRATION = "README.md", "calibration.json"
_CARD = "card.json"  # as in `kappaplace.models.checkpoint`, which would bring torch into every help text


def is_shipped(name: str) -> bool:
    """Whether a name is that of a model of ours, be its files here or not."""
    return name in SHIPPED


def shipped_folder(name: str = DEFAULT) -> Path:
    """Where the files of a model of ours lie; one sentence where an installation lacks them."""
    folder = FOLDER / name
    if not (folder / _CARD).is_file():
        raise KappaPlaceError(
            f"The pretrained model '{name}' is not part of this installation (there is no "
            f"{folder / _CARD}); install kappaplace from its wheel, or name another model."
        )
    return folder


def installed() -> list[str]:
    """Names of the models whose files are here."""
    return [name for name in SHIPPED if (FOLDER / name / _CARD).is_file()]


def size_bytes(folder: Path) -> int:
    """What all files of a model weigh together."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def model_page(name: str) -> str:
    """The model card in words, Markdown."""
    file = shipped_folder(name) / PAGE
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise KappaPlaceError(f"The model card {file} cannot be read ({error.strerror}).") from None
