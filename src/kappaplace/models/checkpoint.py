"""Own checkpoints: a folder with weights in safetensors and one JSON card. Nothing is ever unpickled.

The weights file carries the start of its checksum in its name and the card, written last, names it: a
process killed between the two leaves the old card with the old weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder, replace_file, sha256_of, telling
from kappaplace.models.encoder import check_dim, load_state, state_digest
from kappaplace.models.exported import ExportedModel, kind_of, load_exported
from kappaplace.models.frozen import FrozenArchitecture, FrozenEncoder
from kappaplace.models.heads import KappaHead
from kappaplace.models.network import Architecture
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import HUB, fetch, load_foreign, load_torch_hub
from kappaplace.models.shipped import DEFAULT, is_shipped, shipped_folder
from kappaplace.records import from_plain, to_plain
from kappaplace.version import package_version

CARD = "card.json"
FORMAT = 1
SMALL = 4096
"""Numbers in a tensor up to which half precision saves nothing: biases, BatchNorm's statistics, κ's head."""
_KEYS = ("kind", "architecture", "preprocessing", "data", "licence", "metrics", "notes", "weights", "sha256")


TrainableModel: TypeAlias = PlaceModel | FrozenEncoder
AnyModel: TypeAlias = TrainableModel | ExportedModel


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
        "architecture": to_plain(model.architecture),
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


def load_model(
    source: str | Path | None = None,
    *,
    dim: int | None = None,
    backbone: str | None = None,
    encoder: nn.Module | None = None,
) -> AnyModel:
    """Load a model for inference.

    Args:
        source: A folder written by `save_model`, a file of ``kappaplace export``, a weights file of another
            project, or a name that ``kappaplace models`` lists. Default: the pretrained model that comes
            with the package.
        dim: Dimension of the descriptor that is expected; any other one is refused.
        backbone: Backbone of a weights file, where it cannot be recognized (``resnet50_v1`` has the same
            weights as ``resnet50``).
        encoder: The module that a saved `FrozenEncoder` belongs to.

    Returns:
        The model in evaluation mode.

    Raises:
        KappaPlaceError: If there is no such model, or it cannot be read.

    >>> model = load_model()
    >>> model.dim, model.preprocessing.fixed_size
    (512, (320, 320))
    """
    source = DEFAULT if source is None else source
    # A name of ours comes before a folder that happens to be called so: a Path, or ./NAME, means the folder.
    path = shipped_folder(source) if isinstance(source, str) and is_shipped(source) else Path(source)
    if path.is_file() and kind_of(path) is None:
        return load_foreign(path, dim=dim, backbone=backbone)
    if backbone is not None:
        raise KappaPlaceError(
            f"A backbone can be stated for a foreign weights file only; '{source}' says itself what it is."
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
            f"No model '{source}': it is neither a folder, nor a weights file, nor a known name; "
            "`kappaplace models` lists the names."
        )
    check_dim(hub.dim, dim, hub.name)
    if hub.kind == "torch.hub":
        return load_torch_hub(hub)
    return load_foreign(fetch(hub), dim=dim)


def trainable(model: AnyModel) -> TrainableModel:
    """A model whose weights are at hand; an exported file is refused."""
    if isinstance(model, ExportedModel):
        raise KappaPlaceError(
            f"The exported model {model.file} cannot be trained or fitted: its graph is fixed; give the "
            f"model it was made of ({model.record.name})."
        )
    return model


def _from_folder(folder: Path, dim: int | None, encoder: nn.Module | None) -> AnyModel:
    record = read_card(folder)
    if record["kind"] == "place-model":
        return load_checkpoint(folder, dim=dim)[0]
    with telling(f"The model card of {folder} names no encoder"):
        name = str(record["architecture"]["encoder"])
    if encoder is None and name in HUB:
        encoder = load_torch_hub(HUB[name]).encoder
    if encoder is None:
        raise KappaPlaceError(
            f"The model {folder} is a kappa head for an encoder of yours; give it: "
            "load_model(folder, encoder=your_module)."
        )
    return load_head(folder, encoder, dim=dim)


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
            from_plain(Architecture, record["architecture"]), Preprocessing.from_dict(record["preprocessing"])
        )
    check_dim(model.dim, dim, str(folder))
    load_state(model, _read_weights(folder, record), str(folder))
    card = ModelCard(record["data"], record["licence"], record["metrics"], record["notes"])
    return model.eval(), card


def load_head(folder: Path, encoder: nn.Module, *, dim: int | None = None) -> FrozenEncoder:
    """Put a saved kappa head back beside the encoder it was trained for; another encoder is refused."""
    record = read_card(folder)
    with telling(f"The model card {folder / CARD} does not describe a head"):
        model = FrozenEncoder.of(
            from_plain(FrozenArchitecture, record["architecture"]),
            encoder,
            Preprocessing.from_dict(record["preprocessing"]),
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
