"""The model of a map, and how to load it. Descriptors of different models must not be compared."""

from __future__ import annotations

from pathlib import Path

from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.maps.store.manifest import MODEL_FOLDER, ModelRecord
from kappaplace.models.checkpoint import AnyModel, load_model, save_model, trainable
from kappaplace.models.exported import ExportedModel
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.models.published import HUB
from kappaplace.models.shipped import DEFAULT, is_shipped


def loaded(model: AnyModel | str | Path | None) -> tuple[AnyModel, str]:
    """Load a model.

    Args:
        model: Model, or its folder, file or name. None: the pretrained model.

    Returns:
        The model, and its name or path; empty for a model in memory.

    Raises:
        KappaPlaceError: If there is no such model.
    """
    if isinstance(model, ExportedModel):
        return model, str(Path(model.file).resolve())
    if isinstance(model, PlaceModel | FrozenEncoder):
        return model, ""
    if model is None or (isinstance(model, str) and is_shipped(model)):
        name = DEFAULT if model is None else model
        return load_model(name), name
    source = str(model)
    path = Path(source)
    if MODEL_FOLDER.fullmatch(path.name) and path.is_dir():
        return load_model(source), ""  # another map may delete its model, so it is copied like one in memory
    return load_model(source), str(path.resolve()) if path.exists() else source


def record_of(model: AnyModel, source: str, preprocessing: Preprocessing | None = None) -> ModelRecord:
    """Return the record of a model for a manifest.

    Args:
        model: The model.
        source: Its name or path. Empty: the model is in memory and is stored in the map.
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
    """Save a model from memory in the map.

    Args:
        folder: Folder of the map.
        record: Record of the model.
        model: The model.
    """
    if record.source.startswith("./") and not (folder / record.source / "card.json").is_file():
        save_model(trainable(model), folder / record.source)


def model_of(folder: Path, record: ModelRecord, source: AnyModel | str | Path | None = None) -> AnyModel:
    """Load the model of a map.

    Args:
        folder: Folder of the map.
        record: Record of its model.
        source: Model, or its folder, file or name. Default: the model that the record names.

    Returns:
        The model.

    Raises:
        KappaPlaceError: If the model cannot be loaded, or is another one.
    """
    if source is None:
        if not record.source:
            raise KappaPlaceError(
                f"The map {folder} uses a custom model that is not stored in the map. Pass it with --model "
                "(model=…)."
            )
        source = folder / record.source if record.source.startswith("./") else record.source
        try:
            model, _ = loaded(source)
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


def with_fitted_kappa(folder: Path, record: ModelRecord, model: AnyModel) -> AnyModel:
    """Return the model with the κ that was fitted for the map.

    Args:
        folder: Folder of the map.
        record: Record of the map's model.
        model: A model. Any but the map's model before the fit is returned as it is.

    Returns:
        The model of the map.
    """
    if not record.base or model.fingerprint != record.base:
        return model
    source = folder / record.source if record.source.startswith("./") else Path(record.source)
    return load_model(source, encoder=model.encoder if isinstance(model, FrozenEncoder) else None)


def preprocessing_of(record: ModelRecord) -> Preprocessing:
    """Return the preprocessing of the map's images, which queries need as well."""
    return Preprocessing.from_dict(record.preprocessing)


def _is_storable(model: AnyModel) -> bool:
    if isinstance(model, ExportedModel):
        return False  # `loaded` returns the path of its file
    return isinstance(model, PlaceModel) or model.name in HUB
