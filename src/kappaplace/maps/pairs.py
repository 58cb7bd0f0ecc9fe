"""Compare pairs of images: the probability that both show the same place, and the patches that agree.

Lists of pairs are read as CSV, or as text with two names per line, as hloc and COLMAP use it.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kappaplace.calibration.domain import KAPPA
from kappaplace.calibration.pairs import (
    PairCalibration,
    background_signals,
    fit_pairs,
    load_pairs,
    pair_signals,
    shipped_pairs,
)
from kappaplace.calibration.sources import bank_for
from kappaplace.checks import Bools, Floats
from kappaplace.data.appearance import APPEARANCE, appearance
from kappaplace.data.images import Source
from kappaplace.errors import KappaPlaceError
from kappaplace.files import telling, write_file
from kappaplace.maps.answer import pair_line
from kappaplace.maps.embed import load_named_model
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import PairOptions
from kappaplace.models.checkpoint import AnyModel
from kappaplace.progress import track
from kappaplace.retrieval.agreement import PatchMatches
from kappaplace.retrieval.patch_codes import LocalFeatures
from kappaplace.retrieval.patches import CACHED_MAPS, patch_matches
from kappaplace.types import Embeddings, Json

BLOCK = 256
"""Number of pairs that are compared at once; their feature maps are in memory together."""
COLUMNS = ("a", "b", "probability", "similarity", "patches", "kappa_a", "kappa_b", "note")
NOT_CALIBRATED = (
    "No probability: no calibration of pairs is shipped with this model. Fit one on your own labelled pairs "
    "with `kappaplace pair --fit`."
)
Paths = tuple[str, str]


@dataclass(frozen=True)
class PairAnswer:
    """Comparison of two images."""

    a: str
    """Name of the first image: its path, or its number."""
    b: str
    """Name of the second image."""
    probability: float | None
    """Probability that both show the same place. None if it is unknown; ``note`` has the reason."""
    similarity: float
    """Cosine similarity of the two descriptors; NaN if an image cannot be read."""
    patches: float
    """Fraction of patches that agree; NaN if the model has no patches."""
    kappa: tuple[float, float]
    """κ of both images; NaN from a model without a kappa head."""
    signals: Mapping[str, float]
    """Signals that the probability is based on; higher means less similar."""
    note: str = ""
    """Why there is no probability; empty if there is one."""
    evidence: PatchMatches | None = None
    """Pairs of patches that agree, if requested."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.probability is None:
            return self.note
        return f"{self.a} and {self.b} show the same place with probability {self.probability:.2f}."

    def to_dict(self) -> dict[str, Json]:
        """Convert the answer to plain values for JSON.

        Returns:
            The columns of a CSV file, and the ``sentence``. Unknown values are None.
        """
        return {**dict(zip(COLUMNS, _cells(self), strict=True)), "sentence": self.sentence}


def pair_probability(
    a: Source,
    b: Source,
    model: AnyModel | str | Path | None = None,
    options: PairOptions = PairOptions(),  # frozen
) -> float:
    """Return the probability that two images show the same place.

    Args:
        a: First image: a path, encoded bytes, a Pillow image or an H×W×3 uint8 array.
        b: Second image.
        model: Model, or its folder, file or name. Default: the pretrained model.
        options: Options of the comparison.

    Returns:
        The probability; NaN if an image is unlike all images that it was calibrated on, such as a blank one.

    Raises:
        KappaPlaceError: If an image cannot be read, or there is no calibration of pairs for the model.
    """
    (answer,) = compare_pairs([(a, b)], model, options)
    if answer.probability is None and (math.isnan(answer.similarity) or answer.note == NOT_CALIBRATED):
        raise KappaPlaceError(answer.note)
    return math.nan if answer.probability is None else answer.probability


def compare_pairs(
    pairs: Sequence[tuple[Source, Source]],
    model: AnyModel | str | Path | None = None,
    options: PairOptions = PairOptions(),  # frozen
    *,
    place_map: OpenMap | None = None,
) -> list[PairAnswer]:
    """Compare pairs of images. Each image is embedded once; unreadable images get a note.

    Args:
        pairs: Pairs of images: paths, encoded bytes, Pillow images or H×W×3 uint8 arrays.
        model: Model, or its folder, file or name. Default: the pretrained model, or the model of the map.
        options: Options of the comparison.
        place_map: Map of the area. Its other places are the background, which makes probabilities much more
            accurate. The second images should be taken like those of the map, for example belong to it.

    Returns:
        One answer per pair.

    Raises:
        KappaPlaceError: If the model or the calibration cannot be loaded.
    """
    encoder = place_map.model if place_map is not None else load_named_model(model)[0]
    calibration = shipped_pairs(encoder.fingerprint, encoder.preprocessing)
    if options.calibration is not None:
        calibration = load_pairs(options.calibration, encoder.fingerprint)
    images = _Images(encoder, options, place_map)
    answers: list[PairAnswer] = []
    with track("Comparing pairs", len(pairs)) as bar:
        for start in range(0, len(pairs), BLOCK):
            block = [_named(pair, start + i) for i, pair in enumerate(pairs[start : start + BLOCK])]
            images.embed({name: source for pair in block for name, source in pair})
            answers += _answers([(a[0], b[0]) for a, b in block], images, calibration, options)
            bar.advance(len(block))
    return answers


def calibrate_pairs(
    pairs: Sequence[tuple[Source, Source]],
    same: Sequence[bool],
    model: AnyModel | str | Path | None = None,
    options: PairOptions = PairOptions(),  # frozen
    *,
    place_map: OpenMap | None = None,
) -> PairCalibration:
    """Fit the probability on labelled pairs.

    Include the pairs that are hard for you: different places that look alike.

    Args:
        pairs: Pairs of images.
        same: Whether each pair shows the same place.
        model: Model, or its folder, file or name. Default: the pretrained model, or the model of the map.
        options: Options of the comparison.
        place_map: Map of the area; the calibration is then valid with this background, too.

    Returns:
        The calibration, for `save_pairs`.

    Raises:
        KappaPlaceError: If there are too few readable pairs.
    """
    answers = compare_pairs(pairs, model, options, place_map=place_map)
    rows = [row for row, answer in enumerate(answers) if answer.signals]
    names = list(answers[rows[0]].signals) if rows else []
    signals = {name: np.array([answers[row].signals[name] for row in rows]) for name in names}
    labels: Bools = np.array([same[row] for row in rows], bool)
    encoder = place_map.model if place_map is not None else load_named_model(model)[0]
    return fit_pairs(signals, labels, encoder.fingerprint)


class _Image(NamedTuple):
    """One image of a pair."""

    embeddings: Embeddings | None
    """None if the image cannot be read."""
    note: str
    """Why it has no probability; empty if it has one."""


class _Images:
    """Embeddings of the latest images of a list of pairs."""

    def __init__(self, model: AnyModel, options: PairOptions, place_map: OpenMap | None) -> None:
        self.model, self.options, self.place_map = model, options, place_map
        self.domain = bank_for(model.fingerprint, model.preprocessing, 0)
        self._images: OrderedDict[str, _Image] = OrderedDict()

    def __getitem__(self, name: str) -> _Image:
        return self._images[name]

    def embed(self, sources: Mapping[str, Source]) -> None:
        """Embed new images, and forget old ones that are not among them."""
        for name in sources.keys() & self._images.keys():
            self._images.move_to_end(name)
        new = {name: source for name, source in sources.items() if name not in self._images}
        while len(self._images) + len(new) > max(CACHED_MAPS, len(sources)):
            self._images.popitem(last=False)
        for batch in _batches(list(new), self.options.batch_size):
            self._add({name: new[name] for name in batch})

    def _add(self, sources: dict[str, Source]) -> None:
        try:
            embeddings = self._embedded(list(sources.values()))
        except KappaPlaceError:
            for name, source in list(sources.items()):
                try:
                    self.model.preprocessing.image(source)
                except KappaPlaceError as error:
                    self._images[name] = _Image(None, str(error))
                    del sources[name]
            if not sources:
                return
            embeddings = self._embedded(list(sources.values()))  # another cause raises its error here
        signals = dict(zip(APPEARANCE, appearance(list(sources.values())).T, strict=True))
        if embeddings.kappa is not None:
            signals[KAPPA] = np.log(np.asarray(embeddings.kappa, np.float64))
        reasons = [""] * len(sources) if self.domain is None else self.domain.differences(signals)
        for row, (name, reason) in enumerate(zip(sources, reasons, strict=True)):
            note = f"No probability: {name} is unlike the images of the calibration ({reason})."
            self._images[name] = _Image(embeddings.take([row]), note if reason else "")

    def _embedded(self, sources: list[Source]) -> Embeddings:
        patches, size = self.model.shows_patches, self.options.batch_size
        if self.place_map is not None:
            return self.place_map.embed(sources, size, patches=patches)
        device = self.options.device or None
        return self.model.embed(sources, batch_size=size, device=device, progress=False, patches=patches)


def _answers(
    names: Sequence[Paths], images: _Images, calibration: PairCalibration | None, options: PairOptions
) -> list[PairAnswer]:
    """Return the answers of one block; all images are embedded."""
    readable = [row for row, pair in enumerate(names) if all(images[name].embeddings for name in pair)]
    answers = [
        PairAnswer(*pair, None, math.nan, math.nan, (math.nan, math.nan), {}, _note(images, pair))
        for pair in names
    ]
    if not readable:
        return answers
    first, second = (_stacked([images[names[row][side]] for row in readable]) for side in (0, 1))
    signals = pair_signals(first, second)
    if images.place_map is not None and "patches" in signals:
        agreement = 1.0 - signals["patches"]
        signals |= background_signals(first, second, images.place_map.references, agreement)
    probabilities: Floats | None = None
    if calibration is not None:
        probabilities = calibration.probability(signals, options.same_rate)
    for number, row in enumerate(readable):
        note = answers[row].note or ("" if calibration is not None else NOT_CALIBRATED)
        kappas = [math.nan if part.kappa is None else float(part.kappa[number]) for part in (first, second)]
        evidence = None
        if options.evidence and first.patches is not None:
            features = [
                LocalFeatures.of(torch.from_numpy(part.patches[number : number + 1]))
                for part in (first, second)
            ]
            evidence = patch_matches(*features)
        answers[row] = replace(
            answers[row],
            probability=None if note or probabilities is None else float(probabilities[number]),
            similarity=1.0 - float(signals["cosine"][number]),
            patches=1.0 - float(signals["patches"][number]) if "patches" in signals else math.nan,
            kappa=(kappas[0], kappas[1]),
            signals={name: float(values[number]) for name, values in signals.items()},
            note=note,
            evidence=evidence,
        )
    return answers


def _note(images: _Images, pair: Paths) -> str:
    """Return why a pair has no probability; unreadable images come first."""
    parts = sorted((images[name] for name in pair), key=lambda image: image.embeddings is not None)
    return next((image.note for image in parts if image.note), "")


def _stacked(images: Sequence[_Image]) -> Embeddings:
    columns = zip(*(image.embeddings for image in images if image.embeddings is not None), strict=True)
    return Embeddings(*(None if column[0] is None else np.concatenate(column) for column in columns))


def _named(pair: tuple[Source, Source], number: int) -> tuple[tuple[str, Source], tuple[str, Source]]:
    """Return the images of a pair with their names: a path, or the number of the pair."""
    a, b = (
        (os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {number + 1}{side}", source)
        for side, source in zip("ab", pair, strict=True)
    )
    return a, b


def _batches(names: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def read_pairs(file: str | Path) -> tuple[list[Paths], list[bool]]:
    """Read a list of pairs.

    Args:
        file: A CSV file, whose first two columns are image names and whose column ``same`` (optional) has 1
            for pairs of the same place; or a text file with two names per line, as for hloc and COLMAP.

    Returns:
        The pairs, and their labels; no labels if the file has none.

    Raises:
        KappaPlaceError: If the file cannot be read, or a line does not have two names.
    """
    file = Path(file)
    with telling(f"{file} is not a list of pairs"):
        text = file.read_text(encoding="utf-8-sig")
    if file.suffix.lower() != ".csv":
        lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
        rows = [(number, cells) for number, cells in lines if cells and not cells[0].startswith("#")]
        wrong = next((number for number, cells in rows if len(cells) != 2), None)
        if wrong is not None:
            raise KappaPlaceError(f"{file}, line {wrong}: expected two image names. Use a CSV file for more.")
        return [(cells[0], cells[1]) for _, cells in rows], []
    table = [cells for cells in csv.reader(io.StringIO(text)) if cells]
    if len(table) < 2 or min(map(len, table)) < 2:
        raise KappaPlaceError(f"{file} needs a header and two columns of image names. Correct it.")
    pairs = [(cells[0], cells[1]) for cells in table[1:]]
    header = [name.strip().lower() for name in table[0]]
    if "same" not in header:
        return pairs, []
    column = header.index("same")
    return pairs, [
        _label(file, number, cells[column : column + 1]) for number, cells in enumerate(table[1:], 2)
    ]


def _label(file: Path, line: int, cells: Sequence[str]) -> bool:
    text = "".join(cells).strip().lower()
    if text not in ("0", "1", "true", "false"):
        raise KappaPlaceError(f'{file}, line {line}: same must be 1 or 0, got "{text}".')
    return text in ("1", "true")


def save_answers(answers: Iterable[PairAnswer], file: str | Path) -> None:
    """Write answers as CSV; a ``.txt`` file gets only the two names per line, as hloc and COLMAP read them.

    Args:
        answers: The answers.
        file: The file.

    Raises:
        KappaPlaceError: If a name for a text file contains a space, or the file cannot be written.
    """
    file = Path(file)
    if file.suffix.lower() != ".csv":
        text = "".join(f"{pair_line(answer.a, answer.b)}\n" for answer in answers)
    else:
        stream = io.StringIO(newline="")
        cells = (["" if cell is None else cell for cell in _cells(answer)] for answer in answers)
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *cells])
        text = stream.getvalue()
    write_file(file, text.encode("utf-8", "surrogateescape"))


def _cells(answer: PairAnswer) -> list[Json]:
    numbers = (answer.probability, answer.similarity, answer.patches, *answer.kappa)
    shown = [None if value is None or math.isnan(value) else round(value, 6) for value in numbers]
    return [answer.a, answer.b, *shown, answer.note]
