"""Which model a map belongs to, and how to get it: descriptors of two models must never be compared."""

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
    """The model itself, and the name or path it came by; empty for one made in memory. None: our own."""
    if isinstance(model, ExportedModel):
        return model, str(Path(model.file).resolve())
    if isinstance(model, PlaceModel | FrozenEncoder):
        return model, ""
    if model is None or (isinstance(model, str) and is_shipped(model)):
        name = DEFAULT if model is None else model
        return load_model(name), name
    source = str(model)
    here = Path(source)
    if MODEL_FOLDER.fullmatch(here.name) and here.is_dir():
        return load_model(source), ""  # of another map, which may drop it: as if made in memory
    return load_model(source), str(here.resolve()) if here.exists() else source


def record_of(model: AnyModel, source: str, preprocessing: Preprocessing | None = None) -> ModelRecord:
    """What a manifest says of a model; one from memory will be kept inside the map."""
    fingerprint = model.fingerprint
    if not source and _can_be_kept(model):
        source = f"./model-{fingerprint[:12]}"
    chosen = preprocessing or model.preprocessing
    return ModelRecord(fingerprint, source, model.dim, model.has_kappa, chosen.to_dict())


def keep_model(folder: Path, record: ModelRecord, model: AnyModel) -> None:
    """Save a model from memory beside the segments, so that the map can be used without its maker."""
    if record.source.startswith("./") and not (folder / record.source / "card.json").is_file():
        save_model(trainable(model), folder / record.source)


def model_of(folder: Path, record: ModelRecord, given: AnyModel | str | Path | None = None) -> AnyModel:
    """The model of a map: the one given, which must be the right one, or the one the manifest names."""
    if given is None:
        if not record.source:
            raise KappaPlaceError(
                f"The map {folder} was made with a model of its author's own; give that model."
            )
        given = folder / record.source if record.source.startswith("./") else record.source
        try:
            model, _ = loaded(given)
        except KappaPlaceError as error:
            raise KappaPlaceError(
                f"The model of the map {folder} cannot be loaded: {str(error).rstrip('.')}; give it with "
                "--model (model=…), wherever it lies now."
            ) from None
    else:
        model = as_fitted(folder, record, loaded(given)[0])
    if model.fingerprint != record.fingerprint:
        raise KappaPlaceError(
            f"The map {folder} was made with another model: its descriptors mean nothing to this one; use "
            "the model it was made with, or run `kappaplace map reembed` with this one."
        )
    return model


def as_fitted(folder: Path, record: ModelRecord, model: AnyModel) -> AnyModel:
    """The model as the map uses it: where κ was fitted for the map, the model of before gets this κ."""
    if not record.base or model.fingerprint != record.base:
        return model
    kept = folder / record.source if record.source.startswith("./") else Path(record.source)
    return load_model(kept, encoder=model.encoder if isinstance(model, FrozenEncoder) else None)


def preprocessing_of(record: ModelRecord) -> Preprocessing:
    """How images were prepared for the map, and must be for every query."""
    return Preprocessing.from_dict(record.preprocessing)


def _can_be_kept(model: AnyModel) -> bool:
    if isinstance(model, ExportedModel):
        return False  # it has a file of its own, which `loaded` names
    return isinstance(model, PlaceModel) or model.name in HUB
