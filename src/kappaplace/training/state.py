"""The state of a run on disk: one file, replaced in one step, that holds all it takes to go on."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.files import replace_file

FILE = "training.pt"
FORMAT = 1


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write; a process killed meanwhile leaves the state before."""
    content = BytesIO()  # in memory first: torch's own writer ends the process where the disk is full
    torch.save({"format": FORMAT, **state}, content)
    replace_file(folder / FILE, lambda part: part.write_bytes(content.getbuffer()))


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last complete state, or None if there is none. Only tensors and plain values are read."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        known = state["format"] == FORMAT
    except Exception as error:  # the unpickler meets junk with many kinds of error
        reason = str(error).partition("\n")[0]
        raise KappaPlaceError(
            f"The training state {file} cannot be read ({reason}); remove it to start again."
        ) from None
    if not known:
        raise KappaPlaceError(
            f"The training state {file} was written by another version; finish it with that one."
        )
    return state


def rng_state() -> dict[str, Any]:
    """Torch's random numbers, on which dropout depends; everything else is a function of the step."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """The inverse of `rng_state`."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
