"""Settings: every option survives TOML, and invalid ones are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kappaplace.errors import KappaPlaceError
from kappaplace.training.settings import SECTIONS, Settings, flat, parse_options, read_toml

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "model.start": TEXT,
        "model.pretrained": st.booleans(),
        "model.start_kappa": st.floats(allow_nan=False, allow_infinity=False),
        "classes.by": st.sampled_from(["auto", "pose", "place"]),
        "classes.hold_out": st.floats(0, 1),
        "optimizer.lr": st.floats(0, exclude_min=True, allow_infinity=False),
        "optimizer.iterations": st.integers(0),
        "stop.metrics": st.lists(st.sampled_from(["R@1", "ECE@1", "AUROC"])),
        "run.seed": st.integers(0, 2**63 - 1),
        "run.trackers": st.lists(TEXT),
    },
)


@hypothesis_settings(deadline=None)
@given(changes=CHANGES)
def test_settings_survive_a_toml_file(tmp_path_factory: pytest.TempPathFactory, changes: dict) -> None:
    settings = Settings(recipe="kappa-pt").changed(changes)
    file = tmp_path_factory.getbasetemp() / "settings.toml"
    file.write_text(settings.to_toml(), encoding="utf-8")
    values = read_toml(file)
    assert values.pop("recipe") == "kappa-pt"
    assert set(values) == set(flat(settings)) - {"recipe"}
    assert Settings(recipe="kappa-pt").changed(values) == settings


def test_changed_options_are_changed_and_nothing_else() -> None:
    before = Settings()
    after = before.changed({"optimizer.lr": 1, "stop.metrics": "AUROC", "model.dim": 64})
    assert (after.optimizer.lr, after.stop.metrics, after.model.dim) == (1.0, ("AUROC",), 64)
    assert type(after.optimizer.lr) is float
    differ = {name for name, value in flat(after).items() if flat(before)[name] != value}
    assert differ == {"optimizer.lr", "stop.metrics", "model.dim"}
    lines = after.differences(before)
    assert "model.dim: 512 there, 64 here" in lines
    assert len(lines) == 3
    assert before.differences(before) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimizer.lr", "fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr", True, "must be a number"),
        ("optimizer.epochs", 1.5, "must be a whole number"),
        ("optimizer.epochs", True, "must be a whole number"),
        ("model.pretrained", 1, "must be true or false"),
        ("model.backbone", 50, "must be text"),
        ("stop.metrics", 3, "must be a list"),
        ("stop.metrics", ["R@1", "R@2"], "stop.metrics must be one of R@1, ECE@1, AUROC, got 'R@2'"),
        ("run.trackers", [1], "must be text"),
        ("classes.by", "grid", "classes.by must be one of auto, pose, place, got 'grid'"),
    ],
)
def test_wrong_types_are_reported(name: str, value: Any, message: str) -> None:
    with pytest.raises(KappaPlaceError, match=message):
        Settings().changed({name: value})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("optimizer.rate", r"Unknown option 'optimizer.rate'. Choose from: epochs, iterations"),
        ("optimiser", f"Unknown option 'optimiser'. Choose a section from: {', '.join(SECTIONS)}"),
        ("lr", "Unknown option 'lr'. Choose a section from"),
        ("optimizer", "Unknown option 'optimizer'"),
        ("recipe", "Unknown option 'recipe'"),
    ],
)
def test_unknown_options_list_the_valid_ones(name: str, message: str) -> None:
    with pytest.raises(KappaPlaceError, match=message):
        Settings().changed({name: 1})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimizer.epochs", 0, "above zero"),
        ("optimizer.batch_size", -4, "above zero"),
        ("optimizer.images_per_place", 0, "above zero"),
        ("optimizer.lr", 0.0, "above zero"),
        ("optimizer.lr", float("nan"), "finite number"),
        ("optimizer.head_lr", -1e-3, "negative"),
        ("optimizer.prototype_lr", -1e-3, "negative"),
        ("optimizer.weight_decay", -0.1, "negative"),
        ("run.accumulate", 0, "above zero"),
        ("run.checkpoint_every", 0, "above zero"),
        ("classes.cell", 0.0, "above zero"),
        ("classes.hold_out", 1.5, "between 0 and 1"),
        ("augment.damage", -0.1, "between 0 and 1"),
        ("augment.scale", 2.0, "between 0 and 1"),
        ("optimizer.iterations", -1, "must not be negative"),
        ("stop.patience", -1, "must not be negative"),
        ("stop.min_delta", -0.1, "must not be negative"),
        ("anchors.views", -1, "must not be negative"),
        ("classes.groups", -8, "must not be negative"),
    ],
)
def test_values_out_of_range_are_reported(name: str, value: Any, message: str) -> None:
    with pytest.raises(KappaPlaceError, match=f"{name} .*{message}"):
        Settings().changed({name: value})


def test_options_of_a_command_line() -> None:
    options = parse_options(
        [
            "optimizer.lr=1e-4",
            "model.start = runs/first",
            'stop.metrics=["R@1", "ECE@1"]',
            "model.pretrained=true",
        ]
    )
    assert options == {
        "optimizer.lr": 1e-4,
        "model.start": "runs/first",
        "stop.metrics": ["R@1", "ECE@1"],
        "model.pretrained": True,
    }
    assert Settings().changed(parse_options(["stop.metrics=R@1"])).stop.metrics == ("R@1",)
    assert Settings().changed(parse_options(["model.start=a=b"])).model.start == "a=b"
    with pytest.raises(
        KappaPlaceError, match=r"must be section.key=value, like optimizer.lr=1e-4, got 'optimizer.lr'"
    ):
        parse_options(["optimizer.lr"])


@pytest.mark.parametrize("folder", ["2024", "2024-05-01", "true", "1e5", "07"])
def test_a_folder_may_be_called_like_a_number_or_a_date(folder: str) -> None:
    """A text option on the command line is that text, even if it is another type in TOML."""
    assert Settings().changed(parse_options([f"model.start={folder}"])).model.start == folder


def test_files_that_are_not_settings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(KappaPlaceError, match=r"cannot be read as TOML \(No such file"):
        read_toml(tmp_path / "nothing.toml")
    file = tmp_path / "settings.toml"
    for content, message in (
        (b"[model\n", "cannot be read as TOML"),
        (b"\xff\xfe", "cannot be read as TOML"),
        (b"lr = 1", "'lr' in .* is outside a section. Choose a section from: model"),
        (b"model = 1", r"'model' in .* is outside a section. Choose from: start"),
    ):
        file.write_bytes(content)
        with pytest.raises(KappaPlaceError, match=message):
            read_toml(file)


def test_the_earlier_spelling_of_a_section_is_read(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[optimiser]\nlr = 0.25\n", encoding="utf-8")
    for changes in (read_toml(file), parse_options(["optimiser.lr=0.25"]), {"optimiser.lr": 0.25}):
        settings = Settings().changed(changes)
        assert settings.optimizer.lr == 0.25
        assert "[optimizer]" in settings.to_toml()
