"""Reads answers with scores and outcomes: closure logs, matrices, descriptors, and results of other projects.

| input | scores |
|---|---|
| CSV file, or JSON lines (``.jsonl``) | columns ``score``, ``correct``; optional: ``drive`` or ``session`` |
| ``.npy`` or ``.npz`` file | similarity matrix, or distances |
| two ``.npy`` files | descriptors of queries and references |
| folder of VPR-methods-evaluation | distance of the best match; also its ``z_data.torch`` alone |
| ``.pickle`` file of SUE | distance of the best match, or number of inliers |

Files of other projects are pickles. Only arrays, lists and numbers are read from them, never code.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kappaplace.checks import Bools, Floats, Rows
from kappaplace.data.positives import Positives
from kappaplace.data.readers.pickles import Value, pickled, plain
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.arrays import Array, read_embeddings, read_positives, read_similarities
from kappaplace.evaluation.audits import ScoredAnswers
from kappaplace.evaluation.inputs import NO_LABELS, unit_length
from kappaplace.evaluation.options import DISTANCES, AnswerFiles, Metric
from kappaplace.files import telling

PAIRS = 1 << 22
"""Similarities in memory at once."""
DRIVE_COLUMNS = ("drive", "session")
TRUE, FALSE = {"1", "true", "yes"}, {"0", "false", "no"}
SUE_ORDER = (
    *("q_mu", "db_mu", "q_sigma_sq", "db_sigma_sq", "preds", "dists", "gt", "", "", "", "ref_poses"),
    *("delf_inliers", "sift_inliers", "superpoint_inliers"),
)
"""Objects of a SUE file, one pickle after the other; later ones are not read."""


def read_answers(files: Sequence[Path], options: AnswerFiles = AnswerFiles()) -> ScoredAnswers:  # frozen
    """Read answers from one file or folder, or from two files of descriptors.

    Args:
        files: The files; see the table above.
        options: Labels, columns and the kind of score.

    Returns:
        Scores and outcomes of all answers.

    Raises:
        KappaPlaceError: If the files cannot be read, or the labels are missing.
    """
    first, suffix = files[0], files[0].suffix.lower()
    if len(files) == 2 and {file.suffix.lower() for file in files} == {".npy"}:
        return _descriptors(files[0], files[1], options)
    if len(files) > 1:
        raise KappaPlaceError(
            f"An audit reads one file, or two .npy files of descriptors, got {len(files)} files. "
            f"Audit them one by one."
        )
    if not first.exists():
        raise KappaPlaceError(f"There is no file {first}. Check the path.")
    if first.is_dir():
        return _vpr_methods(first, options)
    readers: dict[str, Callable[[Path, AnswerFiles], ScoredAnswers]] = {
        ".csv": _log,
        ".jsonl": _log,
        ".npy": _matrix,
        ".npz": _matrix,
        ".torch": _z_data,
        ".pickle": _sue,
        ".pkl": _sue,
    }
    if suffix not in readers:
        raise KappaPlaceError(f"{first} has an unknown type. Choose from: {', '.join(readers)}.")
    return readers[suffix](first, options)


def _log(file: Path, options: AnswerFiles) -> ScoredAnswers:
    rows = _lines(file)
    if not rows:
        raise KappaPlaceError(f"{file} has no answers. Write one row per answer.")
    score = options.score or "score"
    for name in (score, options.correct):
        if name not in rows[0]:
            raise KappaPlaceError(
                f"{file} has no column '{name}', only {', '.join(rows[0])}. Pass --score and --correct."
            )
    scores = np.array([_number(file, number, row, score) for number, row in enumerate(rows, 1)])
    correct = [_truth(file, number, row, options.correct) for number, row in enumerate(rows, 1)]
    drive = next((name for name in DRIVE_COLUMNS if name in rows[0]), "")
    drives = np.array([str(row.get(drive)) for row in rows]) if drive else None
    return ScoredAnswers(scores, np.array(correct), options.distance, drives=drives)


def _lines(file: Path) -> list[dict[str, object]]:
    with telling(f"{file} cannot be read"), file.open(encoding="utf-8-sig", newline="") as stream:
        if file.suffix.lower() == ".csv":
            return [dict(row) for row in csv.DictReader(stream)]
        rows = [json.loads(line) for line in stream if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("each line must be an object")
        return rows


def _number(file: Path, number: int, row: dict[str, object], name: str) -> float:
    value = row.get(name)
    try:
        result = float(value) if isinstance(value, str | int | float) else float("nan")
    except ValueError:
        result = float("nan")
    if not np.isfinite(result):
        raise KappaPlaceError(f"{file}: {name} of answer {number} must be a finite number, got {value!r}.")
    return result


def _truth(file: Path, number: int, row: dict[str, object], name: str) -> bool:
    text = str(row.get(name)).strip().lower()
    if text not in TRUE | FALSE:
        raise KappaPlaceError(
            f"{file}: {name} of answer {number} must be true or false, got {row.get(name)!r}."
        )
    return text in TRUE


def _matrix(file: Path, options: AnswerFiles) -> ScoredAnswers:
    matrices = read_similarities(file, options.score)
    if len(matrices) > 1:
        raise KappaPlaceError(
            f"{file} has several matrices. Pass --score with one of: {', '.join(matrices)}."
        )
    matrix = next(iter(matrices.values()))
    step = max(1, PAIRS // max(1, matrix.shape[1]))
    blocks = (matrix[start : start + step] for start in range(0, len(matrix), step))
    return _best(blocks, matrix.shape, options, options.distance)


def _descriptors(query: Path, reference: Path, options: AnswerFiles) -> ScoredAnswers:
    if options.distance and options.metric in ("cosine", "dot"):
        raise KappaPlaceError(
            f"--distance applies to logs and matrices, got the metric {options.metric}. Pass --metric l2."
        )
    sides = [np.asarray(read_embeddings(file).descriptor, np.float32) for file in (query, reference)]
    if sides[0].shape[1] != sides[1].shape[1]:
        raise KappaPlaceError(
            f"Descriptors of queries and references must have the same dimension, got {sides[0].shape[1]} "
            f"and {sides[1].shape[1]}. Use files of the same model."
        )
    scores, best = best_scores(sides[0], sides[1], options.metric)
    return _labeled(scores, best, (len(sides[0]), len(sides[1])), options, options.metric in DISTANCES)


def best_scores(
    queries: NDArray[np.floating], references: NDArray[np.floating], metric: Metric
) -> tuple[Floats, Rows]:
    """Compare all queries with all references.

    Args:
        queries: Descriptors, N×d.
        references: Descriptors, R×d.
        metric: Score of two descriptors.

    Returns:
        Best score of each query, and the row of its reference.
    """
    if metric == "cosine":
        queries, references = unit_length(queries, "queries"), unit_length(references, "references")
    squares = np.einsum("ij,ij->i", references, references, dtype=np.float64)
    scores, best = np.empty(len(queries)), np.empty(len(queries), np.int64)
    step = max(1, PAIRS // max(1, len(references)))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        dots = queries[part] @ references.T
        if metric in ("cosine", "dot"):
            best[part] = dots.argmax(axis=1)
            scores[part] = dots.max(axis=1)
            continue
        best[part] = (squares - 2.0 * dots).argmin(axis=1)
        # exact, for the best references only
        gaps = queries[part].astype(np.float64) - references[best[part]]
        scores[part] = np.einsum("ij,ij->i", gaps, gaps)
    return np.sqrt(scores) if metric == "l2" else scores, best


def _best(
    blocks: Iterable[Array], shape: tuple[int, ...], options: AnswerFiles, lower: bool
) -> ScoredAnswers:
    scores, best = [], []
    for block in blocks:
        values = np.asarray(block, np.float64)
        if not np.isfinite(values).all():
            raise KappaPlaceError("Some scores of the matrix are NaN or infinite. Check how it was computed.")
        rows = values.argmin(axis=1) if lower else values.argmax(axis=1)
        best.append(rows)
        scores.append(values[np.arange(len(values)), rows])
    return _labeled(np.concatenate(scores), np.concatenate(best), (shape[0], shape[1]), options, lower)


def _labeled(
    scores: Floats, best: Rows, shape: tuple[int, int], options: AnswerFiles, lower: bool
) -> ScoredAnswers:
    """Add the outcomes to the best match of each query."""
    if len(options.tables) > 1:
        raise KappaPlaceError(
            f"An audit reads at most one table, got {len(options.tables)}. Omit the others."
        )
    table = PlaceImages.open(options.tables[0]) if options.tables else None
    positives = None if options.positives is None else read_positives(options.positives, shape[1])
    if positives is None:
        if table is None:
            raise KappaPlaceError(NO_LABELS)
        positives = table.positives()
    if (positives.queries, positives.references) != shape:
        raise KappaPlaceError(
            f"The scores are of {shape[0]:,} queries and {shape[1]:,} references, but the labels of "
            f"{positives.queries:,} and {positives.references:,}. Use files of the same dataset."
        )
    drives, order, sequence = None, np.arange(len(scores)), False
    if table is not None and table.neighborhood.kind == "frames":
        drives = table.condition[table.query_rows]
        order = np.lexsort((table.frame_numbers()[table.query_rows], drives))
        drives, sequence = drives[order], True
    return ScoredAnswers(
        scores[order],
        positives.hits(best[:, None])[order, 0],
        lower,
        (positives.counts > 0)[order],
        drives,
        sequence,
    )


def _vpr_methods(folder: Path, options: AnswerFiles) -> ScoredAnswers:
    """Read the log folder of VPR-methods-evaluation."""
    if (folder / "z_data.torch").is_file():
        return _z_data(folder / "z_data.torch", options)
    names = ("queries_descriptors.npy", "database_descriptors.npy")
    files = [folder / name for name in names]
    if not all(file.is_file() for file in files):
        raise KappaPlaceError(
            f"{folder} has no descriptors. Run VPR-methods-evaluation with --save_descriptors and "
            "--num_preds_to_save 1, or pass the files."
        )
    if options.positives is not None or options.tables:
        return _descriptors(files[0], files[1], options)
    queries, references = (np.asarray(read_embeddings(file).descriptor, np.float32) for file in files)
    scores, _ = best_scores(queries, references, options.metric)
    correct, answerable = _predictions(folder / "preds", len(scores))
    return ScoredAnswers(scores, correct, options.metric in DISTANCES, answerable)


def _predictions(folder: Path, count: int) -> tuple[Bools, Bools]:
    """Return whether the first prediction of each query is correct, and whether it has a positive."""
    files = {int(file.stem): file for file in folder.glob("*.txt") if file.stem.isdigit()}
    if sorted(files) != list(range(count)):
        raise KappaPlaceError(
            f"{folder} has predictions of {len(files):,} of {count:,} queries. Run VPR-methods-evaluation "
            "with labels, --num_preds_to_save 1 and without --save_only_wrong_preds."
        )
    correct, answerable = np.zeros(count, bool), np.zeros(count, bool)
    for number, file in files.items():
        with telling(f"{file} cannot be read"):
            sections = re.split(r"^(\w+) paths?:$", file.read_text(encoding="utf-8"), flags=re.M)
        parts = {
            name: [line for line in text.splitlines() if line.strip()]
            for name, text in zip(sections[1::2], sections[2::2], strict=True)
        }
        if not parts.get("Predictions") or "Positives" not in parts:
            raise KappaPlaceError(
                f"{file} lists no predictions with positives. Run VPR-methods-evaluation with labels."
            )
        correct[number] = parts["Predictions"][0] in parts["Positives"]
        answerable[number] = bool(parts["Positives"])
    return correct, answerable


def _z_data(file: Path, options: AnswerFiles) -> ScoredAnswers:
    """Read `z_data.torch`, a zip file with one pickle of NumPy arrays."""
    with telling(f"{file} cannot be read as results of VPR-methods-evaluation"):
        with zipfile.ZipFile(file) as stored:
            part = next(each for each in stored.infolist() if each.filename.endswith("data.pkl"))
            if part.compress_type != zipfile.ZIP_STORED:  # as torch writes it; others may grow without bound
                raise ValueError("it is compressed")
            values = pickled(io.BytesIO(stored.read(part)))
        if not isinstance(values, dict) or "positives_per_query" not in values:
            raise ValueError("it has no positives_per_query, so run with labels")
        return _neighbors(values["predictions"], values["distances"], values["positives_per_query"])


def _sue(file: Path, options: AnswerFiles) -> ScoredAnswers:
    """Read the file of SUE: the objects of `SUE_ORDER`, each pickled."""
    with telling(f"{file} cannot be read as results of SUE"):
        stream = io.BytesIO(file.read_bytes())
        values = {name: pickled(stream) for name in SUE_ORDER}
        answers = _neighbors(values["preds"], values["dists"], values["gt"])
        inliers = [name for name in SUE_ORDER if name.endswith("inliers")]
        if options.score in ("", "dists"):
            return answers
        if options.score not in inliers:
            raise KappaPlaceError(
                f"Unknown score '{options.score}'. Choose from: dists, {', '.join(inliers)}."
            )
        counts = _array(values[options.score]).reshape(-1)
        return ScoredAnswers(counts, answers.correct, False, answers.answerable)


def _neighbors(predictions: Value, distances: Value, positives: Value) -> ScoredAnswers:
    """Return the best match of each query with its distance."""
    best, gaps = _array(predictions)[:, 0].astype(np.int64), _array(distances)[:, 0]
    lists = [np.array(row, np.int64).reshape(-1) for row in plain(positives)]
    highest = max([int(best.max()), *(int(row.max()) for row in lists if len(row))])
    labels = Positives.from_lists(lists, highest + 1)
    if labels.queries != len(best):
        raise ValueError(f"it has {len(best)} predictions but positives of {labels.queries} queries")
    return ScoredAnswers(gaps, labels.hits(best[:, None])[:, 0], True, labels.counts > 0)


def _array(value: Value) -> Array:
    """Return an array of the pickle as numbers."""
    return np.array(plain(value), np.float64)
