"""The loop: logs as CSV, and states on disk."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.training.loop import (
    EPOCHS,
    FILE,
    STEPS,
    RunLog,
    as_csv,
    epoch_line,
    load_state,
    rng_state,
    save_state,
    set_rng_state,
)
from kappaplace.training.settings import RunSettings
from kappaplace.training.start import Engine, installed_trackers


def test_csv_has_all_columns_of_any_row() -> None:
    rows = [{"epoch": 0, "R@1": 0.25}, {"epoch": 1, "loss": 1.23456789e-7, "R@1": 0.5, "watching": "R@1"}]
    cells = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert cells == [
        {"epoch": "0", "R@1": "0.25", "loss": "", "watching": ""},
        {"epoch": "1", "R@1": "0.5", "loss": "1.23457e-07", "watching": "R@1"},
    ]


def test_files_are_written_whole_and_follow_the_rows(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write()
    assert not list(tmp_path.iterdir())
    log.steps += [{"step": 50, "loss": 2.0}, {"step": 100, "loss": 1.0}]
    log.epochs.append({"epoch": 1})
    log.write()
    assert (tmp_path / STEPS).read_text() == "step,loss\n50,2\n100,1\n"
    assert (tmp_path / EPOCHS).read_text() == "epoch\n1\n"
    del log.steps[1]  # a resumed run drops what came after its state
    log.write()
    assert (tmp_path / STEPS).read_text() == "step,loss\n50,2\n"


def test_epoch_line_says_what_there_is() -> None:
    row = {"epoch": 3, "loss": 1.23456, "R@1": 0.8125, "R@5": 0.9, "ECE@1": 0.1, "seconds": 41.6}
    assert epoch_line(row, 30) == "epoch 3/30  loss 1.235  R@1 0.8125  ECE@1 0.1  (42 s)"
    assert epoch_line({"epoch": 0, "seconds": 0.0}, 2) == "epoch 0/2  (0 s)"


def test_only_the_default_tracker_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that should be tracked and is not is found out hours later."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "wandb" else None)
    assert installed_trackers(["tensorboard", "wandb"]) == ["wandb"]
    assert installed_trackers([]) == []
    with pytest.raises(KappaPlaceError, match=r"'mlflow', which is not installed\. Run `pip install mlflow`"):
        installed_trackers(["tensorboard", "wandb", "mlflow"])
    with pytest.raises(KappaPlaceError, match="Unknown tracker 'neptune'"):
        installed_trackers(["neptune"])


def test_a_tracker_without_accelerate_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtra, match="The tracker wandb needs the extra"):
        Engine.create(RunSettings(trackers=("tensorboard", "wandb")), "cpu", tmp_path)
    assert Engine.create(RunSettings(), "cpu", tmp_path).main


def test_a_constant_score_is_marked_in_the_epoch_line() -> None:
    row = {"epoch": 1, "R@1": 0.5, "ECE@1": 0.12, "tied": 1.0, "seconds": 1.0}
    assert epoch_line(row, 2) == "epoch 1/2  R@1 0.5  ECE@1 0.12*  (1 s)"
    assert "*" not in epoch_line({**row, "tied": 0.1}, 2)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    state = {"epoch": 3, "model": {"w": torch.randn(4)}, "stopping": {"best": None}, "steps": [{"loss": 0.5}]}
    save_state(tmp_path, state)
    restored = load_state(tmp_path)
    assert restored is not None
    torch.testing.assert_close(restored["model"]["w"], state["model"]["w"], rtol=0, atol=0)
    assert {key: restored[key] for key in ("epoch", "stopping", "steps")} == {
        key: state[key] for key in ("epoch", "stopping", "steps")
    }
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_a_write_that_breaks_off_leaves_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(tmp_path, {"epoch": 1})

    def half(content: object, stream: BinaryIO) -> None:
        stream.write(b"half a sta")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, {"epoch": 2})
    restored = load_state(tmp_path)
    assert restored is not None
    assert restored["epoch"] == 1


class Bomb:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("bomb-went-off",)


def test_invalid_states_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (b"", b"junk", b"\x80\x02."):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(KappaPlaceError, match=r"cannot be read .*Remove it to start again"):
            load_state(tmp_path)
    for content in ({"epoch": 1}, [1, 2], {"format": 1, "bomb": Bomb()}):
        torch.save(content, tmp_path / FILE)
        with pytest.raises(KappaPlaceError, match="cannot be read"):
            load_state(tmp_path)
    assert not (tmp_path / "bomb-went-off").exists()
    torch.save({"format": 2}, tmp_path / FILE)
    with pytest.raises(KappaPlaceError, match="another version"):
        load_state(tmp_path)


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    torch.rand(3)
    save_state(tmp_path, {"random": rng_state()})
    expected = torch.rand(5)
    torch.manual_seed(99)
    restored = load_state(tmp_path)
    assert restored is not None
    set_rng_state(restored["random"])
    torch.testing.assert_close(torch.rand(5), expected, rtol=0, atol=0)
