"""Checkpoints: a folder with weights in safetensors and a JSON card. Nothing is ever unpickled.

The name of the weights file contains the start of its checksum. The card, written last, contains this name. A
process that is killed between the two leaves the old card with the old weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, reason, replace_file, sha256_of, telling, write_file
from kappaplace.models.encoder import check_dim, load_state, state_digest
from kappaplace.models.exported import ExportedModel, kind_of, load_exported
from kappaplace.models.frozen import FrozenArchitecture, FrozenEncoder
from kappaplace.models.heads import KappaHead
from kappaplace.models.network import Architecture
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import load_foreign, load_published
from kappaplace.models.registry import HUB
from kappaplace.models.shipped import DEFAULT, is_shipped, shipped_folder
from kappaplace.records import from_plain, to_plain
from kappaplace.version import package_version

CARD = "card.json"
FORMAT = 1
SMALL = 4096
"""Largest tensor that is never rounded to half precision: biases, BatchNorm statistics, the kappa head."""
_KEYS = ("kind", "architecture", "preprocessing", "data", "licence", "metrics", "notes", "weights", "sha256")

CardRecord: TypeAlias = dict[str, Any]
"""Content of a model card."""
TrainableModel: TypeAlias = PlaceModel | FrozenEncoder
AnyModel: TypeAlias = TrainableModel | ExportedModel


@dataclass(frozen=True)
class ModelCard:
    """Facts about a model for its users."""

    data: str = "not stated"
    """Training data."""
    license: str = "not stated"
    """License of the weights."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the model by name."""
    notes: str = ""
    """Further facts."""


def save_model(
    model: TrainableModel,
    folder: str | Path,
    card: ModelCard | None = None,
    *,
    half: bool = False,
) -> Path:
    """Write the weights and the card of a model; an interrupted write leaves the previous model.

    Args:
        model: The model. For a `FrozenEncoder`, only the head is written, with a fingerprint of its encoder.
        folder: Folder to write; it is created if it does not exist.
        card: Facts about the model.
        half: Round large tensors to float16, which halves the size; `load_model` returns float32 again.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save_model(PlaceModel.create("resnet_tiny", dim=16), folder, ModelCard(data="my town"))
    ...     model, card = load_checkpoint(path)
    >>> model.dim, card.data
    (16, 'my town')
    """
    folder = make_folder(folder)
    card = card or ModelCard()
    state = {name: value.contiguous().cpu() for name, value in _stored_part(model).state_dict().items()}
    if half:
        state = {name: _round(value) for name, value in state.items()}
    digest = state_digest(state)
    weights = f"model-{digest[:12]}.safetensors"
    replace_file(folder / weights, lambda file: _write_weights(state, file))
    record = {
        "format": FORMAT,
        "kappaplace": package_version(),
        "kind": "frozen-encoder" if isinstance(model, FrozenEncoder) else "place-model",
        "architecture": to_plain(model.architecture),
        "preprocessing": model.preprocessing.to_dict(),
        "data": card.data,
        "licence": card.license,
        "metrics": card.metrics,
        "notes": card.notes,
        "weights": weights,
        "sha256": sha256_of(folder / weights),
    }
    write_file(folder / CARD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for old in folder.glob("model-*.safetensors"):
        if old.name != weights:
            old.unlink(missing_ok=True)
    return folder


def load_model(
    source: str | Path | None = None,
    *,
    dim: int | None = None,
    backbone: str | None = None,
    head: str | None = None,
    encoder: nn.Module | None = None,
) -> AnyModel:
    """Load a model for inference.

    Args:
        source: A folder written by `save_model`, a file of ``kappaplace export``, a weights file of another
            project, or a name that ``kappaplace models`` lists. Default: the pretrained model of the package.
        dim: Expected dimension of the descriptor. Default: any.
        backbone: Backbone of a weights file of another project, if it cannot be detected (``resnet50_v1`` has
            the same weights as ``resnet50``).
        head: Head of a weights file of another project, if its keys allow several; the message names them.
            ``none`` omits the head.
        encoder: The encoder that a saved `FrozenEncoder` belongs to.

    Returns:
        The model in evaluation mode.

    Raises:
        KappaPlaceError: If the model does not exist, cannot be read, or has another dimension.

    >>> model = load_model()
    >>> model.dim, model.preprocessing.fixed_size
    (512, (320, 320))
    """
    source = DEFAULT if source is None else source
    # The name of a shipped model has priority over a folder of this name; pass ./NAME for the folder.
    path = shipped_folder(source) if isinstance(source, str) and is_shipped(source) else Path(source)
    if path.is_file() and kind_of(path) is None:
        return load_foreign(path, dim=dim, backbone=backbone, head=head)
    if backbone is not None or head is not None:
        raise KappaPlaceError(
            f"{'head' if backbone is None else 'backbone'} is only for weights files of other projects, but "
            f"'{source}' already specifies it. Omit it."
        )
    if path.is_file():
        exported = load_exported(path)
        check_dim(exported.dim, dim, str(path))
        return exported
    if path.is_dir():
        return _from_folder(path, dim, encoder)
    hub = HUB.get(str(source))
    if hub is None:
        raise KappaPlaceError(
            f"No model '{source}': it is not a folder, a weights file or a known name. List the names with "
            "`kappaplace models`."
        )
    return load_published(hub, dim=dim)


def trainable(model: AnyModel) -> TrainableModel:
    """Return a model that can be trained; raise an error for an exported file."""
    if isinstance(model, ExportedModel):
        raise KappaPlaceError(
            f"The exported model {model.file} cannot be trained or fitted. Use the original model "
            f"({model.record.name})."
        )
    return model


def _from_folder(folder: Path, dim: int | None, encoder: nn.Module | None) -> AnyModel:
    record = read_card(folder)
    if record["kind"] == "place-model":
        return load_checkpoint(folder, dim=dim)[0]
    with telling(f"The model card of {folder} does not contain an encoder"):
        name = str(record["architecture"]["encoder"])
    if encoder is None and name in HUB:
        encoder = load_published(HUB[name])
    if encoder is None:
        raise KappaPlaceError(
            f"The model {folder} is a kappa head without its encoder. Pass the encoder: "
            "load_model(folder, encoder=…)."
        )
    return load_head(folder, encoder, dim=dim)


def _stored_part(model: TrainableModel) -> nn.Module:
    return model.head if isinstance(model, FrozenEncoder) else model


def _round(value: Tensor) -> Tensor:
    """Round a large tensor to half precision, unless its numbers exceed the range of float16."""
    if value.dtype != torch.float32 or value.numel() <= SMALL:
        return value
    halved = value.half()
    return halved if bool(torch.isfinite(halved).all()) else value


def load_checkpoint(folder: str | Path, *, dim: int | None = None) -> tuple[PlaceModel, ModelCard]:
    """Read a `PlaceModel` and its card, as `save_model` wrote them.

    Args:
        folder: The folder.
        dim: Expected dimension of the descriptor. Default: any.

    Returns:
        The model in evaluation mode, and its card.
    """
    folder = Path(folder)
    record = read_card(folder)
    with telling(f"The model card {folder / CARD} does not describe a model"):
        architecture = from_plain(Architecture, record["architecture"])
        model = PlaceModel(architecture, Preprocessing.from_dict(record["preprocessing"]))
    check_dim(model.dim, dim, str(folder))
    load_state(model, _read_weights(folder, record), str(folder))
    card = ModelCard(record["data"], record["licence"], record["metrics"], record["notes"])
    return model.eval(), card


def load_head(folder: Path, encoder: nn.Module, *, dim: int | None = None) -> FrozenEncoder:
    """Read a saved kappa head.

    Args:
        folder: The folder.
        encoder: The encoder that the head was trained for.
        dim: Expected dimension of the descriptor. Default: any.

    Returns:
        The model in evaluation mode.
    """
    record = read_card(folder)
    encoder = encoder.encoder if isinstance(encoder, FrozenEncoder) else encoder
    with telling(f"The model card {folder / CARD} does not describe a head"):
        architecture = from_plain(FrozenArchitecture, record["architecture"])
        hub = HUB.get(architecture.encoder)
        if hub is not None:  # cards of earlier versions do not have these facts
            architecture = replace(architecture, patch_layer=hub.patch_layer, cross_image=hub.cross_image)
        model = FrozenEncoder.of(architecture, encoder, Preprocessing.from_dict(record["preprocessing"]))
    check_dim(model.dim, dim, str(folder))
    load_state(model.head, _read_weights(folder, record), str(folder))
    if isinstance(model.head, KappaHead):
        model.head.trained = True
    return model.eval()


def load_weights(model: TrainableModel, folder: Path) -> None:
    """Load the weights of a folder into a model of the same structure."""
    load_state(_stored_part(model), _read_weights(folder, read_card(folder)), str(folder))


def read_card(folder: Path) -> CardRecord:
    """Read the card of a model folder; raise an error if a field is missing."""
    file = folder / CARD
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        newer = record["format"] > FORMAT
        if not newer:
            record = {key: record[key] for key in _KEYS}
    except FileNotFoundError:
        raise KappaPlaceError(f"No model at {folder}: there is no {CARD}. Pass a model folder.") from None
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise KappaPlaceError(f"Cannot read the model card {file} ({error!r}). Replace it.") from None
    if newer:
        raise KappaPlaceError(
            f"The checkpoint {folder} was written by kappaplace {record.get('kappaplace')}, a newer version. "
            "Upgrade kappaplace."
        )
    return record


def _write_weights(state: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(state, file)
    except SafetensorError as error:  # safetensors wraps errors of the disk
        raise KappaPlaceError(f"Cannot write {file.parent}: {error}. The old model is unchanged.") from None


def checked_weights(folder: Path, record: CardRecord) -> Path:
    """Return the weights file of a model, after checking its checksum.

    Args:
        folder: Folder of the model.
        record: Card of the model.

    Returns:
        The file.
    """
    # Only the file name: an untrusted card must not refer to files outside its folder.
    file = folder / Path(str(record["weights"])).name
    with telling(f"The weights of {folder / CARD} cannot be read"):
        checksum = sha256_of(file)
    if checksum != record["sha256"]:
        raise KappaPlaceError(
            f"The weights in {file} are damaged or were replaced (checksum differs). "
            "Restore the folder from a copy."
        )
    return file


def _read_weights(folder: Path, record: CardRecord) -> dict[str, Tensor]:
    file = checked_weights(folder, record)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise KappaPlaceError(
            f"The weights in {file} cannot be read ({reason(error)}). Restore the folder from a copy."
        ) from None
