"""Evaluation of models and descriptors: retrieves matches, computes scores and measures them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from kappaplace.calibration.sources import calibration_with
from kappaplace.checks import choice, within
from kappaplace.data.images import Preprocessing
from kappaplace.data.positives import NoPositives
from kappaplace.data.protocols import PROTOCOLS
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.inputs import Retrieved, from_descriptors, from_table
from kappaplace.evaluation.measuring import MEAN, POOLED, RESAMPLES, measure
from kappaplace.evaluation.own_scores import check_own_score, read_own_score
from kappaplace.evaluation.results import EvaluationResult, SetResult
from kappaplace.evaluation.scoring import (
    CALIBRATED,
    Fitted,
    calibrated_score,
    fit,
    fit_calibrated,
    includes_calibrated,
    score_set,
    select_scores,
)
from kappaplace.metrics import MOST_RESAMPLES
from kappaplace.models.checkpoint import AnyModel, load_model
from kappaplace.models.embedding import usable_device
from kappaplace.models.embedding.store import EmbeddingStore
from kappaplace.models.encoder import Encoder, EncoderModule
from kappaplace.models.frozen import plain_encoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.records import to_plain
from kappaplace.types import Embeddings, Json
from kappaplace.uncertainty import score_named
from kappaplace.version import package_version

Resize = Literal["model", "protocol"]


@dataclass(frozen=True)
class Choices:
    """Options of an evaluation, apart from the data."""

    scores: str = ""
    """Comma-separated names of scores, "all", or "" for every score but the slowest."""
    k: int = 10
    """Number of matches per query."""
    policy: NoPositives | None = None
    """Policy for queries without a positive. Default: the policy of the protocol, otherwise fail."""
    resamples: int = RESAMPLES
    """Number of bootstrap resamples for the intervals. 0 omits the intervals."""
    seed: int = 0
    """Random seed for the bootstrap."""
    fuse: tuple[str, ...] = ()
    """Names of scores to combine."""
    pool: tuple[str, ...] = ()
    """Names of the datasets to pool. Default: all."""
    keep_twins: bool = False
    """Whether to include queries that are near-copies of references, which makes results too good."""

    def __post_init__(self) -> None:
        select_scores(self.scores)  # an unknown name fails before anything is embedded
        for name in self.fuse:
            score_named(name)
        if self.policy is not None:
            choice(self.policy, [each.value for each in NoPositives], "policy")
        within(self.k, "k", 1)
        within(self.resamples, "resamples", 0, MOST_RESAMPLES)
        within(self.seed, "seed", 0)


def evaluate_sets(
    name: str,
    sets: Iterable[Retrieved],
    choices: Choices,
    *,
    fitted: Fitted | None = None,
    own: Sequence[Path] = (),
    facts: dict[str, Json] | None = None,
) -> EvaluationResult:
    """Score and measure datasets one after the other, so that only one is in memory.

    Args:
        name: Name of the evaluation in tables and figures.
        sets: The datasets after retrieval.
        choices: Options.
        fitted: Probabilities and a combination of scores, as `fit_on` returns them.
        own: CSV files with the user's own scores.
        facts: Facts to store with the result.

    Returns:
        Scores and metrics of all datasets.

    Raises:
        KappaPlaceError: If there is no dataset, or two of them or two files have the same name.
    """
    for file in own:
        check_own_score(file)
    if len({file.stem for file in own}) < len(own):
        raise KappaPlaceError(
            "Two files of scores have the same name. Rename one, because a score has the name of its file."
        )
    started, clock = datetime.now(timezone.utc), time.monotonic()
    results: list[SetResult] = []
    for retrieved in sets:
        if retrieved.name in (*(each.name for each in results), POOLED, MEAN):
            raise KappaPlaceError(
                f"The name '{retrieved.name}' is used for more than one dataset. Give them different names."
            )
        results.append(_score(retrieved, choices, fitted, own))
    if not results:
        raise KappaPlaceError("There is no dataset to evaluate. Pass at least one.")
    metrics = measure(results, resamples=choices.resamples, seed=choices.seed, pooled=choices.pool)
    times = {"started": started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock, 3)}
    policy = "" if choices.policy is None else choices.policy.value
    options = asdict(choices) | {"policy": policy, "fuse": list(choices.fuse), "pool": list(choices.pool)}
    for option, unset in (("pool", not choices.pool), ("keep_twins", not choices.keep_twins)):
        if unset:  # the format of earlier versions
            del options[option]
    record = {"version": package_version(), **options, **(facts or {})}
    if fitted is not None and fitted.combination is not None:
        record["fused"] = to_plain(fitted.combination)
    return EvaluationResult(name, tuple(results), metrics, record, times)


def fit_on(retrieved: Retrieved, choices: Choices) -> Fitted:
    """Fit probabilities, and the combination of ``choices.fuse``, on a validation set after retrieval."""
    fitted = fit(retrieved, select_scores(choices.scores)[0], choices.fuse)
    return fitted._replace(own=fit_calibrated(retrieved) if includes_calibrated(choices.scores) else None)


def preprocessing_for(model: AnyModel, table: PlaceImages, resize: Resize) -> Preprocessing:
    """Return the preprocessing of a model, or the same with the image size of the table's protocol.

    Args:
        model: The model.
        table: The table.
        resize: "model" or "protocol".

    Returns:
        The preprocessing.
    """
    protocol = PROTOCOLS.get(table.protocol)
    if resize == "model" or protocol is None:
        return model.preprocessing
    size = protocol.preprocessing
    return replace(model.preprocessing, size=size.size, mode=size.mode)


def _score(retrieved: Retrieved, choices: Choices, fitted: Fitted | None, own: Sequence[Path]) -> SetResult:
    scores, omissions = select_scores(choices.scores)
    if fitted is not None and fitted.combined is not None:
        scores = [*scores, fitted.combined]
    rows = [read_own_score(file, retrieved) for file in own]
    if includes_calibrated(choices.scores):
        calibrated = calibrated_score(retrieved, None if fitted is None else fitted.own)
        if isinstance(calibrated, str):
            omissions = {**omissions, CALIBRATED: calibrated}
        else:
            rows.insert(0, calibrated)
    return score_set(
        retrieved,
        scores,
        policy=choices.policy,
        calibrations=None if fitted is None else fitted.calibrations,
        own=rows,
        omissions=omissions,
        keep_twins=choices.keep_twins,
    )


@dataclass(frozen=True)
class Machine:
    """Options of embedding: cache, device, batch size. No option changes the result."""

    cache: Path | None = None
    """Folder of stored embeddings. Default: $KAPPAPLACE_CACHE, or the cache folder of the user."""
    device: str | None = None
    """Device of the model. Default: the first GPU, otherwise the CPU."""
    batch_size: int = 32
    """Number of images to embed at once."""
    root: Path | None = None
    """Folder of the images. Default: the folder stored in the table."""

    def __post_init__(self) -> None:
        # Checked before hours of reading files, and even if everything is cached.
        if self.device is not None:
            usable_device(self.device)
        within(self.batch_size, "batch_size", 1)


Descriptors: TypeAlias = "Embeddings | NDArray[np.floating]"


def evaluate(
    source: Encoder | nn.Module | str | Path | Descriptors | tuple[Descriptors, Descriptors],
    table: PlaceImages | str | Path,
    choices: Choices = Choices(),  # frozen
    machine: Machine = Machine(),
    *,
    name: str = "",
) -> EvaluationResult:
    """Evaluate retrieval and uncertainty scores on one table.

    Args:
        source: A model, its name or its folder. Or any torch module that returns descriptors B×d for images
            B×3×H×W. Or descriptors: one row per image of the table, or a pair for queries and references. A
            module is used with its attribute ``preprocessing`` (default: 512×512, ImageNet). Descriptors are
            arrays, or `Embeddings` with κ or a variance.
        table: Images with positions and their roles, or the file of such a table.
        choices: Scores, number of matches per query, handling of queries without positives, bootstrap.
        machine: Cache, device and batch size for embedding; no effect on the result.
        name: Name of the evaluation. Default: name of the table.

    Returns:
        Scores of all queries and matches, and every metric. `write_result` saves it, `compare` tests several.

    Raises:
        KappaPlaceError: If the model or the table cannot be read, if the table has too few images, or if
            embeddings and table differ in length.
    """
    images = table if isinstance(table, PlaceImages) else PlaceImages.open(table, machine.root)
    if isinstance(source, np.ndarray | tuple):
        query, reference = _sides(source, images)
        retrieved = from_descriptors(query, reference, None, images, k=choices.k, device=machine.device)
        fitted = None
    else:
        model = encoder_of(source)
        retrieved = from_table(images, _store(model, model.fingerprint, machine), choices.k)
        fitted = Fitted({}, None, None, calibration_with(model.fingerprint, model.preprocessing))
    return evaluate_sets(name or retrieved.name, [retrieved], choices, fitted=fitted)


def encoder_of(source: Encoder | nn.Module | str | Path) -> AnyModel:
    """Return a model for its name or folder, or the model itself. Other torch modules are wrapped, without
    κ."""
    if isinstance(source, str | Path):
        return load_model(source)
    if isinstance(source, nn.Module) and not isinstance(source, EncoderModule):
        return plain_encoder(source)
    return source  # type: ignore[return-value]


def _sides(
    source: Descriptors | tuple[Descriptors, Descriptors], table: PlaceImages
) -> tuple[Embeddings, Embeddings]:
    """Return the embeddings of the queries and of the references of a table."""
    if isinstance(source, tuple) and not isinstance(source, Embeddings):
        if len(source) != 2:
            raise KappaPlaceError(
                f"Descriptors must be one array, or two (queries and references), got {len(source)} arrays."
            )
        query, reference = (x if isinstance(x, Embeddings) else Embeddings(np.asarray(x)) for x in source)
        return query, reference
    every = source if isinstance(source, Embeddings) else Embeddings(source)
    if len(every.descriptor) != len(table):
        raise KappaPlaceError(
            f"There are {len(every.descriptor):,} descriptors for a table of {len(table):,} images. Pass one "
            "row per image, or a pair of arrays for its queries and its references."
        )
    return every.take(table.query_rows), every.take(table.reference_rows)


def _store(
    model: AnyModel, fingerprint: str, machine: Machine, preprocessing: Preprocessing | None = None
) -> EmbeddingStore:
    return EmbeddingStore.of(
        model,
        machine.cache,
        preprocessing,
        batch_size=machine.batch_size,
        device=machine.device,
        fingerprint=fingerprint,
    )


def evaluate_model(
    source: str | nn.Module,
    tables: Sequence[Path],
    choices: Choices,
    machine: Machine = Machine(),  # frozen
    *,
    name: str = "",
    validation: Path | None = None,
    own: Sequence[Path] = (),
    resize: Resize = "model",
) -> EvaluationResult:
    """Evaluate a model on tables.

    Args:
        source: The model: a folder, a weights file, a name, or any torch module that returns descriptors.
        tables: Files of the tables.
        choices: Options.
        machine: Options of embedding: cache, device, batch size.
        name: Name of the evaluation. Default: the name of the model.
        validation: Table on which probabilities and the combination of scores are fitted.
        own: CSV files with the user's own scores.
        resize: Image size of the model ("model") or of the protocol of each table ("protocol").

    Returns:
        Scores and metrics of all tables.

    Raises:
        KappaPlaceError: If there is no table, or the validation table is missing or evaluated as well.
    """
    if not tables:
        raise KappaPlaceError(
            "There is no table to evaluate the model on. Run `kappaplace evaluate MODEL TABLE… --out DIR`."
        )
    # Tables are small compared with descriptors.
    opened = [PlaceImages.open(path, machine.root) for path in tables]
    names = [table.name or path.stem for table, path in zip(opened, tables, strict=True)]
    if len(set(names)) < len(names):
        names = [path.stem for path in tables]
    fitting = None if validation is None else PlaceImages.open(validation, machine.root)
    if fitting is not None and fitting.content_hash in {table.content_hash for table in opened}:
        raise KappaPlaceError(
            f"{validation} cannot be used for both fitting and evaluation. Fit on a table of other places."
        )
    if fitting is None and choices.fuse:
        raise KappaPlaceError("A combination must be fitted on other queries. Pass --fit-on TABLE.")
    model, label = encoder_of(source), source if isinstance(source, str) else type(source).__name__
    fingerprint = model.fingerprint  # the weights are hashed once for all tables

    def retrieve(table: PlaceImages, title: str = "") -> Retrieved:
        size = preprocessing_for(model, table, resize)
        return from_table(table, _store(model, fingerprint, machine, size), choices.k, title)

    fitted = Fitted({}, None, None, calibration_with(fingerprint, model.preprocessing))
    facts: dict[str, Json] = {"model": label, "fingerprint": fingerprint, "resize": resize, **_encoder(model)}
    if fitting is not None:
        own_fit = fit_on(retrieve(fitting), choices)
        fitted = own_fit._replace(own=own_fit.own or fitted.own)
        facts |= {"fitted on": fitting.name, "fitted on hash": fitting.content_hash}
    sets = (retrieve(opened.pop(0), title) for title in names)
    return evaluate_sets(name or Path(label).name, sets, choices, fitted=fitted, own=own, facts=facts)


def _encoder(model: AnyModel) -> dict[str, Json]:
    """Return backbone and dimension of a model. The backbone of an exported model is unknown."""
    name = model.architecture.backbone if isinstance(model, PlaceModel) else getattr(model, "name", "")
    return {"backbone": name, "dim": model.dim}
