"""Own checkpoints: a folder with weights in safetensors and one JSON card. Nothing is ever unpickled.

The weights file carries the start of its checksum in its name and the card, written last, names it: a
process killed between the two leaves the old card with the old weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, sha256_of, telling
from kappaplace.models.encoder import state_digest
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.heads import KappaHead
from kappaplace.models.place_model import Architecture, PlaceModel
from kappaplace.version import package_version

CARD = "card.json"
FORMAT = 1
SMALL = 4096
"""Numbers in a tensor up to which half precision saves nothing: biases, BatchNorm's statistics, κ's head."""
_KEYS = ("kind", "architecture", "preprocessing", "data", "licence", "metrics", "notes", "weights", "sha256")


@dataclass(frozen=True)
class ModelCard:
    """What a user must know about a model besides its weights."""

    data: str = "not stated"
    """What it was trained on."""
    licence: str = "not stated"
    metrics: dict[str, float] = field(default_factory=dict)
    notes: str = ""


def save_model(
    model: PlaceModel | FrozenEncoder,
    folder: str | Path,
    card: ModelCard | None = None,
    *,
    half: bool = False,
) -> Path:
    """Write weights and card; an interrupted write leaves the model that was there before.

    Of a FrozenEncoder only the head is written, with a fingerprint of the encoder it belongs to. ``half``
    rounds large tensors to float16, half the bytes; loading gives float32 again, of the rounded values.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = save_model(PlaceModel.create("resnet_tiny", dim=16), folder, ModelCard(data="my town"))
    ...     model, card = load_checkpoint(made)
    >>> model.dim, card.data
    (16, 'my town')
    """
    folder = make_folder(folder)
    card = card or ModelCard()
    frozen = isinstance(model, FrozenEncoder)
    part = model.head if isinstance(model, FrozenEncoder) else model
    state = {name: value.contiguous().cpu() for name, value in part.state_dict().items()}
    if half:
        state = {name: rounded(value) for name, value in state.items()}
    digest = state_digest(state)
    weights = f"model-{digest[:12]}.safetensors"
    replace_file(folder / weights, lambda file: _write_weights(state, file))
    record = {
        "format": FORMAT,
        "kappaplace": package_version(),
        "kind": "frozen-encoder" if frozen else "place-model",
        "architecture": model.to_dict() if isinstance(model, FrozenEncoder) else model.architecture.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "data": card.data,
        "licence": card.licence,
        "metrics": card.metrics,
        "notes": card.notes,
        "weights": weights,
        "sha256": sha256_of(folder / weights),
    }
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / CARD, lambda file: file.write_text(text, encoding="utf-8"))
    for old in folder.glob("model-*.safetensors"):
        if old.name != weights:
            old.unlink(missing_ok=True)
    return folder


def rounded(value: Tensor) -> Tensor:
    """A large tensor in half precision; one that is small, or holds numbers beyond its range, as it is."""
    if value.dtype != torch.float32 or value.numel() <= SMALL:
        return value
    halved = value.half()
    return halved if bool(torch.isfinite(halved).all()) else value


def load_checkpoint(folder: str | Path, *, dim: int | None = None) -> tuple[PlaceModel, ModelCard]:
    """Read a PlaceModel written by `save_model`; ``dim`` refuses a model of another dimension."""
    folder = Path(folder)
    record = read_card(folder)
    with telling(f"The model card {folder / CARD} does not describe a model"):
        model = PlaceModel(
            Architecture.from_dict(record["architecture"]), Preprocessing.from_dict(record["preprocessing"])
        )
    check_dim(model.dim, dim, str(folder))
    load_state(model, _read_weights(folder, record), str(folder))
    card = ModelCard(record["data"], record["licence"], record["metrics"], record["notes"])
    return model.eval(), card


def load_head(folder: Path, encoder: nn.Module, *, dim: int | None = None) -> FrozenEncoder:
    """Put a saved kappa head back beside the encoder it was trained for; another encoder is refused."""
    record = read_card(folder)
    with telling(f"The model card {folder / CARD} does not describe a head"):
        model = FrozenEncoder.from_dict(
            record["architecture"], encoder, Preprocessing.from_dict(record["preprocessing"])
        )
    check_dim(model.dim, dim, str(folder))
    load_state(model.head, _read_weights(folder, record), str(folder))
    if isinstance(model.head, KappaHead):
        model.head.trained = True
    return model.eval()


def load_weights(model: PlaceModel | FrozenEncoder, folder: Path) -> None:
    """Put the weights of a folder into a model of the same form."""
    part = model.head if isinstance(model, FrozenEncoder) else model
    load_state(part, _read_weights(folder, read_card(folder)), str(folder))


def check_dim(found: int, wanted: int | None, where: str) -> None:
    """Refuse descriptors of another dimension than was asked for."""
    if wanted is not None and wanted != found:
        raise KappaPlaceError(
            f"The checkpoint {where} has {found}-dimensional descriptors, {wanted} were asked for; "
            "use a checkpoint of that dimension or train one."
        )


def load_state(model: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """`load_state_dict` with one sentence instead of a page when something does not fit."""
    own = model.state_dict()
    for name, value in state.items():
        if name in own and own[name].shape != value.shape:
            raise KappaPlaceError(
                f"The checkpoint {where} does not fit the model: '{name}' has shape {tuple(value.shape)}, "
                f"expected {tuple(own[name].shape)}; was it made for another dimension or backbone?"
            )
    # Files older than BatchNorm's step counter lack it; nothing at inference depends on it.
    missing = sorted(name for name in set(own) - set(state) if not name.endswith("num_batches_tracked"))
    unexpected = sorted(set(state) - set(own))
    if missing or unexpected:
        example = missing[0] if missing else unexpected[0]
        raise KappaPlaceError(
            f"The checkpoint {where} does not fit the model: {len(missing)} tensors are missing and "
            f"{len(unexpected)} are unknown (for instance '{example}')."
        )
    model.load_state_dict(state, strict=False)


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model folder, complete or refused."""
    file = folder / CARD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        newer = record["format"] > FORMAT
        if not newer:
            record = {key: record[key] for key in _KEYS}
    except FileNotFoundError:
        raise KappaPlaceError(
            f"No model at {folder}: there is no {CARD}; give a folder written by kappaplace."
        ) from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise KappaPlaceError(f"The model card {file} cannot be read: {error!r}.") from None
    if newer:
        raise KappaPlaceError(
            f"The checkpoint {folder} was written by kappaplace {record.get('kappaplace')}, which is newer; "
            "upgrade this one."
        )
    return record


def _write_weights(state: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(state, file)
    except SafetensorError as error:  # it wraps the disk's errors
        raise KappaPlaceError(f"Cannot write {file.parent}: {error}; the model there is unchanged.") from None


def checked_weights(folder: Path, record: dict[str, Any]) -> Path:
    """The weights file that a card names, if it is the one the card was written for."""
    # Only a plain file name: a card from elsewhere must not reach out of its folder.
    file = folder / Path(str(record["weights"])).name
    with telling(f"The weights that {folder / CARD} names cannot be read"):
        found = sha256_of(file)
    if found != record["sha256"]:
        raise KappaPlaceError(
            f"The weights in {file} are not those its card was written for (checksum differs): "
            "the file is damaged or was exchanged; restore the folder from a copy."
        )
    return file


def _read_weights(folder: Path, record: dict[str, Any]) -> dict[str, Tensor]:
    file = checked_weights(folder, record)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise KappaPlaceError(f"The weights in {file} cannot be read: {error}.") from None
