"""What every model is known by: the checksum of its weights and of what it is built of."""

from __future__ import annotations

import hashlib
import json

from kappaplace.models.digest import state_digest
from kappaplace.models.exported import ExportedModel
from kappaplace.models.loading import AnyModel
from kappaplace.models.place_model import PlaceModel


def model_fingerprint(model: AnyModel) -> str:
    """Checksum of a model's weights and of what it is built of."""
    if isinstance(model, ExportedModel):
        return model.fingerprint
    described = model.architecture.to_dict() if isinstance(model, PlaceModel) else model.to_dict()
    text = json.dumps([type(model).__name__, described, state_digest(model.state_dict())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
