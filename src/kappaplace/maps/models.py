"""The model of a map, and how to load it. Descriptors of different models must not be compared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store.manifest import ModelRecord
from kappaplace.maps.store.writer import writer_of
from kappaplace.models.checkpoint import CARD, AnyModel, load_model, save_model, trainable
from kappaplace.models.exported import ExportedModel
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import HUB
from kappaplace.models.shipped import DEFAULT, is_shipped


def loaded(model: AnyModel | str | Path | None) -> tuple[AnyModel, str]:
    """Load a model that the user names.

    Args:
        model: Model, or its folder, file or name. None loads the pretrained model.

    Returns:
        The model, and its name; the name is empty unless the model is published.

    Raises:
        KappaPlaceError: If there is no such model.
    """
    if isinstance(model, ExportedModel | PlaceModel | FrozenEncoder):
        return model, ""
    name = DEFAULT if model is None else str(model)
    is_name = model is None or (isinstance(model, str) and is_published(name))
    return load_model(name), name if is_name else ""


def is_published(name: str) -> bool:
    """Return whether `load_model` loads a published or a shipped model by this name."""
    return is_shipped(name) or (name in HUB and not Path(name).exists())


def record_of(model: AnyModel, source: str, preprocessing: Preprocessing | None = None) -> ModelRecord:
    """Return the record of a model for a manifest.

    Args:
        model: The model.
        source: Name of a published model, otherwise empty. The map keeps a copy of an unpublished model.
            Exceptions are your own encoder and exported files, which must be passed at every use.
        preprocessing: Preprocessing of the images. Default: the preprocessing of the model.

    Returns:
        The record.
    """
    fingerprint = model.fingerprint
    if not source and _is_storable(model):
        source = f"./model-{fingerprint[:12]}"
    preprocessing = preprocessing or model.preprocessing
    return ModelRecord(fingerprint, source, model.dim, model.has_kappa, preprocessing.to_dict())


def keep_model(folder: Path, record: ModelRecord, model: AnyModel) -> None:
    """Save a model in the map if its record names a folder inside the map.

    Args:
        folder: Folder of the map.
        record: Record of the model.
        model: The model.
    """
    if record.inside and not (folder / record.inside / CARD).is_file():
        save_model(trainable(model), folder / record.inside)


def adopt_model(folder: Path, record: ModelRecord, model: AnyModel) -> bool:
    """Copy a passed model into a map that cannot load its model, so that the user passes it only once.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        model: The model, with the fingerprint of the record.

    Returns:
        Whether the model was copied; False if another process writes to the map, or the map is read-only.
    """
    if record.inside or is_published(record.source) or not _is_storable(model):
        return False
    new = replace(record, source=record_of(model, "").source)
    with suppress(KappaPlaceError, OSError), writer_of(folder) as writer:
        if writer.manifest.model == record:
            keep_model(folder, new, model)
            writer.commit(model=new)
            return True
    return False


def model_of(folder: Path, record: ModelRecord, source: AnyModel | str | Path | None = None) -> AnyModel:
    """Load the model of a map.

    A map may come from an untrusted source. Unless a model is passed, only published models and a model
    folder inside the map are loaded. Their files are safetensors and JSON.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        source: Model, or its folder, file or name. Default: the model that the record names.

    Returns:
        The model.

    Raises:
        KappaPlaceError: If the model cannot be loaded, or it differs from the model of the map.
    """
    if source is None:
        own = _own_folder(folder, record)
        if own is None and not is_published(record.source):
            names = f"names the model {record.source!r}" if record.source else "does not have its model"
            raise KappaPlaceError(
                f"The map {folder} {names}, but a map loads only published models and its own model folder. "
                "Pass it with --model (model=…); unless it is an exported file, once is enough."
            )
        try:
            model = load_model(record.source if own is None else own)
        except KappaPlaceError as error:
            raise KappaPlaceError(
                f"The model of the map {folder} cannot be loaded ({str(error).rstrip('.')}). Pass it with "
                "--model (model=…)."
            ) from None
    else:
        model = with_fitted_kappa(folder, record, loaded(source)[0])
    if model.fingerprint != record.fingerprint:
        raise KappaPlaceError(
            f"The map {folder} was built with another model, so descriptors cannot be compared. Use that "
            "model, or run `kappaplace map reembed`."
        )
    return model


def _own_folder(folder: Path, record: ModelRecord) -> Path | None:
    """Return the model's folder inside the map; None if there is none, or if it is a file or a link."""
    own = folder / record.inside
    return None if not record.inside or own.is_file() or own.is_symlink() else own


def with_fitted_kappa(folder: Path, record: ModelRecord, model: AnyModel) -> AnyModel:
    """Return the model with the κ that was fitted for the map.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        model: A model. It is returned unchanged unless it is the map's model before the fit.

    Returns:
        The model of the map.
    """
    own = _own_folder(folder, record)
    if own is None or not record.base or model.fingerprint != record.base:
        return model
    return load_model(own, encoder=model.encoder if isinstance(model, FrozenEncoder) else None)


def preprocessing_of(record: ModelRecord) -> Preprocessing:
    """Return the preprocessing of the map's images, which queries need as well."""
    return Preprocessing.from_dict(record.preprocessing)


def _is_storable(model: AnyModel) -> bool:
    if isinstance(model, ExportedModel):
        return False  # the user passes its file whenever it is used
    return isinstance(model, PlaceModel) or model.name in HUB
