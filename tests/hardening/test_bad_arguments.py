"""Every public function, given what makes no sense: wrong shapes and types, NaN, nothing, too much, too many.

The table names everything public, so that what is added without a line here fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import kappaplace
from kappaplace import (
    Evidence,
    FrozenEncoder,
    Neighborhood,
    PlaceImages,
    PlaceMap,
    PlaceModel,
    Preprocessing,
    SyntheticCity,
    fit_calibration,
    load_model,
    retrieve,
    save_model,
    score,
    search,
    vmf,
)
from kappaplace.calibration import CalibrateOptions, Examples
from kappaplace.client import Client
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation import (
    Choices,
    Machine,
    compare,
    evaluate,
    evaluate_sets,
    measure,
    read_result,
    write_result,
)
from kappaplace.maps import (
    AddOptions,
    BuildOptions,
    FitOptions,
    LocalizeOptions,
    MapMonitor,
    calibrate_map,
    calibrate_map_on_labels,
    estimate_fit,
    fit_map,
    self_calibrate_map,
)
from kappaplace.retrieval import open_engine, quantize, search_matrix
from kappaplace.retrieval.references import ArrayReferences, Queries
from kappaplace.slam import ClosingSettings, Frame, LoopCloser
from kappaplace.types import Embeddings
from kappaplace_city import write_city
from tests.hardening.valid import world
from tests.slam.synthetic import calibration

PUBLIC = (
    "kappaplace",
    "kappaplace.vmf",
    "kappaplace.evaluation",
    "kappaplace.maps",
    "kappaplace.slam",
    "kappaplace.retrieval",
    "kappaplace_city",
)
NAN, INF = float("nan"), float("inf")
UNIT = np.eye(6, 4, dtype=np.float32)
UNIT[4:] = UNIT[:2]
Call = Callable[[Any], object]


def _images(**changed: Any) -> PlaceImages:
    return PlaceImages.create(["a.jpg", "b.jpg"], **({"positions": np.zeros((2, 2))} | changed))


CALLS: dict[str, list[Call]] = {
    "Client": [
        lambda _: Client("no address"),
        lambda _: Client("ftp://host"),
        lambda _: Client("http://host", timeout=-1.0),
        lambda _: Client("http://host", tries=0),
    ],
    "FrozenEncoder": [
        lambda _: FrozenEncoder(torch.nn.Identity(), layer="no.such.layer"),
        lambda _: FrozenEncoder("resnet"),  # type: ignore[arg-type]
    ],
    "PlaceImages": [
        lambda _: _images(positions=np.zeros((3, 2))),
        lambda _: _images(positions=np.zeros(2)),
        lambda _: _images(positions=np.array([[0, INF], [0, 0]])),
        lambda _: _images(positions=np.array([["x", "y"], ["z", "w"]])),
        lambda _: _images(heading=np.zeros(5)),
        lambda _: _images(radius=-1.0),
        lambda _: _images(radius=NAN),
        lambda _: _images(radius=1e308),
        lambda _: _images(frame="EPSG:none"),
        lambda folder: PlaceImages.open(folder / "none.parquet"),
        lambda _: _images().select(np.array([7])),
        lambda _: _images().select(np.array([-3])),
    ],
    "PlaceMap": [
        lambda folder: PlaceMap.open(folder / "none.map"),
        lambda folder: PlaceMap.open(folder / "images"),
        lambda folder: PlaceMap.open(folder / "town.map", folder / "other").localize(
            folder / "images/000.png"
        ),
        lambda folder: PlaceMap.build(folder / "none", folder / "new.map", str(folder / "model")),
        lambda folder: PlaceMap.build([], folder / "new.map", str(folder / "model")),
        lambda folder: PlaceMap.build(folder / "images", folder / "new.map", "no-such-model"),
        lambda folder: PlaceMap.build(folder / "images", folder / "table.parquet", str(folder / "model")),
        lambda folder: PlaceMap.build(
            folder / "images", folder / "new.map", folder / "model", options=BuildOptions(radius=NAN)
        ),
        lambda folder: _town(folder).localize(folder / "images/000.png", k=-1),
        lambda folder: _town(folder).localize(folder / "images/000.png", k=0),
        lambda folder: _town(folder).localize(folder / "images/000.png", area=(0.0, 0.0, NAN)),
        lambda folder: _town(folder).localize(folder / "images/000.png", area=(0.0, 0.0, -1.0)),
        lambda folder: _town(folder).localize(folder / "images/000.png", area=1e308),
        lambda folder: _town(folder).localize(folder / "images/000.png", area=((0.0,), 1.0)),
        lambda folder: _town(folder).localize(folder / "images/000.png", outside_rate=NAN),
        lambda folder: _town(folder).localize(folder / "images/000.png", outside_rate=2.0),
        lambda folder: _town(folder).localize(folder / "images/000.png", rerank=-1),
        lambda folder: _town(folder).localize(folder / "images/000.png", batch_size=0),
        lambda folder: _town(folder).localize(folder / "none.png"),
        lambda folder: _town(folder).localize(np.full((5, 5, 3), NAN)),
        lambda folder: _town(folder).localize(np.zeros((0, 5, 3), np.uint8)),
        lambda folder: _town(folder).localize_embeddings(Embeddings(UNIT), ["a"] * 6),
        lambda folder: _town(folder).localize_embeddings(Embeddings(np.full((1, 16), NAN)), ["a"]),
        lambda folder: _town(folder).add(folder / "images", options=AddOptions(duplicates="maybe")),
        lambda folder: _town(folder).add(folder / "none"),
        lambda folder: _town(folder).remove(["no such name"]),
        lambda folder: _town(folder).compact(storage="float8"),
        lambda folder: _town(folder).reembed("no-such-model"),
    ],
    "PlaceModel": [
        lambda _: PlaceModel.create("no-such-backbone"),
        lambda _: PlaceModel.create("resnet_tiny", dim=0),
        lambda _: PlaceModel.create("resnet_tiny", dim=-5),
        lambda _: PlaceModel.create("resnet_tiny", head="no-such-head"),
        lambda _: _tiny()(torch.zeros(2, 3)),
        lambda _: _tiny()(torch.zeros(2, 1, 32, 32)),
        lambda _: _tiny()(torch.zeros(2, 3, 32, 32, dtype=torch.int64)),
        lambda _: _tiny().embed(["none.jpg"]),
        lambda _: _tiny().embed([], batch_size=0),
        lambda _: _tiny().embed([object()]),  # type: ignore[list-item]
        lambda _: _tiny().embed(["none.jpg"], device="toaster"),
    ],
    "SyntheticCity": [
        lambda _: SyntheticCity(-1),
        lambda _: SyntheticCity(0, (0, 1)),
        lambda _: SyntheticCity(0, (-2, 3)),
        lambda _: SyntheticCity(0, aliased=1.5),
        lambda _: SyntheticCity(0, featureless=NAN),
        lambda _: SyntheticCity(0, (1, 1)).views("nowhere"),
        lambda _: SyntheticCity(0, (1, 1)).views("val", spacing=0.0),
        lambda _: SyntheticCity(0, (1, 1)).views("val", spacing=NAN),
        lambda _: SyntheticCity(0, (1, 1)).views("val", queries=-1),
    ],
    "write_city": [
        lambda folder: write_city(SyntheticCity(0, (1, 1)), folder / "city", 1),
        lambda folder: write_city(SyntheticCity(0, (1, 1)), folder / "table.parquet", 16),
    ],
    "load_model": [
        lambda _: load_model("no-such-model"),
        lambda folder: load_model(folder / "images"),
        lambda folder: load_model(folder / "table.parquet"),
        lambda folder: load_model(folder / "model", dim=99),
        lambda folder: load_model(folder / "model", backbone="resnet18"),
    ],
    "save_model": [lambda folder: save_model(_tiny(), folder / "table.parquet")],
    "search": [
        lambda _: search(UNIT, UNIT, k=0),
        lambda _: search(UNIT, UNIT, k=-3),
        lambda _: search(UNIT, UNIT, k=7),
        lambda _: search(UNIT, UNIT[:, :3], k=1),
        lambda _: search(UNIT[0], UNIT, k=1),
        lambda _: search(UNIT * NAN, UNIT, k=1),
        lambda _: search(UNIT, UNIT * NAN, k=1),
        lambda _: search(UNIT, np.empty((0, 4), np.float32), k=1),
        lambda _: search(UNIT, UNIT, k=1, device="toaster"),
        lambda _: search(UNIT, UNIT, k=1, block=0),
    ],
    "open_engine": [
        lambda _: open_engine(UNIT, kind="no-such-engine"),
        lambda _: open_engine(UNIT * NAN).search(UNIT, 1),
        lambda _: open_engine(UNIT[0]),
        lambda _: open_engine(np.empty((0, 4), np.float32)).search(UNIT, 1),
        lambda _: open_engine(UNIT).search(UNIT, 0),
        lambda _: open_engine(UNIT).search(UNIT, 7),
        lambda _: open_engine(UNIT).search(UNIT[:, :2], 1),
        lambda _: open_engine(UNIT).search(UNIT * INF, 1),
        lambda _: open_engine(UNIT).search(UNIT, 1, area=(0.0, 0.0, 1.0)),
        lambda _: open_engine(UNIT, np.zeros((5, 2))).search(UNIT, 1, area=(0.0, 0.0, 1.0)),
        lambda _: open_engine(UNIT, np.zeros((6, 2))).search(UNIT, 1, area=(0.0, NAN, 1.0)),
    ],
    "bessel_ratio": [lambda _: vmf.bessel_ratio(1.0, 1)],
    "exact_bessel_ratio": [lambda _: vmf.exact_bessel_ratio(1.0, 0)],
    "log_partition": [lambda _: vmf.log_partition(1.0, -8)],
    "exact_log_partition": [lambda _: vmf.exact_log_partition(1.0, 1)],
    "log_normalizer": [lambda _: vmf.log_normalizer(1.0, 0)],
    "best_kappa": [lambda _: vmf.best_kappa(0.5, 1)],
    "fit_kappa": [lambda _: vmf.fit_kappa(torch.zeros(3))],
    "nll": [lambda _: vmf.nll(0.5, 1.0, 1)],
    "sample": [
        lambda _: vmf.sample(torch.eye(3)[0], -1.0, 2),
        lambda _: vmf.sample(torch.eye(3)[0], 1.0, -2),
    ],
    "Choices": [
        lambda _: Choices(scores="beauty"),
        lambda _: Choices(k=0),
        lambda _: Choices(resamples=-1),
        lambda _: Choices(resamples=10**30),
        lambda _: Choices(seed=-1),
        lambda _: Choices(fuse=("beauty",)),
    ],
    "evaluate_sets": [lambda _: evaluate_sets("name", [], Choices())],
    "evaluate": [
        lambda folder: evaluate("no-such-model", _table(folder)),
        lambda folder: evaluate(_tiny(), folder / "none.parquet"),
        lambda folder: evaluate(_tiny(), _table(folder), Choices("beauty"), Machine(folder / "cache")),
        lambda folder: evaluate(_tiny(), _table(folder), Choices(k=10**6), Machine(folder / "cache")),
        lambda folder: evaluate(_tiny(), _table(folder), Choices(k=-1), Machine(folder / "cache")),
        lambda folder: evaluate(
            _tiny(), _table(folder), Choices(policy="perhaps"), Machine(folder / "cache")
        ),
        lambda folder: evaluate(_tiny(), _table(folder), machine=Machine(folder / "fresh", batch_size=0)),
        lambda folder: evaluate(_tiny(), _table(folder), machine=Machine(folder / "table.parquet")),
        lambda folder: evaluate((Embeddings(UNIT), Embeddings(UNIT)), _table(folder)),
        lambda folder: evaluate((Embeddings(UNIT * NAN), Embeddings(UNIT)), _table(folder)),
    ],
    "compare": [lambda _: compare([])],
    "score": [
        lambda _: score("beauty", _evidence()),
        lambda _: score("kappaplace", _evidence()),
    ],
    "measure": [lambda _: measure([])],
    "read_result": [lambda folder: read_result(folder / "images")],
    "write_result": [
        lambda folder: write_result(kappaplace.evaluation.EvaluationResult("x", ()), folder / "table.parquet")
    ],
    "ClosingSettings": [
        lambda _: ClosingSettings(max_risk=2.0),
        lambda _: ClosingSettings(recent=NAN),
        lambda _: ClosingSettings(radius=-1.0),
        lambda _: ClosingSettings(window=0),
    ],
    "Frame": [
        lambda _: LoopCloser().add(Frame()),
        lambda _: LoopCloser().add(Frame(np.full(4, NAN, np.float32))),
        lambda _: LoopCloser().add(Frame(np.zeros((2, 4), np.float32))),
        lambda _: LoopCloser().add(Frame(np.eye(4)[0], kappa=-1.0)),
    ],
    "LoopCloser": [lambda _: LoopCloser(scores=("beauty",))],
    "ArrayReferences": [lambda _: ArrayReferences(positions=np.zeros(3))],
    "Neighborhood": [
        lambda _: Neighborhood("miles"),
        lambda _: Neighborhood("metres", NAN),
        lambda _: Neighborhood("metres", -1.0),
        lambda _: Neighborhood.parse("metres"),
        lambda _: Neighborhood.parse("frames:x"),
    ],
    "Preprocessing": [
        lambda _: Preprocessing(mode="shorter"),
        lambda _: Preprocessing(0, "exact"),
        lambda _: Preprocessing(64, "beauty"),
        lambda _: Preprocessing(64, "exact", std=(0.0, 1.0, 1.0)),
    ],
    "FitOptions": [
        lambda _: FitOptions(images=0),
        lambda _: FitOptions(seed=-1),
        lambda _: FitOptions(lr=NAN),
    ],
    "AddOptions": [
        lambda _: AddOptions(duplicates="maybe"),
        lambda _: AddOptions(on_error="perhaps"),
        lambda _: AddOptions(batch_size=0),
        lambda _: AddOptions(segment_rows=0),
        lambda _: AddOptions(ray="auto", embedder=len),
    ],
    "BuildOptions": [lambda _: BuildOptions(batch_size=-1)],
    "LocalizeOptions": [
        lambda _: LocalizeOptions(k=0),
        lambda _: LocalizeOptions(rerank=True),
        lambda _: LocalizeOptions(rerank=-1),
        lambda _: LocalizeOptions(order="beauty"),
        lambda _: LocalizeOptions(outside_rate=2.0),
        lambda _: LocalizeOptions(area=(1.0, 2.0)),
        lambda _: LocalizeOptions(area=(1.0, 2.0, -1.0)),
        lambda _: LocalizeOptions(area="here"),
    ],
    "MapMonitor": [lambda _: MapMonitor(calibration(), window=0)],
    "fit_map": [lambda folder: fit_map(_town(folder), FitOptions(epochs=-1))],
    "estimate_fit": [lambda folder: estimate_fit(_town(folder), FitOptions(views=0))],
    "calibrate_map": [
        lambda folder: calibrate_map(_town(folder), _table(folder), CalibrateOptions(max_risk=NAN)),
        lambda folder: calibrate_map(_town(folder), _table(folder).select(np.array([1]))),
    ],
    "calibrate_map_on_labels": [
        lambda folder: calibrate_map_on_labels(_town(folder), folder / "none.csv"),
        lambda folder: calibrate_map_on_labels(_town(folder), folder / "images/poses.csv"),
    ],
    "self_calibrate_map": [lambda folder: self_calibrate_map(_town(folder), queries=0)],
    "fit_calibration": [
        lambda _: fit_calibration(Examples(UNIT[:, 0], UNIT[:, 0] > 0, ["cosine"])),
        lambda _: fit_calibration(Examples(np.full(60, NAN), np.arange(60) % 2 == 0, ["cosine"])),
        lambda _: fit_calibration(Examples(np.arange(60.0), np.arange(50) % 2 == 0, ["cosine"])),
        lambda _: fit_calibration(Examples(np.arange(60.0), np.arange(60) % 2 == 0, ["a", "b"])),
    ],
    "retrieve": [
        lambda _: retrieve(Queries(), ArrayReferences(Embeddings(UNIT)), 1),
        lambda _: retrieve(Queries(Embeddings(UNIT)), ArrayReferences(Embeddings(UNIT)), 0),
        lambda _: retrieve(Queries(Embeddings(UNIT * NAN)), ArrayReferences(Embeddings(UNIT)), 1),
        lambda _: retrieve(Queries(Embeddings(UNIT)), ArrayReferences(), 1),
        lambda _: retrieve(Queries(Embeddings(UNIT)), ArrayReferences(Embeddings(UNIT)), 1, rerank=3),
    ],
    "search_matrix": [lambda _: search_matrix(UNIT, 5), lambda _: search_matrix(UNIT[0])],
    "quantize": [lambda _: quantize(UNIT * NAN), lambda _: quantize(UNIT[0])],
}
RECORDS = {
    "Circle": "a type",
    "Coded": "a pair of arrays; open_engine checks it",
    "Calibration": "made by fit_calibration or read, which check it",
    "Evidence": "made by retrieve",
    "MatrixReferences": "as ArrayReferences; the matrix is checked when it is searched",
    "Queries": "what is known; whoever needs a part asks for it",
    "References": "a protocol",
    "LabelOptions": "options, which label_map checks",
    "train": "takes settings and data that check themselves",
    "Conditions": "made by SyntheticCity.views",
    "Engine": "opened by open_engine",
    "EngineKind": "a type",
    "EngineOptions": "options, which open_engine checks",
    "Quantized": "a pair of arrays; open_engine checks it",
    "Columns": "made by open_engine",
    "MapSource": "made by a map",
    "Search": "opened by open_search",
    "open_search": "takes what a map hands in; PlaceMap.localize covers it",
    "evaluate_scores": "takes what the uncertainty package made of checked matches",
    "list_models": "takes nothing",
    "list_scores": "takes nothing",
    "fuse": "computes on tensors as torch does; a look at their values would wait for the GPU",
    "resultant": "as fuse",
    "Camera": "numbers of a camera",
    "CityViews": "made by SyntheticCity.views",
    "Closure": "made by LoopCloser",
    "Embeddings": "a named tuple; whoever takes it checks it",
    "Evaluation": "made by evaluate_scores",
    "EvaluationResult": "made by evaluate_sets",
    "Localization": "made by PlaceMap.localize",
    "Match": "made by PlaceMap.localize",
    "Matches": "a named tuple",
    "Pose": "made by PlaceMap.localize",
    "ScoreColumns": "made by evaluate_sets",
    "ScoreResult": "made by evaluate_scores",
    "SetResult": "made by evaluate",
}
"""Plain values that functions give back, and what leaves checking to its caller on purpose."""


def _covered(reason: str, names: str) -> None:
    RECORDS.update(dict.fromkeys(names.split(), reason))


_covered(
    "made by the functions above",
    """Cell ComparedSet ComparisonTable Retrieved DecidedAnswer FitRecord FitResult KappaCheck Manifest
    Observation Report Sheet SlamRun Pair CellCheck""",
)
_covered("options or a type", "Machine OnError Order Patches Floats PatchMaps Examples DriveExamples")
_covered(
    "tests/cli covers it by `kappaplace evaluate` and `kappaplace compare`",
    """compare_with_paper comparison_rows evaluate_descriptors evaluate_matrices evaluate_model from_table
    measure_set paper_rows plain score_set write_comparison write_paper write_rows flaws_of warnings_of
    spread_over_seeds PaperComparison SeedRow reference_metrics score_flaw tied_fraction mean_cosine""",
)
_covered(
    "tests/evaluation/test_audit_files.py covers it",
    "AnswerFiles Audit AuditOptions OperatingPoint ScoredAnswers audit read_answers",
)
_covered(
    "tests/maps/test_geotags.py covers it", "Geotags PhotoTag Tag TagAnswer TagMatch geotag undo_geotags"
)
_covered("options or a type", "GeotagOptions SequenceOptions PairOptions")
_covered("made by functions that check it", "Directions Follower LocalFeatures PairAnswer PatchMatches")
_covered("made by functions that check it", "CandidatePlace CandidateSet Stamped WalkMotion reason_of")
_covered("tests/maps/test_monitor.py covers it", "read_outcomes")
_covered("tests/uncertainty/test_patches.py covers it", "patch_matches")
_covered("tests/maps/test_pairs.py covers it", "calibrate_pairs compare_pairs pair_probability read_pairs")
_covered("tests/maps/test_positions.py", "check_positions_file save_answers write_csv write_positions")
_covered("tests/maps/test_messages.py covers it", "ros_messages write_mcap")
_covered(
    "tests/cli covers it by `kappaplace map`",
    """AnswerFile MapStore add_images area_of as_table decide_answer read_answer_lines head_lines
    is_answer_file label_map load_named_model match_picture model_of reranking_note observe
    preprocessing_of query_picture read_manifest read_observations read_record sparse_note verify_folder
    rerank_of write_manifest write_pairs""",
)
_covered(
    "tests/slam and tests/cli cover it",
    """HistogramFilter IncrementalGraph PoseMotion RouteMotion calibration_for collect
    drive_embeddings drive_frames fit_closures optimize place_matrix read_drive run_slam same_place scores_for
    patch_maps_of reordered by_agreement DriveInput SlamOptions Labels closure_message""",
)


_covered("tests/cli and tests/evaluation cover it by --encoder", "load_encoder plain_encoder")


def public_names() -> Iterator[str]:
    for module in PUBLIC:
        found = importlib.import_module(module)
        for name in found.__all__:
            value = getattr(found, name)
            if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException)):
                yield name


def _tiny() -> PlaceModel:
    return PlaceModel.create("resnet_tiny", dim=16).eval()


def _town(folder: Path) -> PlaceMap:
    return PlaceMap.open(folder / "town.map")


def _evidence() -> Evidence:
    return retrieve(Queries(Embeddings(UNIT)), ArrayReferences(Embeddings(UNIT)), 2)


def _table(folder: Path) -> PlaceImages:
    return PlaceImages.open(folder / "table.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("welt 東京")
    world(folder)
    torch.manual_seed(5)
    save_model(_tiny(), folder / "other")
    return folder


def test_the_table_names_everything_public() -> None:
    names = set(public_names())
    assert names <= CALLS.keys() | RECORDS.keys(), names - CALLS.keys() - RECORDS.keys()


@pytest.mark.parametrize(("name", "number"), [(name, i) for name in CALLS for i in range(len(CALLS[name]))])
def test_nonsense_is_told_in_one_sentence(name: str, number: int, made: Path) -> None:
    with pytest.raises(KappaPlaceError, match=r"^[^\n]+$"):
        CALLS[name][number](made)


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32, array_shapes(max_dims=3, max_side=4), elements=st.floats(-2, 2, width=32) | st.just(NAN)
    ),
    arrays(
        np.float32, array_shapes(max_dims=3, max_side=4), elements=st.floats(-2, 2, width=32) | st.just(INF)
    ),
    st.integers(-2, 6),
)
def test_search_answers_or_refuses(queries: np.ndarray, references: np.ndarray, k: int) -> None:
    """Whatever is given: k finite similarities a query, best first, or one sentence."""
    try:
        found = search(queries, references, k)
    except KappaPlaceError:
        return
    assert found.indices.shape == (len(queries), k)
    assert np.isfinite(found.similarities).all()
    assert (np.diff(found.similarities, axis=1) <= 0).all()


def test_scores_that_are_all_the_same_are_judged_without_a_crash() -> None:
    """Zero variance: every query looks as certain as every other."""
    from kappaplace.calibration.calibrators import CALIBRATORS
    from kappaplace.metrics import auroc

    same, right = np.full(40, 0.3), np.arange(40) % 2 == 0
    assert auroc(same, right) == pytest.approx(0.5)
    for calibrator in CALIBRATORS.values():
        with pytest.raises(KappaPlaceError, match="The uncertainty must vary"):
            calibrator.fit(same, right)


def test_more_matches_than_references_are_as_many_as_there_are(made: Path) -> None:
    assert len(_town(made).localize(made / "images/000.png", k=10**6).matches) == len(_town(made))


def test_a_circle_too_large_to_be_squared_holds_everything(made: Path) -> None:
    answer = _town(made).localize(made / "images/000.png", k=99, area=(0.0, 0.0, 1e308))
    assert len(answer.matches) == len(_town(made))


def test_maps_and_images_behind_links_and_names_that_are_not_ascii(made: Path, tmp_path: Path) -> None:
    (tmp_path / "straße").symlink_to(made / "town.map")
    (tmp_path / "写真.png").symlink_to(made / "images" / "001.png")
    linked = PlaceMap.open(tmp_path / "straße")
    assert linked.verify() == []
    there = linked.localize(tmp_path / "写真.png").matches[0]
    assert there.name == _town(made).localize(made / "images" / "001.png").matches[0].name


@pytest.mark.parametrize(
    "call",
    [
        lambda: vmf.bessel_ratio(NAN, 8),
        lambda: vmf.exact_bessel_ratio(NAN, 8),
        lambda: vmf.log_partition(NAN, 8),
        lambda: vmf.exact_log_partition(NAN, 8),
        lambda: vmf.log_normalizer(NAN, 8),
        lambda: vmf.best_kappa(NAN, 8),
        lambda: vmf.nll(NAN, 1.0, 8),
        lambda: vmf.nll(0.5, NAN, 8),
        lambda: vmf.resultant(NAN, 1.0, 0.5),
        lambda: vmf.resultant(1.0, 1.0, NAN),
        lambda: vmf.fit_kappa(torch.full((3, 4), NAN)),
        lambda: vmf.fuse(torch.full((3, 4), NAN), 1.0)[1],
    ],
)
def test_nan_stays_nan_in_the_distribution(call: Callable[[], torch.Tensor]) -> None:
    """Its values are not looked at, so that a GPU need not be waited for; then they must not be hidden."""
    assert bool(torch.isnan(call()).all())
