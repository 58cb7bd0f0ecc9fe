"""Probability that two images show the same place, from the two images alone.

A bare pair has no list of matches, so there is no margin. Its signal is the agreement of the patches, whose
scale depends on the scene: two frames of different roads can agree more than two views of one building. With
a map of the area as background, the agreement is therefore compared with the agreement with other places of
the map.

The probability is a logistic function of the signal, fitted on pairs of which a known fraction shows the same
place. Bayes' rule converts it to another fraction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from kappaplace.calibration.combination import Combination, fit_combination
from kappaplace.calibration.outside import shift_prior
from kappaplace.checks import Bools, Floats, share
from kappaplace.data.images import Preprocessing
from kappaplace.errors import KappaPlaceError
from kappaplace.files import sealed, telling, unsealed, write_file
from kappaplace.models.checkpoint import read_card
from kappaplace.models.shipped import PAIRS, installed, shipped_folder
from kappaplace.records import from_plain, to_plain
from kappaplace.retrieval.agreement import AGREEMENT
from kappaplace.retrieval.patches import compare, patch_agreement
from kappaplace.retrieval.references import Queries, References
from kappaplace.types import Embeddings, Json

FORMAT = 1
BARE, BY_DESCRIPTOR, WITH_MAP = "patches", "cosine", "patch-margin"
"""Signal of a pair without background; the same from a model without patches; and with a map as background.

One signal, because the probability then rises with it. Wrong pairs of the fit are chosen by similarity, so a
combination with the cosine would give unrelated images a high probability; κ of the images does not help."""
COMPETING = 5
"""Number of references whose patches are compared for the patch margin."""
DEEP = 256
"""Number of references among which those of other places are looked for."""
COPY = 0.999
"""Similarity of descriptors from which two images are the same."""
LEAST = 0.02
"""Constant ε of the patch margin, the agreement of a few patches."""
STEP = 64
"""Number of pairs whose patches are compared at once."""
FEWEST = 50
"""Smallest number of pairs of each kind for a fit."""


@dataclass(frozen=True)
class PairCalibration:
    """Fitted probability that two images show the same place; see `fit_pairs`."""

    model: str
    """Fingerprint of the model of the signals."""
    bare: Combination
    """Combination for a pair without background."""
    same_rate: float
    """Fraction of the pairs of the fit that show the same place."""
    with_map: Combination | None = None
    """Combination for a pair with a map as background; None if there is none."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Facts about the fit, such as the data, as plain values."""
    agreement: int = AGREEMENT
    """Version of the patch agreement at the fit."""

    def probability(self, signals: Mapping[str, Floats], same_rate: float | None = None) -> Floats:
        """Return the probability that each pair shows the same place.

        Args:
            signals: Values of each signal by name (N each). Those of `WITH_MAP` are used if they are there.
            same_rate: Expected fraction of pairs that show the same place. Default: the fraction at the fit.

        Returns:
            One probability per pair (N).

        Raises:
            KappaPlaceError: If a signal is missing, or the fraction is not between 0 and 1.
        """
        used = self.bare
        if self.with_map is not None and set(self.with_map.scores) <= set(signals):
            used = self.with_map
        missing = [name for name in used.scores if name not in signals]
        if missing:
            raise KappaPlaceError(
                f"This calibration of pairs needs {', '.join(missing)}, which the model does not provide. "
                "Fit another one on pairs of this model."
            )
        probability = used.probability(np.stack([signals[name] for name in used.scores], axis=1))
        if same_rate is None:
            return probability
        return shift_prior(probability, self.same_rate, share(same_rate, "same_rate"))


@torch.inference_mode()
def pair_signals(a: Embeddings, b: Embeddings) -> dict[str, Floats]:
    """Return the signals of pairs that need only the two images.

    Args:
        a: Embeddings of the first image of each pair, with patches if the model has them.
        b: Embeddings of the second images.

    Returns:
        Values by name (N each); higher means less similar.
    """
    first, second = (np.asarray(part.descriptor, np.float64) for part in (a, b))
    signals: dict[str, Floats] = {"cosine": 1.0 - np.einsum("nd,nd->n", first, second)}
    if a.patches is not None and b.patches is not None:
        parts = [
            patch_agreement(torch.from_numpy(a.patches[rows]), torch.from_numpy(b.patches[rows])).numpy()
            for rows in (slice(start, start + STEP) for start in range(0, len(first), STEP))
        ]
        signals["patches"] = 1.0 - np.concatenate(parts).astype(np.float64)
    return signals


def background_signals(
    a: Embeddings, b: Embeddings, references: References, agreement: Floats
) -> dict[str, Floats]:
    """Return the signals of pairs that compare them with other places of a map.

    **Patch margin** is log((p + ε)/(q + ε)). Here q is the agreement of the pair, and p the best agreement of
    the first image with the `COMPETING` most similar references of another place than that of the second
    image, which is the place of its best reference.

    Args:
        a: Embeddings of the first image of each pair, with patches.
        b: Embeddings of the second images.
        references: References of the map.
        agreement: Fraction of patches of each pair that agree (N).

    Returns:
        Values by name (N each); higher means that other places are more similar.
    """
    pool = references.search(a.descriptor, min(DEEP, len(references)))
    places = references.search(b.descriptor, 1).indices
    # The map may contain the first image itself, which is not another place.
    other = ~references.near(places, pool.indices) & (pool.similarities < COPY)
    order = np.argsort(~other, axis=1, kind="stable")[:, :COMPETING]
    rows = np.take_along_axis(pool.indices, order, 1)
    values = compare(Queries(a), references, rows)
    best = np.where(np.take_along_axis(other, order, 1), values, 0.0).max(axis=1)
    return {"patch-margin": np.log(best + LEAST) - np.log(agreement + LEAST)}


def fit_pairs(
    signals: Mapping[str, Floats],
    same: Bools,
    model: str = "",
    facts: Mapping[str, Json] | None = None,
) -> PairCalibration:
    """Fit the probability on labelled pairs.

    Args:
        signals: Values of each signal by name (N each).
        same: Whether each pair shows the same place (N).
        model: Fingerprint of the model of the signals.
        facts: Facts to store.

    Returns:
        The calibration. It has a combination with the signals of a map if they are there.

    Raises:
        KappaPlaceError: If there are too few pairs of either kind.
    """
    counts = int(np.sum(same)), int(np.sum(~same))
    if min(counts) < FEWEST:
        raise KappaPlaceError(
            f"Calibrating pairs needs at least {FEWEST} pairs of the same place and {FEWEST} of different "
            f"places, got {counts[0]} and {counts[1]}. Label more pairs."
        )

    def fitted(name: str) -> Combination:
        return fit_combination(signals[name][:, None], same, [name])

    with_map = fitted(WITH_MAP) if WITH_MAP in signals else None
    own: dict[str, Json] = {"pairs": len(same), "same": counts[0], **(facts or {})}
    return PairCalibration(
        model, fitted(BARE if BARE in signals else BY_DESCRIPTOR), counts[0] / len(same), with_map, own
    )


def save_pairs(calibration: PairCalibration, file: str | Path) -> None:
    """Write a calibration of pairs to a JSON file with a checksum.

    Args:
        calibration: The calibration.
        file: The file.
    """
    text = json.dumps(sealed({"format": FORMAT, **to_plain(calibration)}), indent=1)
    write_file(Path(file), text + "\n")


def load_pairs(file: str | Path, model: str = "") -> PairCalibration:
    """Read a calibration of pairs that `save_pairs` wrote.

    Args:
        file: The file (.json).
        model: Fingerprint of the model, which must match. Default: not checked.

    Returns:
        The calibration.

    Raises:
        KappaPlaceError: If the file is missing or not valid, or belongs to another model or another version
            of patch matching.
    """
    file = Path(file)
    if not file.is_file():
        raise KappaPlaceError(f"There is no calibration {file}. Check the path.")
    with telling(f"{file} is not a valid calibration of pairs"):
        values = unsealed(json.loads(file.read_text(encoding="utf-8")))
        if values.pop("format", None) != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        calibration = from_plain(PairCalibration, values)
    if model and calibration.model and calibration.model != model:
        raise KappaPlaceError(f"The calibration {file} belongs to another model. Fit one with this model.")
    if calibration.agreement != AGREEMENT:
        raise KappaPlaceError(
            f"The calibration {file} was fitted with another version of patch matching, whose values differ. "
            "Fit it again."
        )
    return calibration


@lru_cache(maxsize=8)
def shipped_pairs(fingerprint: str, preprocessing: Preprocessing) -> PairCalibration | None:
    """Return the calibration of pairs that is shipped with a model.

    Args:
        fingerprint: Fingerprint of the model.
        preprocessing: How images are prepared for the model.

    Returns:
        The calibration; None if none is shipped with this model.
    """
    for name in installed():
        folder = shipped_folder(name)
        if (folder / PAIRS).is_file():
            calibration = load_pairs(folder / PAIRS)
            own = Preprocessing.from_dict(read_card(folder)["preprocessing"])
            if calibration.model == fingerprint and own == preprocessing:
                return calibration
    return None
