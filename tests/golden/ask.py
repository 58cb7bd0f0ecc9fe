"""The questions whose answers are stored: each takes the golden folder as the working folder.

``EXACT`` start from stored descriptors, features or files. ``ENCODED`` run images through a network, whose
numbers depend a little on the machine.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.api import (
    CalibrateOptions,
    Embeddings,
    Examples,
    KappaPlaceError,
    LocalizeOptions,
    PlaceMap,
    closures,
    command,
    fit_calibration,
    fit_combination,
    load_calibration,
    load_model,
    own_encoder,
)

MAPS = ("float32", "float16", "int8", "pq", "fitted", "compared")
MODELS = ("mirrored", "none", "layers", "variance", "linear", "half", "frozen")
CALIBRATORS = ("logistic", "beta", "temperature", "logit-temperature", "isotonic", "bent", "lone")
SCORES = ("cosine", "margin", "aliasing")
NOT_KEPT = (
    *("seconds", "map", "files", "bytes", "kappaplace", "times", "report", "picture", "image", "state"),
    "checksum",
)
"""Times, addresses, versions and checksums, which are no part of an answer."""


def plain(value: Any) -> Any:
    """As JSON would give it back, without what changes from run to run."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in NOT_KEPT}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.10g}")  # finer than any comparison
    return value if value is None or isinstance(value, bool | int) else str(value)


def queries_of(name: str) -> tuple[Embeddings, list[str]]:
    """Stored descriptors and κ of the queries, by the model of a map."""
    with np.load("queries-fitted.npz" if name == "fitted" else "queries.npz") as stored:
        return Embeddings(stored["descriptor"], stored["kappa"]), stored["names"].tolist()


def localized(name: str) -> Any:
    """Every query of a map from stored descriptors, asked in several ways."""
    town = PlaceMap.open(f"{name}.map")
    made, names = queries_of(name)
    first = json.loads(Path("places.json").read_text())["near"]
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "near": {"area": tuple(first)},
        "rerank": {"order": "probability", "k": 5},
        "outside": {"outside_rate": 0.4, "k": 3},
        "exact": {"k": 2},
    }
    answers: dict[str, Any] = {}
    for way, options in ways.items():
        asked = PlaceMap.open(f"{name}.map", engine="exact") if way == "exact" else town
        options = LocalizeOptions(**{"k": 4, **options, "rerank": 0})
        try:
            answers[way] = [each.to_dict() for each in asked.localize_embeddings(made, names, options)]
        except KappaPlaceError as refusal:
            answers[way] = str(refusal)
    return answers


def described(name: str) -> Any:
    """`map info` and `map verify`."""
    words = [json.loads(command("map", what, f"{name}.map", "--json")) for what in ("info", "verify")]
    return dict(zip(("info", "verify"), words, strict=True))


def evaluated() -> Any:
    """From descriptors, κ and a table."""
    with tempfile.TemporaryDirectory() as out:
        return json.loads(
            command(
                *("evaluate", "--descriptors", "query.npy", "reference.npy", "town.parquet", "--kappa"),
                *("query-kappa.npy", "reference-kappa.npy", "--out", out, "--resamples", 50, "--no-report"),
                *("--name", "golden", "--keep-twins", "--json"),  # the synthetic views resemble each other
            )
        )


def compared() -> Any:
    """Two stored evaluations."""
    with tempfile.TemporaryDirectory() as out:
        words = ("--resamples", 50, "--no-report", "--json", "--out", out)
        return json.loads(command("compare", "evaluations/one", "evaluations/other", *words))


def calibration_examples() -> dict[str, Any]:
    """Stored features and outcomes."""
    with np.load("features.npz") as stored:
        return {key: stored[key] for key in stored.files}


def calibration(name: str, examples: dict[str, Any]) -> Any:
    """A calibration fitted on stored features."""
    features, right, outside = examples["features"], examples["right"], examples["outside"]
    if name == "lone":
        alone = Examples(features[:, 0], right, ["cosine"], labeled=False)
        return fit_calibration(alone, CalibrateOptions(max_risk=None))
    options = CalibrateOptions(0.25, 0.9, outside_rate=0.2, calibrator="best" if name == "bent" else name)
    pairs = (examples["pair_features"], examples["pair_right"], SCORES[:2])
    known = Examples(features, right, SCORES, *pairs, outside, facts={"origin": "golden"})
    if name != "bent":
        return fit_calibration(known, options)
    combination = fit_combination(features, right, SCORES, bends=3)
    known = replace(known, groups=np.arange(len(right)) // 3, signals={"kappa": features[:, 1]})
    return fit_calibration(known, replace(options, seed=5), combination=combination)


def judged(name: str) -> Any:
    """What a stored calibration says of stored features, and what a fit gives now."""
    examples = calibration_examples()
    stored, fitted = load_calibration(f"calibrations/{name}.json"), calibration(name, examples)
    answers = {}
    for what, made in (("stored", stored), ("fitted", fitted)):
        features = examples["asked"][:, 0] if name == "lone" else examples["asked"]
        told = {"probability": made.probability(features), "uncertainty": made.uncertainty(features)}
        if name != "lone":
            told["at"] = made.probability(features, 0.5)
            told["inside"] = made.inside_probability(features)
            told["pairs"] = made.pair_probability(examples["pair_asked"])
            told["decisions"] = [str(decision) for decision in made.decide(features)]
            told["promise"] = made.rule.promise()
        answers[what] = told
    return answers


def monitored() -> Any:
    """Stored answers, taken in after the stored state."""
    with tempfile.TemporaryDirectory() as folder:
        state = shutil.copy("float32.map.monitor.json", Path(folder) / "state.json")
        words = ("map", "monitor", "float32.map", "answers.jsonl", "--state", state, "--json")
        try:
            return json.loads(command(*words))
        except AssertionError:
            return json.loads(command(*words, code=1))


def closed(**settings: Any) -> Any:
    """A stored drive, closed with its stored calibration."""
    return closures(
        Path("drive/embeddings.npz"), Path("drive/odometry.tum"), Path("drive/closures.json"), **settings
    )


def closures_calibrated() -> Any:
    """`slam calibrate` of the stored drive: its descriptors lie where an earlier run kept them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "drive"
        shutil.copytree("drive", out)
        words = ("--odometry", out / "odometry.tum", "--truth", out / "truth.tum", "--out", out / "new.json")
        said = command("slam", "calibrate", "drive/drive.parquet", *words, "--model", "models/mirrored")
        return {"said": said.partition("\n")[0], "calibration": json.loads((out / "new.json").read_text())}


def embedded(name: str) -> Any:
    """Descriptors and κ of some images by a stored model."""
    encoder = own_encoder() if name == "frozen" else None
    file = f"models/{name}" if name in MODELS else name
    made = load_model(file, encoder=encoder).embed(_images(4))
    return {"descriptor": made.descriptor, "kappa": made.kappa}


def asked(name: str, *words: object) -> Any:
    """`localize` of images, as it comes."""
    with tempfile.TemporaryDirectory() as folder:  # the map gets a copy of the model
        copy = shutil.copytree(f"{name}.map", Path(folder) / "town.map")
        said = command("localize", copy, *_images(8), "--json", "--k", 3, *_model(name), *words)
    return [json.loads(line) for line in said.splitlines()]


def _model(name: str) -> tuple[str, ...]:
    """These maps name their model by its path, so it must be passed, apart from a map with a model inside."""
    return () if name == "fitted" else ("--model", "models/mirrored")


def calibrated(name: str, *words: object) -> Any:
    """`calibrate` of a copy of a map; what it then says of the queries."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(f"{name}.map", Path(folder) / "town.map")
        facts = json.loads(command("calibrate", copy, *words, *_model(name), "--json"))
        made, names = queries_of(name)
        found = PlaceMap.open(copy).localize_embeddings(made, names, LocalizeOptions(k=1, rerank=0))
        return {"facts": facts, "probability": [each.probability for each in found]}


def model_evaluated() -> Any:
    """A model on a table."""
    with tempfile.TemporaryDirectory() as out:
        words = ("--out", out, "--cache", out, "--resamples", 20, "--no-report", "--json")
        return json.loads(command("evaluate", "models/mirrored", "town.parquet", "--keep-twins", *words))


def _images(count: int) -> list[str]:
    return json.loads(Path("places.json").read_text())["queries"][:count]


Question = Callable[[], Any]

EXACT: dict[str, Question] = {
    **{f"localize-{name}": lambda name=name: localized(name) for name in MAPS},
    **{f"map-{name}": lambda name=name: described(name) for name in MAPS},
    **{f"calibration-{name}": lambda name=name: judged(name) for name in CALIBRATORS},
    "evaluate": evaluated,
    "compare": compared,
    "monitor": monitored,
    "slam-closures": closed,
    "slam-closures-strict": lambda: [
        [each[key] for key in ("query", "match", "probability", "accepted", "reason")]
        for each in closed(max_risk=0.002, recent=120.0, drift=None)
    ],
    "slam-calibrate": closures_calibrated,
}

LABELS = ("--labels", "labels-2.csv", "--max-risk", 0.5, "--confidence", 0.8, "--keep-twins")
ENCODED: dict[str, Question] = {
    **{f"embed-{name}": lambda name=name: embedded(name) for name in MODELS},
    "embed-onnx": lambda: embedded("models/place.onnx"),
    **{f"images-{name}": lambda name=name: asked(name) for name in MAPS},
    "images-verified": lambda: asked("float16", "--verify", 3),
    "calibrate-self": lambda: calibrated("int8", "--self", "--outside-rate", 0.2, "--max-risk", 0.3),
    "calibrate-labels-2": lambda: calibrated("float16", *LABELS),
    "calibrate-labels-1": lambda: calibrated("float16", "--labels", "labels-1.csv", *LABELS[2:]),
    "evaluate-model": model_evaluated,
}
