"""What earlier releases wrote still opens, and still gives the answers it gave then."""

from __future__ import annotations

import json
import math
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.api import read_toml, rewrite, shipped_calibration
from tests.golden.ask import ENCODED, EXACT, plain

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.glob("v*"))
EXACTLY = 1e-6
"""Of answers that start from stored descriptors and features."""
CLOSELY = 1e-4
"""Of answers through a network: other kernels of the CPU change 7.0e-6 at most (README.md), times 14."""
FITTED = {"calibrate-self": 2e-3}
"""Where something was fitted on numbers of a network: they change 1.3e-4, times 15."""
ROUNDED = {"localize-pq": 4e-4}
"""Codes are decoded by a float32 product: other kernels of the matrix library change 2.6e-5, times 15."""
WORDS = ("sentence", "message", "note", "notes", "promise", "assumptions", "warnings", "origin")
"""Sentences, which may be worded better: their numbers are compared, where numbers are exact."""


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a golden folder with its weights unpacked: opening a map may write into it."""
    copy = tmp_path_factory.mktemp("golden") / request.param
    shutil.copytree(HERE / request.param, copy)
    with tarfile.open(copy / "weights.tar.xz") as archive:
        archive.extractall(copy, filter="data")
    return copy


@pytest.fixture(autouse=True)
def _there(release: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(release)
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))


def _is_text(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str) for part in parts)


def numbers(sentences: Any) -> list[float]:
    """The numbers in a sentence or in several, whatever the words around them."""
    text = sentences if isinstance(sentences, str) else " ".join(sentences or ())
    return sorted(float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text))


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and value.count(" ") > 2


def differences(ours: Any, stored: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Where two answers differ, beyond the tolerance in numbers."""
    if isinstance(stored, dict) and isinstance(ours, dict):
        for key in sorted({*ours, *stored}):
            if key in WORDS and _is_text(stored.get(key)):
                if tolerance <= EXACTLY and numbers(ours.get(key)) != numbers(stored.get(key)):
                    yield f"{where}.{key}: {ours.get(key)!r}, was {stored.get(key)!r}"
                continue
            if (key in ours) != (key in stored):
                yield f"{where}.{key} is only {'now' if key in ours else 'then'}"
            else:
                yield from differences(ours[key], stored[key], tolerance, f"{where}.{key}")
    elif isinstance(stored, list) and isinstance(ours, list) and len(ours) == len(stored):
        for i, (now, then) in enumerate(zip(ours, stored, strict=True)):
            yield from differences(now, then, tolerance, f"{where}[{i}]")
    elif _is_sentence(stored) and _is_sentence(ours):  # a refusal
        if numbers(ours) != numbers(stored):
            yield f"{where}: {ours!r}, was {stored!r}"
    elif isinstance(stored, float) and isinstance(ours, int | float) and not isinstance(ours, bool):
        if not math.isclose(ours, stored, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {ours!r}, was {stored!r}"
    elif ours != stored:
        yield f"{where}: {ours!r}, was {stored!r}"


def check(release: Path, name: str, question: Any, tolerance: float) -> None:
    file = release / "answers" / f"{name}.json"
    if not file.exists():
        pytest.skip("A question that this release was not asked.")
    if name.endswith("onnx"):
        pytest.importorskip("onnxruntime")
    found = list(
        differences(json.loads(json.dumps(plain(question()))), json.loads(file.read_text()), tolerance)
    )
    assert not found, f"{len(found)} differences, for instance " + "; ".join(found[:5])


@pytest.mark.parametrize("name", EXACT)
def test_stored_descriptors_give_the_same_answers(release: Path, name: str) -> None:
    check(release, name, EXACT[name], ROUNDED.get(name, EXACTLY))


@pytest.mark.parametrize("name", ENCODED)
def test_stored_models_give_the_same_answers(release: Path, name: str) -> None:
    check(release, name, ENCODED[name], FITTED.get(name, CLOSELY))


def test_every_answer_is_asked_for(release: Path) -> None:
    assert {file.stem for file in (release / "answers").iterdir()} <= {*EXACT, *ENCODED}


def records(release: Path) -> list[Path]:
    """Every stored record that the code can write again."""
    patterns = ("*.map/manifest.json", "**/card.json", "calibrations/*.json", "drive/closures.json")
    patterns += ("labels-2.csv", "*.monitor.json", "**/results.json")
    return sorted(file for pattern in patterns for file in release.glob(pattern))


def test_records_are_written_again_byte_by_byte(release: Path, tmp_path: Path) -> None:
    found = records(release)
    assert len(found) > 20
    for number, file in enumerate(found):
        again = tmp_path / str(number) / file.name
        again.parent.mkdir()
        rewrite(file, again)
        if b'"checksum"' not in again.read_bytes():
            assert again.read_bytes() == file.read_bytes(), file.relative_to(release)
        else:  # manifests and calibrations have a checksum, maps can store patches since
            new = {"checksum", "features", "format", "patches", "patch_codebook"}
            ours, theirs = (json.loads(each.read_text(encoding="utf-8")) for each in (again, file))
            assert {*ours} - {*theirs} <= new
            assert {k: v for k, v in ours.items() if k not in new} == {
                k: v for k, v in theirs.items() if k not in new
            }, file.relative_to(release)
        if file.name == "results.json":
            for other in file.parent.iterdir():
                if other.suffix != ".parquet":  # its writer's version is in it
                    assert (again.parent / other.name).read_bytes() == other.read_bytes(), other


def test_settings_of_a_training_have_the_same_values(release: Path, tmp_path: Path) -> None:
    """A later version adds options, so the file it writes is longer; what was set stays."""
    stored = release / "training" / "settings.toml"
    rewrite(stored, tmp_path / "settings.toml")
    old, new = read_toml(stored), read_toml(tmp_path / "settings.toml")
    renamed = {key.replace("optimiser.", "optimizer."): value for key, value in old.items()}
    assert len(renamed) > 40
    assert renamed == {key: new[key] for key in renamed}
    rewrite(tmp_path / "settings.toml", tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_bytes() == (tmp_path / "settings.toml").read_bytes()


def test_the_shipped_calibration_is_written_again_byte_by_byte(tmp_path: Path) -> None:
    rewrite(shipped_calibration(), tmp_path / "calibration.json")
    assert (tmp_path / "calibration.json").read_bytes() == shipped_calibration().read_bytes()


def test_nothing_tells_of_the_machine(release: Path) -> None:
    for file in release.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(word in content for word in (b"/work/", b"/tmp/", b"/home/", b"/root/")), file
