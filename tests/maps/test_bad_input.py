"""Bad input and full disks give one message, and the map stays as it was."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, PlaceMap
from kappaplace.maps import build as extend
from kappaplace.maps.exchange import export_map
from tests.maps.fakes import Counting, assert_same


@contextmanager
def full_disk(folder: Path, after: int) -> Iterator[list[str]]:
    """Simulate a full disk from the ``after``-th write below a folder; yields the written files."""
    real, written = io.open, []

    def opened(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        stream = real(file, mode, *args, **more)
        inside = isinstance(file, str | os.PathLike) and Path(file).is_relative_to(folder)
        if inside and "r" not in mode:
            write = stream.write

            def refused(data: Any) -> int:
                written.append(str(file))
                if len(written) > after:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return int(write(data))

            return _Refusing(stream, refused)
        return stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        yield written


class _Refusing:
    """A file that writes through another function."""

    def __init__(self, stream: Any, write: Callable[[Any], int]) -> None:
        self._stream, self.write = stream, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __iter__(self) -> Any:
        return iter(self._stream)


@pytest.fixture
def few(town: PlaceImages) -> PlaceImages:
    return town.select(town.reference_rows[:10])


@pytest.fixture
def grown(few, tiny, tmp_path, monkeypatch) -> tuple[Path, BuildOptions]:
    """A small map with two segments, and its embedder."""
    monkeypatch.setattr(extend, "BLOCK", 2)
    options = BuildOptions(segment_rows=4, embedder=Counting(tmp_path / "log"))
    PlaceMap.build(few.select(np.arange(6)), tmp_path / "before.map", tiny, options)
    return tmp_path / "before.map", options


@pytest.mark.slow
@pytest.mark.parametrize("what", ["add", "replace", "remove", "compact", "reembed"])
def test_a_disk_that_fills_up_at_any_write_loses_nothing(grown, few, town, tiny, tmp_path, what):
    source, options = grown
    changed = tmp_path / "changed"
    shutil.copytree(town.root, changed)
    for name in few.paths[:2].tolist():
        Image.new("RGB", (32, 32), "red").save(changed / name)
    work: dict[str, Callable[[PlaceMap], object]] = {
        "add": lambda m: m.add(few, options),
        "replace": lambda m: m.add(replace(few, root=changed), replace(options, duplicates="replace")),
        "remove": lambda m: m.remove(few.paths[:2].tolist()),
        "compact": lambda m: m.compact(),
        "reembed": lambda m: m.reembed(tiny, options),
    }
    names = set(PlaceMap.open(source).store.names())
    calm = PlaceMap.open(shutil.copytree(source, tmp_path / "calm.map"), tiny)
    with full_disk(calm.folder, 10**9) as writes:
        work[what](calm)
    assert len(writes) >= 3
    for after in range(0, len(writes), max(1, len(writes) // 12)):
        folder = shutil.copytree(source, tmp_path / "full.map")
        with (
            full_disk(folder, after),
            pytest.raises(KappaPlaceError, match="No space left on device"),
        ):
            work[what](PlaceMap.open(folder, tiny))
        left = PlaceMap.open(folder, tiny)
        assert left.verify() == []
        found = list(left.store.names())
        assert len(set(found)) == len(found)
        if what != "remove":
            assert names <= set(found), f"write {after} of {len(writes)}"
        if what != "remove" or set(found) == names:
            work[what](left)
        assert_same(left, calm)
        shutil.rmtree(folder)


def test_an_export_onto_a_full_disk_leaves_the_old_file(grown, tmp_path):
    opened, out = PlaceMap.open(grown[0]), tmp_path / "out"
    out.mkdir()
    for name in ("m.npz", "m.geojson"):
        export_map(opened.store, out / name)
        before = (out / name).read_bytes()
        with full_disk(out, 2), pytest.raises(KappaPlaceError, match="No space left on device"):
            export_map(opened.store, out / name)
        assert (out / name).read_bytes() == before
    assert sorted(os.listdir(out)) == ["m.geojson", "m.npz"]


def test_replacing_by_a_bad_image_keeps_the_good_one(town, town_map, tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "000.png").write_bytes(b"not an image")
    Image.new("RGB", (32, 32), "red").save(folder / "001.png")
    old = town_map.store.descriptors[town_map.store.find(["000.png"])]
    table = PlaceImages.create(["000.png", "001.png"], town.positions[:2], root=folder, frame=town.frame)
    report = town_map.add(table, options=AddOptions(duplicates="replace"))
    assert (report.replaced, [name for name, _ in report.skipped]) == (1, ["000.png"])
    assert len(town_map) == 56
    np.testing.assert_array_equal(town_map.store.descriptors[town_map.store.find(["000.png"])], old)


def test_nothing_is_removed_before_its_replacement_is_there(town, town_map, tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    Image.new("RGB", (32, 32), "red").save(folder / "000.png")
    table = PlaceImages.create(["000.png"], town.positions[:1], root=folder, frame=town.frame)

    def breaks(paths: object) -> Any:
        raise KappaPlaceError("The cluster is gone.")

    with pytest.raises(KappaPlaceError, match="cluster is gone"):
        town_map.add(table, options=AddOptions(duplicates="replace", embedder=breaks))
    again = PlaceMap.open(town_map.folder)
    assert list(again.store.names()) == town.references.paths.tolist()


def test_a_layout_without_a_folder_is_told(town, town_map):
    for given in (town, town.image_paths()[:2], town.image_path(0)):
        with pytest.raises(KappaPlaceError, match="layout 'at-names' needs a folder"):
            town_map.add(given, options=AddOptions(layout="at-names"))


def test_positions_that_are_not_numbers(town, tiny, tmp_path):
    """NaN for both coordinates means no position. Other invalid positions fail before a map is created."""
    rows, file = town.reference_rows[:4], tmp_path / "poses.csv"
    town.select(rows).save(file)
    text, (x, y) = file.read_text(), town.positions[rows[1]]
    name = town.paths[rows[1]]
    line = next(line for line in text.splitlines() if line.startswith(f"{name},"))
    rest = line.split(",")[3:]

    def built(position: str, out: str) -> PlaceMap:
        file.write_text(text.replace(line, ",".join([name, position, *rest])))
        return PlaceMap.build(file, tmp_path / out, tiny)

    for i, position in enumerate((",", "nan,nan")):
        made = built(position, f"m{i}")
        assert made.report.unposed == made.manifest.unposed == 1
        assert "1 have no position" in made.report.sentence
        answer = made.localize(town.image_path(int(rows[1])), area=(x, y, 1e6))
        assert len(answer.matches) == 3  # images without a position are in no circle
    for position in (f"nan,{y}", f",{y}", f"inf,{y}", "here,there"):
        with pytest.raises(KappaPlaceError, match=r"coordinate|poses\.csv"):
            built(position, "bad")
        assert not (tmp_path / "bad").exists()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 0x10
    file.write_bytes(bytes(data))


def test_damage_is_not_compacted_away(town_map, queries):
    """New files get new checksums, which would hide the damage."""
    town_map.remove(["001.png"])
    places = {"segments/000001/descriptors.npy": "nothing was changed", town_map.manifest.removed.file: ""}
    for name, end in places.items():
        file = town_map.folder / name
        good = file.read_bytes()
        flip(file)
        with pytest.raises(KappaPlaceError, match=rf"wrong checksum.*{end}"):
            PlaceMap.open(town_map.folder).compact()
        file.write_bytes(good)
    before = set(town_map.store.names())
    flip(town_map.folder / town_map.manifest.distinctiveness.file)  # it is computed again
    again = PlaceMap.open(town_map.folder)
    again.compact()
    assert again.verify() == []
    assert set(again.store.names()) == before


@pytest.mark.parametrize("what", ["add", "remove", "compact", "reembed", "localize", "export"])
def test_a_truncated_segment_stops_every_kind_of_work(town, town_map, tiny, queries, tmp_path, what):
    work: dict[str, Callable[[PlaceMap], object]] = {
        "add": lambda m: m.add(town, options=AddOptions(prefix="b/")),
        "remove": lambda m: m.remove(["020.png"]),
        "compact": lambda m: m.compact(),
        "reembed": lambda m: m.reembed(tiny),
        "localize": lambda m: m.localize(queries),
        "export": lambda m: export_map(m.store, tmp_path / "out.npz"),
    }

    def done() -> None:
        work[what](PlaceMap.open(town_map.folder, tiny))

    names = list(town_map.store.names())
    # Adding does not read poses and names of other segments before it writes.
    for name in ("descriptors",) if what == "add" else ("descriptors", "poses", "names.starts"):
        file = town_map.folder / "segments" / "000001" / f"{name}.npy"
        good = file.read_bytes()
        file.write_bytes(good[:-8])
        with pytest.raises(KappaPlaceError, match=rf"000001/{name}\.npy.*instead of"):
            done()
        file.write_bytes(good)
        assert not (tmp_path / "out.npz").exists()
    again = PlaceMap.open(town_map.folder)
    assert again.verify() == []
    assert list(again.store.names())[:56] == names
    done()
