"""States on disk: complete or unchanged, and only data is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from kappaplace.errors import KappaPlaceError
from kappaplace.training.loop import FILE, load_state, rng_state, save_state, set_rng_state


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
