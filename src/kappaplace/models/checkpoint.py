"""Own checkpoints: a folder with ``model.safetensors`` and one JSON card. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import kappaplace
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file
from kappaplace.models.place_model import Architecture, PlaceModel

WEIGHTS, CARD = "model.safetensors", "card.json"
FORMAT = 1


@dataclass(frozen=True)
class ModelCard:
    """What a user must know about a model besides its weights."""

    data: str = "not stated"
    """What it was trained on."""
    licence: str = "not stated"
    metrics: dict[str, float] = field(default_factory=dict)
    notes: str = ""


def save_model(model: PlaceModel, folder: str | Path, card: ModelCard | None = None) -> Path:
    """Write weights and card; an interrupted write leaves what was there before."""
    folder = make_folder(folder)
    card = card or ModelCard()
    state = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    replace_file(folder / WEIGHTS, lambda part: save_file(state, part))
    record = {
        "format": FORMAT,
        "kappaplace": kappaplace.__version__,
        "architecture": model.architecture.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "data": card.data,
        "licence": card.licence,
        "metrics": card.metrics,
        "notes": card.notes,
        "sha256": sha256_of(folder / WEIGHTS),
    }
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / CARD, lambda part: part.write_text(text, encoding="utf-8"))
    return folder


def load_checkpoint(folder: str | Path, *, dim: int | None = None) -> tuple[PlaceModel, ModelCard]:
    """Read a folder written by `save_model`; ``dim`` refuses a model of another dimension."""
    folder = Path(folder)
    record = _read_card(folder)
    model = PlaceModel(
        Architecture(**record["architecture"]), Preprocessing.from_dict(record["preprocessing"])
    )
    if dim is not None and model.dim != dim:
        raise KappaPlaceError(
            f"The checkpoint {folder} has {model.dim}-dimensional descriptors, {dim} were asked for; "
            "use a checkpoint of that dimension or train one."
        )
    if sha256_of(folder / WEIGHTS) != record["sha256"]:
        raise KappaPlaceError(
            f"The weights in {folder / WEIGHTS} are not those its card was written for (checksum differs): "
            "the file is damaged or was exchanged; restore the folder from a copy."
        )
    try:
        state = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise KappaPlaceError(f"The weights in {folder / WEIGHTS} cannot be read: {error}.") from None
    load_state(model, state, str(folder))
    card = ModelCard(record["data"], record["licence"], record["metrics"], record["notes"])
    return model.eval(), card


def load_state(model: torch.nn.Module, state: dict[str, torch.Tensor], where: str) -> None:
    """`load_state_dict` with one sentence instead of a page when something does not fit."""
    own = model.state_dict()
    for name, value in state.items():
        if name in own and own[name].shape != value.shape:
            raise KappaPlaceError(
                f"The checkpoint {where} does not fit the model: '{name}' has shape {tuple(value.shape)}, "
                f"expected {tuple(own[name].shape)}; was it made for another dimension or backbone?"
            )
    missing, unexpected = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    if missing or unexpected:
        example = missing[0] if missing else unexpected[0]
        raise KappaPlaceError(
            f"The checkpoint {where} does not fit the model: {len(missing)} tensors are missing and "
            f"{len(unexpected)} are unknown (for instance '{example}')."
        )
    model.load_state_dict(state)


def sha256_of(file: Path) -> str:
    """Checksum of a file's content."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise KappaPlaceError(f"Cannot read {file}: {os.strerror(error.errno or 0)}.") from None
    return digest.hexdigest()


def _read_card(folder: Path) -> dict[str, Any]:
    file = folder / CARD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["format"] > FORMAT:
            raise KappaPlaceError(
                f"The checkpoint {folder} was written by kappaplace {record['kappaplace']}, which is newer; "
                "upgrade this one."
            )
        for key in ("architecture", "preprocessing", "data", "licence", "metrics", "notes", "sha256"):
            record[key]
        return record
    except FileNotFoundError:
        raise KappaPlaceError(
            f"No model at {folder}: there is no {CARD}; give a folder written by kappaplace."
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise KappaPlaceError(f"The model card {file} cannot be read: {error!r}.") from None
