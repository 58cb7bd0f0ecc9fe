"""Every recipe on the tiny city: trained and frozen weights, files, and invalid options."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import kappaplace
from kappaplace.data.images import Preprocessing
from kappaplace.data.positives import Positives
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import read_card
from kappaplace.models.frozen import FrozenEncoder
from kappaplace.models.place_model import PlaceModel
from kappaplace.training import objectives
from kappaplace.training.images import TrainingSet
from kappaplace.training.loop import load_state
from kappaplace.training.losses import large_margin_cosine_loss
from kappaplace.training.objectives import Classification
from kappaplace.training.recipes import RECIPES, recipe_named, settings_for
from kappaplace.training.run import Trained, train
from kappaplace.training.settings import Settings, flat
from kappaplace.training.start import starting_model
from kappaplace.training.validation import ValidationSet, Validator
from tests.training.tiny import DIM, SIDE, City, plain_encoder, tiny_settings

VARIANCE = {"stun", "gnll", "mc-dropout", "btl"}
KAPPA = {"kappa-pt", "kappa-jt", "contrastive-pt", "contrastive-jt", "linear-head"}


@dataclass
class Run:
    """A finished run and the weights before it."""

    name: str
    settings: Settings
    before: dict[str, Tensor]
    trained: Trained
    lines: list[str]

    @property
    def moved(self) -> set[str]:
        """Names of weights and statistics that differ from the start, in the last state of the run."""
        state = load_state(self.trained.folder)
        assert state is not None
        return {name for name, value in state["model"].items() if not torch.equal(value, self.before[name])}


def started(recipe: str, start: Path, *options: str) -> Settings:
    """Tiny settings; recipes that need a trained model get one."""
    needs = [f"model.start={start / 'model'}"] if RECIPES[recipe].needs_start else []
    return tiny_settings(recipe, *needs, *options)


@pytest.fixture(scope="module", params=list(RECIPES))
def run(
    request: pytest.FixtureRequest, city: City, retrieval: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    name = request.param
    settings = started(name, retrieval)
    model = starting_model(settings, RECIPES[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    lines: list[str] = []
    folder = tmp_path_factory.mktemp("recipe") / name
    trained = train(settings, city.data, folder, city.validation, device="cpu", say=lines.append)
    return Run(name, settings, before, trained, lines)


def test_losses_and_metrics_are_recorded(run: Run) -> None:
    epochs = run.trained.epochs
    assert [row["epoch"] for row in epochs] == [0, 1, 2]
    assert all(math.isfinite(row["loss"]) for row in epochs[1:])
    metric_names = {"R@1", "R@5", "R@10"} | ({"ECE@1", "AUROC"} if run.name in VARIANCE | KAPPA else set())
    assert all(metric_names <= set(row) for row in epochs)
    assert all("ECE@1" not in row for row in epochs) or "ECE@1" in metric_names
    assert [line.partition("  ")[0] for line in run.lines[:3]] == ["epoch 0/2", "epoch 1/2", "epoch 2/2"]
    assert run.lines[1].startswith("epoch 1/2  loss ")
    assert all(line.startswith(("No epoch was better", "Warning: ")) for line in run.lines[3:])
    with open(run.trained.folder / "steps.csv", newline="") as file:
        steps = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"]) for row in steps] == [("1", "4"), ("2", "4")]
    parts = {"kappa-jt": {"classification", "vmf"}, "contrastive-jt": {"similarity", "vmf"}}.get(
        run.name, set()
    )
    assert parts <= set(steps[0])
    assert all(math.isfinite(float(row[name])) for row in steps for name in {"loss", *parts})


def test_only_the_trained_parts_change(run: Run) -> None:
    parts = {name.partition(".")[0] for name in run.moved}
    statistics = {name for name in run.moved if "running" in name}
    if RECIPES[run.name].frozen:
        assert parts == {"head"}
        assert not statistics
        result = run.trained.model.state_dict()
        for name, value in run.before.items():  # the kept model holds the encoder untouched, to the last bit
            if not name.startswith("head."):
                torch.testing.assert_close(result[name], value, rtol=0, atol=0)
        assert not any(name.endswith("gem.p") for name in run.moved)  # cached: the exponent stays
    else:
        has_head = run.name not in ("retrieval", "contrastive", "mc-dropout")  # dropout has no weights
        assert parts == {"backbone", "aggregation"} | ({"head"} if has_head else set())
        assert statistics


def test_prototypes_move_and_are_saved_next_to_the_model(run: Run) -> None:
    state = load_state(run.trained.folder)
    assert state is not None
    file = run.trained.folder / "model" / "prototypes.safetensors"
    assert file.is_file() == (run.name in {"retrieval", "kappa-jt", "mc-dropout"})
    if not file.is_file():
        assert not state["objective"]
        return
    new = Classification([20, 20], DIM, run.settings.loss, seed=run.settings.run.seed)
    for number in range(2):  # one epoch each
        assert not torch.equal(state["objective"][f"prototypes.{number}"], new.prototypes[number])


def test_the_folder_loads_and_has_its_uncertainty(run: Run, city: City) -> None:
    folder = run.trained.folder / "model"
    model = kappaplace.load_model(folder)
    images = [image.permute(1, 2, 0).numpy() for image in city.validation.images[:5]]
    loaded, expected = model.embed(images), run.trained.model.embed(images)
    np.testing.assert_array_equal(loaded.descriptor, expected.descriptor)
    np.testing.assert_allclose(np.linalg.norm(loaded.descriptor, axis=1), 1, rtol=1e-5)
    assert (loaded.kappa is not None) == (run.name in KAPPA)
    assert (loaded.variance is not None) == (run.name in VARIANCE)
    spread = loaded.kappa if loaded.kappa is not None else loaded.variance
    if spread is not None:
        assert spread.shape == (5,)
        assert (spread > 0).all()
        assert len(set(spread.tolist())) == 5
    card = read_card(folder)
    assert card["data"] == "tiny city"
    assert f"recipe {run.name}" in card["notes"]
    assert set(card["metrics"]) >= {"R@1"}


def test_the_saved_models_are_the_best_of_the_watched_metrics(run: Run) -> None:
    metrics = [name for name in ("R@1", "ECE@1", "AUROC") if name in run.trained.epochs[1]]
    for metric in metrics:
        values = [row[metric] for row in run.trained.epochs]  # the start is a candidate, too
        best = min(values) if metric == "ECE@1" else max(values)
        assert read_card(run.trained.folder / f"best-{metric}")["metrics"][metric] == pytest.approx(best)
    card_metrics = read_card(run.trained.folder / "model")["metrics"]
    if run.name == "stun":  # it watches nothing and keeps its last epoch
        last = run.trained.epochs[-1]
        assert card_metrics == {name: pytest.approx(last[name]) for name in card_metrics}
        return
    watched = run.settings.stop.metrics[0]
    assert card_metrics == read_card(run.trained.folder / f"best-{watched}")["metrics"]


@pytest.mark.parametrize("run", ["kappa-pt", "kappa-jt"], indirect=True)
def test_a_finished_run_is_not_trained_again(run: Run, city: City) -> None:
    lines: list[str] = []
    again = train(
        run.settings, city.data, run.trained.folder, city.validation, device="cpu", say=lines.append
    )
    assert lines == []
    assert again.epochs == run.trained.epochs
    for name, value in again.model.state_dict().items():
        torch.testing.assert_close(value, run.trained.model.state_dict()[name], rtol=0, atol=0)


# --- anchors of kappa-pt


ANCHORS = {
    "classifier": [],
    "places": ["anchors.source=places"],
    "places, two views": ["anchors.source=places", "anchors.views=2"],
    "views": ["anchors.source=views", "anchors.views=3"],
    "clean": ["anchors.source=clean", "anchors.views=2", "augment.damage=0.5"],
}


@pytest.mark.parametrize(
    ("anchors", "cache"), [*((name, "true") for name in ANCHORS), ("classifier", "false"), ("clean", "false")]
)
def test_kappa_learns_from_every_kind_of_anchor(
    city: City, retrieval: Path, tmp_path: Path, anchors: str, cache: str
) -> None:
    options = ANCHORS[anchors]
    data = city.without_places if options and "places" not in options[0] else city.data
    settings = started("kappa-pt", retrieval, *options, f"anchors.cache={cache}", "optimizer.iterations=2")
    trained = train(settings, data, tmp_path, device="cpu")
    assert all(math.isfinite(row["loss"]) for row in trained.epochs)
    state = load_state(tmp_path)
    assert state is not None
    fresh = starting_model(settings, RECIPES["kappa-pt"]).state_dict()
    moved = {name for name, value in state["model"].items() if not torch.equal(value, fresh[name])}
    assert {"head.last.weight", "head.aggregation.project.weight"} <= moved
    # The direct loop learns GeM's exponent too; from the cache nobody can.
    assert ("head.aggregation.gem.p" in moved) == (cache == "false")
    assert all(name.startswith("head.") for name in moved)


def test_the_exponent_stays_in_the_direct_loop_on_request(
    city: City, retrieval: Path, tmp_path: Path
) -> None:
    options = ("anchors.cache=false", "anchors.learn_p=false", "anchors.views=0", "optimizer.iterations=1")
    train(started("kappa-pt", retrieval, *options), city.data, tmp_path, device="cpu")
    state = load_state(tmp_path)
    assert state is not None
    assert float(state["model"]["head.aggregation.gem.p"]) == 3.0


def test_kappa_starts_at_the_best_constant_or_as_set(city: City, retrieval: Path, tmp_path: Path) -> None:
    """With a very small learning rate, the final κ is the initial κ."""
    means = {}
    images = [image.permute(1, 2, 0).numpy() for image in city.data.images[:40]]
    for value in (-1, 0, 25):
        options = (f"model.start_kappa={value}", "optimizer.lr=1e-12", "optimizer.iterations=1")
        settings = started("kappa-pt", retrieval, *options, "anchors.source=clean", "augment.damage=0.5")
        trained = train(settings, city.data, tmp_path / str(value), device="cpu")
        means[value] = float(np.mean(trained.model.embed(images).kappa))
    assert means[-1] == pytest.approx(math.log(2), abs=0.2)
    assert means[25] == pytest.approx(25, abs=1)
    assert means[0] > 2 * means[-1]  # the views lie near their images


def test_a_trained_head_keeps_its_weights(city: City, retrieval: Path, tmp_path: Path) -> None:
    options = ("model.start_kappa=25", "optimizer.lr=1e-12", "optimizer.iterations=1", "optimizer.epochs=1")
    train(started("kappa-pt", retrieval, *options), city.data, tmp_path / "first", device="cpu")
    second = tiny_settings(
        "kappa-pt",
        f"model.start={tmp_path / 'first' / 'model'}",
        f"anchors.prototypes={retrieval / 'model' / 'prototypes.safetensors'}",
        "optimizer.lr=1e-12",
        "optimizer.iterations=1",
        "optimizer.epochs=1",
    )
    trained = train(second, city.data, tmp_path / "second", device="cpu")
    images = [image.permute(1, 2, 0).numpy() for image in city.data.images[:10]]
    assert float(np.mean(trained.model.embed(images).kappa)) == pytest.approx(25, abs=1)


def test_kappa_on_places_that_the_encoder_never_saw(city: City, tmp_path: Path) -> None:
    options = ("classes.hold_out=0.4", "optimizer.batch_size=8", "optimizer.iterations=2")
    train(tiny_settings("retrieval", *options), city.data, tmp_path / "encoder", device="cpu")
    start = f"model.start={tmp_path / 'encoder' / 'model'}"
    held_out = (*options, start, "classes.use=held-out")
    settings = tiny_settings("kappa-pt", *held_out, "anchors.source=places")
    trained = train(settings, city.data, tmp_path / "head", device="cpu")
    rows = np.load(tmp_path / "head" / "features" / "reduced.npy")
    assert 0 < len(rows) < len(city.data.images)  # features of the held-out places only
    assert math.isfinite(trained.epochs[-1]["loss"])
    with pytest.raises(KappaPlaceError, match=r"classes have no prototype there\. .*anchors\.source=places"):
        train(tiny_settings("kappa-pt", *held_out), city.data, tmp_path / "other", device="cpu")


# --- encoders of other projects


@pytest.mark.parametrize(
    ("recipe", "layer", "options"),
    [
        ("kappa-pt", "2", ["anchors.source=places"]),
        ("kappa-pt", "2", ["anchors.source=views", "anchors.views=2", "anchors.cache=false"]),
        ("kappa-pt", None, ["anchors.source=clean"]),
        ("linear-head", None, ["anchors.source=places"]),
        ("contrastive-pt", "2", []),
    ],
)
def test_any_encoder_gets_a_kappa(
    city: City, tmp_path: Path, recipe: str, layer: str | None, options: list[str]
) -> None:
    encoder = plain_encoder()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    model = FrozenEncoder(encoder, layer=layer, preprocessing=Preprocessing(SIDE, "exact"))
    head = {name: value.clone() for name, value in model.head.state_dict().items()}
    settings = tiny_settings(recipe, *options)
    trained = train(settings, city.data, tmp_path, city.validation, model=model, device="cpu")
    assert all(math.isfinite(row["loss"]) for row in trained.epochs[1:])
    assert {"R@1", "ECE@1", "AUROC"} <= set(trained.epochs[0])
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    again = kappaplace.load_model(tmp_path / "model", encoder=plain_encoder())
    assert any(not torch.equal(value, head[name]) for name, value in again.head.state_dict().items())
    images = [image.permute(1, 2, 0).numpy() for image in city.validation.images[:4]]
    loaded = again.embed(images)
    np.testing.assert_allclose(loaded.kappa, trained.model.embed(images).kappa, rtol=1e-5)
    assert (loaded.kappa > 0).all()


def test_the_trained_head_of_a_frozen_encoder_keeps_its_weights(city: City, tmp_path: Path) -> None:
    def once(folder: Path, model: FrozenEncoder, *options: str) -> Trained:
        settings = tiny_settings("kappa-pt", "anchors.source=places", "optimizer.lr=1e-12", *options)
        return train(settings, city.data, folder, model=model, device="cpu")

    first = FrozenEncoder(plain_encoder(), layer="2", preprocessing=Preprocessing(SIDE, "exact"))
    once(tmp_path / "first", first, "model.start_kappa=25")
    again = kappaplace.load_model(tmp_path / "first" / "model", encoder=plain_encoder())
    assert isinstance(again, FrozenEncoder)
    images = [image.permute(1, 2, 0).numpy() for image in city.data.images[:10]]
    expected = again.embed(images).kappa
    trained = once(tmp_path / "second", again)
    np.testing.assert_allclose(trained.model.embed(images).kappa, expected, rtol=1e-3)


# --- what the loop promises


def test_the_loss_of_an_epoch_is_the_mean_of_its_steps(city: City, retrieval: Path, tmp_path: Path) -> None:
    """For any division of the steps into rows of the log: here three and one."""
    settings = started("kappa-pt", retrieval, "run.checkpoint_every=3", "optimizer.epochs=1")
    trained = train(settings, city.data, tmp_path / "cut", device="cpu")
    whole = train(
        started("kappa-pt", retrieval, "optimizer.epochs=1"), city.data, tmp_path / "whole", device="cpu"
    )
    state = load_state(tmp_path / "cut")
    assert state is not None
    assert [row["step"] for row in state["steps"]] == [3, 4]
    assert trained.epochs[0]["loss"] == pytest.approx(whole.epochs[0]["loss"], rel=1e-6)


def test_accumulated_parts_are_the_batch(city: City, retrieval: Path, tmp_path: Path) -> None:
    runs = [
        train(
            started("kappa-pt", retrieval, f"run.accumulate={parts}"),
            city.data,
            tmp_path / str(parts),
            device="cpu",
        )
        for parts in (1, 4)
    ]
    for one, other in zip(*(run.epochs for run in runs), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_frozen_batchnorm_keeps_its_statistics(city: City, tmp_path: Path) -> None:
    settings = tiny_settings("retrieval", "model.freeze_batchnorm=true", "optimizer.iterations=2")
    before = {
        name: value.clone()
        for name, value in starting_model(settings, RECIPES["retrieval"]).state_dict().items()
    }
    after = train(settings, city.data, tmp_path, device="cpu").model.state_dict()
    for name, value in before.items():
        if "running" in name or "num_batches" in name:
            torch.testing.assert_close(after[name], value, rtol=0, atol=0)
    assert not torch.equal(after["backbone.conv1.weight"], before["backbone.conv1.weight"])


def test_patience_ends_a_run(city: City, retrieval: Path, tmp_path: Path) -> None:
    options = ("stop.metrics=R@1", "stop.patience=2", "optimizer.epochs=30", "optimizer.iterations=1")
    trained = train(
        started("kappa-pt", retrieval, *options), city.data, tmp_path, city.validation, device="cpu"
    )
    # A frozen encoder's R@1 is the same in every epoch: the start is the best, two more are waited for.
    assert [row["epoch"] for row in trained.epochs] == [0, 1, 2]


def test_a_run_that_only_worsens_returns_the_start(
    city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recalls = iter([0.4, 0.325, 0.225])
    monkeypatch.setattr(Validator, "measure", lambda *_: {"R@1": next(recalls)})
    settings = tiny_settings("retrieval")
    lines: list[str] = []
    run = train(settings, city.data, tmp_path, city.validation, device="cpu", say=lines.append)
    start = starting_model(settings, RECIPES["retrieval"]).state_dict()
    for name, value in run.model.state_dict().items():
        torch.testing.assert_close(value, start[name], rtol=0, atol=0)
    (line,) = [line for line in lines if line.startswith("No epoch was better than the start")]
    assert "R@1 0.4 before training, at best 0.325 after it" in line


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_like_float32(city: City, tmp_path: Path, precision: str) -> None:
    options = ("optimizer.epochs=1", "optimizer.iterations=6", "run.checkpoint_every=1")
    losses = [
        [row["loss"] for row in csv.DictReader((tmp_path / name / "steps.csv").open(encoding="utf-8"))]
        for name in (precision, "fp32")
        if train(
            tiny_settings("retrieval", *options, f"run.precision={name}"),
            city.data,
            tmp_path / name,
            device="cpu",
        )
    ]
    half, full = np.array(losses, np.float64)
    assert half[0] == pytest.approx(full[0], rel=0.01)  # the same weights
    assert half[0] != full[0]
    # It learns; with fp16, the first steps are skipped until the scale of the loss is low enough.
    assert half[0] - half[-1] > 0.3 * (full[0] - full[-1]) > 0


def test_fp16_resumes_with_its_scale(city: City, tmp_path: Path) -> None:
    settings = tiny_settings("retrieval", "run.precision=fp16", "optimizer.epochs=2")
    train(settings, city.data, tmp_path, device="cpu")
    state = load_state(tmp_path)
    assert state is not None
    assert state["scaler"]["scale"] > 1


def test_an_undefined_metric_does_not_cost_the_model(city: City, retrieval: Path, tmp_path: Path) -> None:
    """AUROC is NaN if every query is correct."""
    val = city.validation
    references = len(val.reference_rows)
    easy = Positives.from_lists([range(references)] * len(val.query_rows), references)
    settings = started("kappa-pt", retrieval, "stop.metrics=AUROC", "optimizer.iterations=1")
    trained = train(
        settings,
        city.data,
        tmp_path,
        ValidationSet(val.images, val.query_rows, val.reference_rows, easy),
        device="cpu",
    )
    assert math.isnan(trained.epochs[-1]["AUROC"])
    assert trained.model.head is not None


def test_trackers_are_written(city: City, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    settings = tiny_settings("retrieval", "run.trackers=tensorboard", "optimizer.iterations=1")
    train(settings, city.data, tmp_path, device="cpu")
    assert list(tmp_path.rglob("events.out.tfevents*"))


@pytest.mark.parametrize("recipe", ["retrieval", "kappa-pt"])
def test_files_train_like_memory(city: City, retrieval: Path, tmp_path: Path, recipe: str) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(len(city.data.images))]
    for path, image in zip(paths, city.data.images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path, compress_level=0)
    files = TrainingSet(paths, city.data.positions, city.data.heading)
    settings = started(recipe, retrieval, "optimizer.iterations=2", "run.workers=1")
    memory, disk = (
        train(settings, data, tmp_path / name, device="cpu")
        for name, data in (("memory", city.data), ("disk", files))
    )
    for one, other in zip(memory.epochs, disk.epochs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
    paths[:] = [path.with_suffix(".jpg") for path in paths]
    check_message("0.jpg|No image file", settings, city, tmp_path / "gone", data=files)


# --- what cannot be trained


def check_message(message: str, settings: Settings, city: City, folder: Path, **options: Any) -> None:
    inputs = {"data": city.data, "validation": None, "model": None, **options}
    with pytest.raises(KappaPlaceError, match=message) as caught:
        train(settings, inputs["data"], folder, inputs["validation"], model=inputs["model"], device="cpu")
    assert "\n" not in str(caught.value)


def test_unknown_recipes_list_the_valid_ones() -> None:
    for function in (recipe_named, settings_for):
        with pytest.raises(KappaPlaceError, match=r"Unknown recipe 'kappa'\. Choose from: retrieval"):
            function("kappa")


def test_a_missing_start_is_reported_and_can_be_added(city: City, retrieval: Path, tmp_path: Path) -> None:
    """A run that did not start must not block its folder."""
    check_message(
        r"The recipe kappa-pt starts from a trained model", tiny_settings("kappa-pt"), city, tmp_path
    )
    check_message("No model", tiny_settings("kappa-pt", "model.start=nowhere"), city, tmp_path / "other")
    settings = started("kappa-pt", retrieval, "optimizer.epochs=1", "optimizer.iterations=1")
    assert train(settings, city.data, tmp_path, device="cpu").epochs


def test_missing_prototypes_are_reported(city: City, tmp_path: Path) -> None:
    model = PlaceModel.create("resnet_tiny", DIM, "none", preprocessing=Preprocessing(SIDE, "exact"))
    settings = tiny_settings("kappa-pt")
    check_message("The file of class prototypes is unknown", settings, city, tmp_path, model=model)
    settings = tiny_settings("kappa-pt", f"anchors.prototypes={tmp_path / 'none.safetensors'}")
    check_message(
        "There are no class prototypes .*anchors.source=places", settings, city, tmp_path, model=model
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["classes.cell=20"], r"cells of 10 m and 30°, these are 20 m and 30°"),
        (["optimizer.batch_size=1024"], "Group 0 has 240 images, fewer than a batch of 1024"),
        (["anchors.views=0"], r"Set anchors\.views to 1 or more, or anchors\.cache=false"),
        (
            ["anchors.views=0", "anchors.cache=false", "anchors.source=places"],
            "Anchors from places need numbered",
        ),
        (["anchors.source=views"], r"Set anchors\.views to 2 or more"),
        (
            ["anchors.source=batch"],
            "does not support anchors.source=batch. Choose from: classifier, places, views, clean",
        ),
        (["run.accumulate=3"], "must be a multiple of 3 .*, got 16"),
        (['run.trackers=["tensorbord"]'], "Unknown tracker 'tensorbord'"),
        (["classes.min_images=50"], "No place has 50 images"),
        (["classes.by=place"], "neither positions nor place labels"),
    ],
)
def test_post_training_that_cannot_be_is_reported(
    city: City, retrieval: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    check_message(message, started("kappa-pt", retrieval, *options), city, tmp_path)


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("retrieval", ["optimizer.batch_size=128"], "Group 0 has 120 images, fewer than a batch of 128"),
        ("retrieval", ["model.backbone=resnet49"], "resnet49"),
        (
            "contrastive",
            ["optimizer.images_per_place=3"],
            "must be a multiple of optimizer.images_per_place=3, got 16",
        ),
        ("contrastive", ["optimizer.batch_size=96"], "Use fewer places"),
        (
            "contrastive",
            ["classes.groups_per_axis=50", "classes.groups_per_heading=12"],
            "at least two place classes",
        ),
    ],
)
def test_training_that_cannot_be_is_reported(
    city: City, tmp_path: Path, recipe: str, options: list[str], message: str
) -> None:
    check_message(message, tiny_settings(recipe, *options), city, tmp_path)


@pytest.mark.parametrize(
    ("recipe", "head"),
    [
        ("kappa-pt", "none"),
        ("kappa-pt", "dropout"),
        ("kappa-pt", "stun"),
        ("kappa-pt", "variance"),
        ("kappa-jt", "none"),
        ("kappa-jt", "dropout"),
        ("gnll", "mirrored"),
        ("stun", "mirrored"),
        ("btl", "mirrored"),
        ("mc-dropout", "mirrored"),
    ],
)
def test_a_head_that_says_something_else_than_the_recipe_trains_is_reported(
    city: City, retrieval: Path, tmp_path: Path, recipe: str, head: str
) -> None:
    settings = started(recipe, retrieval, f"model.head={head}", "optimizer.iterations=1")
    check_message(r"model\.head", settings, city, tmp_path)


def test_columns_of_differing_lengths_are_reported(city: City, tmp_path: Path) -> None:
    data = city.data
    for wrong in (
        {"images": data.images[:100]},
        {"positions": data.positions[:100]},
        {"heading": data.heading[:100]},  # type: ignore[index]
        {"place": np.zeros(100, np.int64)},
    ):
        with pytest.raises(KappaPlaceError, match=r"240.*100|100.*240"):
            train(tiny_settings("retrieval"), replace(data, **wrong), tmp_path, device="cpu")


def test_images_without_places_are_reported(city: City, tmp_path: Path) -> None:
    message = r"neither positions nor place labels\. .* anchors\.source to views or clean"
    check_message(message, tiny_settings("retrieval"), city, tmp_path, data=city.without_places)


def test_a_folder_with_other_settings_is_reported(city: City, retrieval: Path) -> None:
    settings = tiny_settings("retrieval", "optimizer.lr=1e-4", "run.seed=3")
    message = (
        "contains a run with other settings .*"
        "optimizer.lr: 0.001 there, 0.0001 here; run.seed: 0 there, 3 here"
    )
    check_message(message, settings, city, retrieval)
    check_message("recipe: 'retrieval' there, 'kappa-jt' here", tiny_settings("kappa-jt"), city, retrieval)


def test_a_folder_with_a_run_on_other_images_is_reported(city: City, retrieval: Path) -> None:
    """Otherwise its state would resume with other places, or its model would be the result."""
    east = city.data.positions[:, 0]
    part = np.flatnonzero(east < np.median(east))
    fewer = TrainingSet(city.data.images[part], city.data.positions[part], city.data.heading[part])  # type: ignore[index]
    settings = tiny_settings("retrieval")
    check_message("other images", settings, city, retrieval, data=fewer)


@pytest.mark.parametrize("metrics", ['["ECE@1"]', '["R@1", "AUROC"]'])
def test_a_metric_that_the_model_does_not_have_is_reported_before_the_first_step(
    city: City, tmp_path: Path, metrics: str
) -> None:
    settings = tiny_settings("retrieval", f"stop.metrics={metrics}", "run.checkpoint_every=1")
    message = r"(ECE@1|AUROC), which this model does not have\. Set stop\.metrics"
    check_message(message, settings, city, tmp_path, validation=city.validation)
    assert not (tmp_path / "steps.csv").exists()


# --- when the loss breaks


def test_a_loss_that_is_not_a_number_is_reported_and_the_last_state_is_good(
    city: City, tmp_path: Path
) -> None:
    settings = tiny_settings("retrieval", "optimizer.lr=1e30", "optimizer.iterations=6")
    check_message(
        r"The loss became (nan|inf) in epoch 1, step \d+\. Lower optimizer\.lr", settings, city, tmp_path
    )
    state = load_state(tmp_path)
    assert state is not None
    assert (state["epoch"], state["iteration"]) == (0, 0)
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_weights_that_break_in_the_last_step_before_a_state_are_not_saved(
    city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of a step is finite, its gradient is not: the next loss comes too late for the state."""

    def broken(descriptors: Tensor, *rest: Any) -> Tensor:
        return large_margin_cosine_loss(descriptors, *rest) + torch.sqrt((descriptors * 0).sum())

    monkeypatch.setattr(objectives, "large_margin_cosine_loss", broken)
    check_message(
        "became NaN or infinite|became nan",
        tiny_settings("retrieval", "optimizer.iterations=1"),
        city,
        tmp_path,
    )
    state = load_state(tmp_path)
    assert state is not None
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_a_poisoned_encoder_is_reported(city: City, retrieval: Path, tmp_path: Path) -> None:
    model = kappaplace.load_model(retrieval / "model")
    with torch.no_grad():
        model.backbone.conv1.weight[0] = math.nan
    settings = started("kappa-pt", retrieval)
    check_message("NaN or infinite", settings, city, tmp_path / "cached", model=model)
    direct = started("kappa-pt", retrieval, "anchors.cache=false")
    check_message("NaN or infinite|The loss became nan", direct, city, tmp_path / "direct", model=model)


# --- the numbers of the paper


def test_defaults_are_the_papers() -> None:
    retrieval, pt, jt, stun = (
        flat(settings_for(name)) for name in ("retrieval", "kappa-pt", "kappa-jt", "stun")
    )
    expected = {
        "optimizer.epochs": 50,
        "optimizer.iterations": 10_000,
        "optimizer.batch_size": 32,
        "optimizer.lr": 1e-5,
        "optimizer.prototype_lr": 1e-2,
        "loss.scale": 30.0,
        "loss.margin": 0.4,
        "classes.cell": 10.0,
        "classes.angle": 30.0,
        "classes.groups_per_axis": 5,
        "classes.groups_per_heading": 2,
        "classes.groups": 8,
        "classes.min_images": 10,
        "augment.brightness": 0.7,
        "augment.contrast": 0.7,
        "augment.saturation": 0.7,
        "augment.hue": 0.5,
        "augment.scale": 0.5,
        "model.size": 512,
        "model.dim": 512,
        "model.trainable": "partial",
        "stop.metrics": ("R@1",),
    }
    assert {name: retrieval[name] for name in expected} == expected
    assert (pt["optimizer.lr"], pt["stop.metrics"], pt["stop.patience"]) == (1e-3, ("ECE@1",), 15)
    assert (jt["optimizer.lr"], jt["loss.weight"], jt["stop.metrics"]) == (1e-5, 0.01, ("R@1", "ECE@1"))
    assert jt["optimizer.prototype_lr"] == 1e-2
    assert (stun["optimizer.epochs"], stun["optimizer.iterations"]) == (6, 43_800)


def test_options_go_before_the_file_and_the_file_before_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[optimizer]\nlr = 2\nepochs = 7\n")
    settings = settings_for("kappa-pt", str(file), ["optimizer.epochs=9"])
    assert (settings.optimizer.lr, settings.optimizer.epochs, settings.optimizer.iterations) == (2.0, 9, 0)
    file.write_text('recipe = "stun"\n')
    with pytest.raises(KappaPlaceError, match="are for the recipe 'stun', not for 'kappa-pt'"):
        settings_for("kappa-pt", str(file))
    file.write_text(settings.to_toml())
    assert settings_for("kappa-pt", str(file)) == settings


def test_recipes_say_what_they_are() -> None:
    assert {name for name, recipe in RECIPES.items() if recipe.frozen} == {
        "kappa-pt",
        "contrastive-pt",
        "gnll",
        "linear-head",
    }
    assert set(RECIPES) == VARIANCE | KAPPA | {"retrieval", "contrastive"}
    assert all(recipe.about and "\n" not in recipe.about for recipe in RECIPES.values())
