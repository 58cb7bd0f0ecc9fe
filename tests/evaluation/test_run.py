"""`evaluate_model`: what is read, and how often."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from kappaplace.data import table as tables
from kappaplace.errors import KappaPlaceError
from kappaplace.evaluation.run import Choices, Machine, evaluate_model
from kappaplace.models import encoder

FEW = Choices("l2", k=5, resamples=0)


def test_every_table_is_opened_once_and_the_weights_are_hashed_once(
    city_folder: Path, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = tmp_path / "shorter.parquet"
    table = tables.PlaceImages.open(city_folder / "test.parquet")
    table.select(slice(1, None)).save(shorter)  # of the same name, so that the files name the results
    calls: Counter[str] = Counter()
    read, digest = tables.read_table, encoder.state_digest
    monkeypatch.setattr(tables, "read_table", lambda file: (calls.update([Path(file).name]), read(file))[1])
    monkeypatch.setattr(encoder, "state_digest", lambda state: (calls.update(["weights"]), digest(state))[1])
    files = [city_folder / "test.parquet", shorter]
    machine = Machine(tmp_path / "cache")
    result = evaluate_model(str(saved_model), files, FEW, machine, validation=city_folder / "val.parquet")
    assert calls == {"test.parquet": 1, "shorter.parquet": 1, "val.parquet": 1, "weights": 1}
    assert [each.name for each in result.sets] == ["test", "shorter"]


def test_a_copy_of_an_evaluated_table_cannot_be_fitted(
    city_folder: Path, saved_model: Path, tmp_path: Path
) -> None:
    copy = shutil.copy(city_folder / "test.parquet", city_folder / "copy.parquet")
    with pytest.raises(KappaPlaceError, match="cannot be used for both fitting and evaluation"):
        evaluate_model(
            str(saved_model), [city_folder / "test.parquet"], FEW, Machine(tmp_path), validation=Path(copy)
        )
