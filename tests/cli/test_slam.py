"""``kappaplace slam`` from images and odometry to files that others read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from kappaplace.calibration.sources import load_calibration, save_calibration
from kappaplace.cli.main import app
from kappaplace.data.poses import chain
from kappaplace.data.readers.trajectory import read_poses
from kappaplace.errors import KappaPlaceError
from kappaplace.models.checkpoint import save_model
from kappaplace.models.place_model import PlaceModel
from kappaplace.slam.drive_files import write_tum
from tests.slam.synthetic import calibration

RUN = CliRunner()


@pytest.fixture
def drive(tmp_path: Path, tiny: PlaceModel) -> Path:
    """Twice around a square of 120 m, 2 m a frame, and odometry that turns a little too far."""
    rng = np.random.default_rng(0)
    (tmp_path / "frames").mkdir()
    views = [
        np.kron(rng.integers(0, 256, (4, 4, 3)), np.ones((12, 12, 1))).astype(np.uint8) for _ in range(60)
    ]
    steps = np.tile([2.0, 0.0, 0.0], (119, 1))
    steps[14::15, 2] = np.pi / 2
    for name, turn in (("truth", 0.0), ("odometry", 0.004)):
        write_tum(
            tmp_path / f"{name}.tum", chain(np.zeros(3), steps + np.array([0, 0, turn])), np.arange(120.0)
        )
    for row in range(120):
        Image.fromarray(views[row % 60]).save(tmp_path / "frames" / f"{row}.png")
    save_model(tiny, tmp_path / "model")
    save_calibration(calibration(), tmp_path / "closures.json")
    return tmp_path


def _run(drive: Path, *more: str) -> dict[str, object]:
    words = ["slam", "run", str(drive / "frames"), "--odometry", str(drive / "odometry.tum"), "--out"]
    words += [
        str(drive / "out"),
        "--model",
        str(drive / "model"),
        "--calibration",
        str(drive / "closures.json"),
    ]
    result = RUN.invoke(
        app, [*words, "--max-risk", "0.05", "--recent", "100", "--json", *more], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_drive_is_closed_and_written(drive: Path) -> None:
    pytest.importorskip("gtsam")
    pytest.importorskip("evo")
    facts = _run(drive, "--truth", str(drive / "truth.tum"))
    out = drive / "out"
    assert facts["frames"] == 120
    assert facts["accepted"] > 10
    assert facts["error"]["absolute"] < facts["error_odometry"]["absolute"]
    for name in ("trajectory.tum", "odometry.tum", "graph.g2o", "closures.jsonl", "report.json", "map.npz"):
        assert (out / name).stat().st_size > 0
    assert Image.open(out / "trajectory.png").size[0] > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "accepted" in page
    assert not re.search("https?:", page)  # the bare word may be part of an image in base64
    assert len(read_poses(out / "trajectory.tum").poses) == 120
    lines = [json.loads(line) for line in (out / "closures.jsonl").read_text().splitlines()]
    assert sum(line["accepted"] for line in lines) == facts["accepted"]
    # Embeddings are stored: the same drive is closed again without the encoder, now frame by frame.
    (stored,) = (out / "embeddings").rglob("descriptor.npy")
    before = stored.stat().st_mtime_ns
    again = _run(drive, "--incremental", "--truth", str(drive / "truth.tum"))
    assert stored.stat().st_mtime_ns == before
    assert again["error"]["absolute"] == pytest.approx(facts["error"]["absolute"], abs=0.2)


def test_true_odometry_is_left_as_it_was(drive: Path) -> None:
    pytest.importorskip("gtsam")
    (drive / "odometry.tum").write_bytes((drive / "truth.tum").read_bytes())
    facts = _run(drive)
    assert facts["accepted"] > 10
    assert facts["largest_correction"] == 0
    assert "agree with odometry within their noise" in (drive / "out" / "report.html").read_text(
        encoding="utf-8"
    )


def test_a_drive_with_known_poses_calibrates(drive: Path) -> None:
    words = ["slam", "calibrate", str(drive / "frames"), "--odometry", str(drive / "odometry.tum")]
    words += [
        "--truth",
        str(drive / "truth.tum"),
        "--model",
        str(drive / "model"),
        "--out",
        str(drive / "new.json"),
    ]
    lines = (drive / "truth.tum").read_text().splitlines(keepends=True)
    (drive / "truth.tum").write_text("".join(lines[:80]))
    with pytest.raises(KappaPlaceError, match="at least 10 outcomes"):  # it ends soon after the first lap
        RUN.invoke(app, words, catch_exceptions=False)
    assert not (drive / "new.json").exists()
    (drive / "truth.tum").write_text("".join(lines))
    result = RUN.invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = load_calibration(drive / "new.json").facts
    assert facts["fitted_on"] == facts["queries"] >= 10
    write_tum(drive / "truth.tum", np.zeros((2, 3)), np.arange(2.0) + 1e9)
    with pytest.raises(KappaPlaceError, match="No frame falls into"):
        RUN.invoke(app, words, catch_exceptions=False)


def test_cells_are_compared_once_and_an_unreadable_image_costs_nothing_else(drive: Path) -> None:
    pytest.importorskip("gtsam")
    (drive / "frames" / "118.png").write_bytes(b"no image")
    with pytest.raises(KappaPlaceError, match=r"118\.png"):
        _run(drive, "--agreement", "0.3")
    (sums,) = (drive / "out" / "embeddings").rglob("sums.npy")
    assert np.count_nonzero(np.load(sums)) == 64  # the block before it
    (drive / "frames" / "118.png").write_bytes((drive / "frames" / "58.png").read_bytes())
    first = _run(drive, "--agreement", "0.3")
    stored = np.load(drive / "out" / "cells.npz")
    assert len(stored["pairs"]) >= first["accepted"] > 10
    assert _run(drive, "--agreement", "0.3")["accepted"] == first["accepted"]
    # All of the images are alike to themselves: only what agrees in every cell is left.
    assert _run(drive, "--agreement", "1.0")["accepted"] <= first["accepted"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--calibration", "nothing.json"], "There is no calibration"),
        (["--max-risk", "2"], "risk"),
        (["--drift", "nan"], "drift must"),
        (["--agreement", "3"], "least_agreement"),
        (["--kernel", "gnc", "--incremental"], "all closures together"),
    ],
)
def test_bad_input_is_one_sentence(drive: Path, words: list[str], match: str) -> None:
    pytest.importorskip("gtsam")
    with pytest.raises(KappaPlaceError, match=match):
        _run(drive, *words)


@pytest.mark.parametrize("words", [("--kernel", "magic"), ("--dimensions", "4")])
def test_an_unknown_choice_lists_the_others(tmp_path: Path, words: tuple[str, str]) -> None:
    result = RUN.invoke(app, ["slam", "run", str(tmp_path), "--out", str(tmp_path / "out"), *words])
    assert result.exit_code == 2
    assert f"'{words[1]}' is not one of" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
