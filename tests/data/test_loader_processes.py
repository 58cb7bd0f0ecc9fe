"""Decoding in processes: the same batches and errors as in threads, and no resources left."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import UserList, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from kappaplace.data import decode_pool, loader
from kappaplace.data.images import Preprocessing
from kappaplace.data.loader import Batch, ImageLoader, Workers
from kappaplace.errors import KappaPlaceError

pytestmark = pytest.mark.skipif(not decode_pool.available(), reason="needs unnamed memory")
SQUARE = Preprocessing(size=16, mode="exact")
NATIVE = Preprocessing()
_OTHERS: set[int] = set()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Twelve noisy images of two sizes and several formats."""
    rng = np.random.default_rng(0)
    files = []
    for row in range(12):
        shape = (20, 30, 3) if row % 3 else (16, 16, 3)
        files.append(tmp_path / f"{row}{('.jpg', '.png')[row % 2]}")
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(files[-1])
    return files


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test: no process, no thread, no open file and no shared memory more than before."""
    decode_pool.end_idle()
    _OTHERS.clear()
    _OTHERS.update(_children())
    before = _traces()
    yield
    decode_pool.end_idle()
    gc.collect()
    assert _traces() == before


def _traces() -> tuple[list[int], int, list[str], list[str]]:
    opened = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is_open(n)]
    ours = sorted(name.split(":")[0] for name in opened if name.startswith(("socket:", "/memfd:")))
    named = sorted(name for name in os.listdir("/dev/shm") if "kappaplace" in name)
    return _children(), threading.active_count(), ours, named


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def _children(of: int | None = None) -> list[int]:
    """Return child processes, including zombies, except those of other tests."""
    children = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == (of or os.getpid()):
            children.append(int(entry))
    return sorted(set(children) - _OTHERS)


def both(paths: Any, preprocessing: Preprocessing, size: int, **more: Any) -> tuple[list[Batch], list[Batch]]:
    """Return all batches from threads and from processes."""
    loaders = [ImageLoader(paths, preprocessing, size, workers=Workers(2, p), **more) for p in (False, True)]
    return list(loaders[0]), list(loaders[1])


@pytest.mark.parametrize("preprocessing", [SQUARE, NATIVE, Preprocessing(24, "shorter")])
def test_the_same_batches_as_in_threads(paths: list[Path], preprocessing: Preprocessing) -> None:
    paths[6] = paths[6].rename(paths[6].with_name(os.fsdecode(b"no UTF-8 \xff, \xc3\xbc.jpg")))
    threads, processes = both(paths, preprocessing, 5, rows=[*range(11, -1, -1), 3, 3])
    assert [b.rows.tolist() for b in processes] == [b.rows.tolist() for b in threads]
    for one, other in zip(threads, processes, strict=True):
        assert torch.equal(one.images, other.images)
        assert other.images.is_contiguous(memory_format=torch.channels_last)


def test_batches_in_use_do_not_change(paths: list[Path]) -> None:
    loader = ImageLoader(paths, SQUARE, 1, workers=Workers(2, True))
    for _ in range(2):
        views = [batch.images[0, :1] for batch in loader]  # more than the shared memory has room for
        for view, path in zip(views, paths, strict=True):
            assert torch.equal(view, SQUARE.to_uint8(path)[:1])


def test_memory_is_reused(paths: list[Path]) -> None:
    loader = ImageLoader(paths, SQUARE, 1, workers=Workers(2, True), rows=list(range(12)) * 3)
    assert len({batch.images.data_ptr() for batch in loader}) <= loader.workers.prefetch + 3


@pytest.mark.parametrize("preprocessing", [SQUARE, NATIVE])
def test_unreadable_images_are_skipped_as_in_threads(paths: list[Path], preprocessing: Preprocessing) -> None:
    paths[1].write_bytes(b"rubbish")
    paths[4].unlink()
    paths[5].unlink()
    paths[7] = Path("x" * 3000)
    rows, skipped = [], []
    for processes in (False, True):
        loader = ImageLoader(paths, preprocessing, 2, workers=Workers(2, processes), on_error="skip")
        rows.append([batch.rows.tolist() for batch in loader])
        skipped.append(loader.skipped)
    assert rows[0] == rows[1]
    assert skipped[0] == skipped[1]
    assert [s.row for s in skipped[1]] == [1, 4, 5, 7]


def test_unreadable_images_raise_on_request(paths: list[Path]) -> None:
    paths[9].unlink()
    seen = []
    with pytest.raises(KappaPlaceError, match=r"No image file at .*9\.png"):
        seen.extend(b.rows[0] for b in ImageLoader(paths, SQUARE, 3, workers=Workers(2, True)))
    assert seen == [0, 3, 6]


def test_images_that_only_the_parent_can_read(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    paths[2].write_bytes(paths[2].read_bytes()[:-40])
    for preprocessing in (SQUARE, NATIVE):
        threads, processes = both(paths, preprocessing, 12)
        for one, other in zip(threads, processes, strict=True):
            assert torch.equal(one.images, other.images)


def test_endless_rows_and_an_early_stop(paths: list[Path]) -> None:
    consumed = []

    def rows() -> Iterator[int]:
        for row in itertools.cycle(range(12)):
            consumed.append(row)
            yield row

    batches = iter(ImageLoader(paths, SQUARE, 4, rows=rows(), workers=Workers(2, True)))
    got = [next(batches).rows.tolist() for _ in range(6)]
    assert list(itertools.chain(*got)) == [r % 12 for r in range(24)]
    assert len(consumed) <= 24 + 2 * 4 + 4
    assert len(_children()) == 2
    del batches
    assert _children() == []


def test_an_exception_of_the_consumer_ends_the_processes(paths: list[Path]) -> None:
    def consume() -> None:
        for _ in ImageLoader(paths, SQUARE, 2, workers=Workers(2, True)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert _children() == []


def test_a_killed_process_ends_the_pass_with_one_message(paths: list[Path]) -> None:
    rows = itertools.cycle(range(12))
    batches = iter(ImageLoader(paths, SQUARE, 4, rows=rows, workers=Workers(2, True), on_error="skip"))
    next(batches)
    os.kill(_children()[0], signal.SIGKILL)
    with pytest.raises(KappaPlaceError, match=r"ended by signal SIGKILL"):
        deque(itertools.islice(batches, 1000), maxlen=0)
    assert _children() == []


def test_the_next_pass_reuses_the_processes(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = [path.name for path in paths]
    (tmp_path / "other").mkdir()
    Image.new("L", (16, 16), 77).save(tmp_path / "other" / relative[0])
    used = []
    for folder, preprocessing in ((tmp_path, SQUARE), (tmp_path, NATIVE), (tmp_path / "other", SQUARE)):
        monkeypatch.chdir(folder)
        first, *_ = ImageLoader(relative[:1], preprocessing, 4, workers=Workers(2, True))
        assert torch.equal(first.images[0], preprocessing.to_uint8(folder / relative[0]))
        used.append(_children())
    assert used[0] == used[1]
    assert not set(used[1]) & set(used[2])
    os.kill(used[2][0], signal.SIGKILL)  # while nobody uses it
    assert until(lambda: _children() == [])
    assert len(list(ImageLoader(relative[:1], SQUARE, 4, workers=Workers(2, True)))) == 1


def test_processes_without_a_next_pass_end(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "IDLE_S", 0.1)
    before = _traces()
    assert len(list(ImageLoader(paths, SQUARE, 12, workers=Workers(2, True)))) == 1
    assert until(lambda: _traces() == before)


def until(true: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within seconds."""
    end = time.monotonic() + 10
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def test_interrupted_in_a_script_without_a_guard(paths: list[Path], tmp_path: Path) -> None:
    errors = ended_by(
        signal.SIGINT,
        tmp_path / "unguarded.py",
        "import itertools\n"
        "from kappaplace.data.decode_worker import Pass\n"
        "from kappaplace.data.images import Preprocessing\n"
        "from kappaplace.data.loader import ImageLoader, Workers\n"
        "print('once', flush=True)\n"
        f"paths = {[str(p) for p in paths]!r}\n"
        "rows = itertools.cycle(range(12))\n"
        "loader = ImageLoader(paths, Preprocessing(16, 'exact'), 4, rows=rows, workers=Workers(2, True))\n"
        "for i, _ in enumerate(loader):\n"
        "    if i == 5: print('running', flush=True)\n",
    )
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("order", [range(12), [1, 2, 4, 5, 7, 8]])
def test_images_of_one_size_may_remain_unresized(
    paths: list[Path], processes: bool, order: list[int]
) -> None:
    (paths[5].parent / "broken.png").write_bytes(b"no image")
    paths = [*paths, paths[5].parent / "broken.png"]
    options: dict[str, Any] = {"workers": Workers(2, processes), "on_error": "skip"}
    loader = ImageLoader(paths, SQUARE, 6, rows=[*order, 12], unresized=(20, 30), **options)
    rows = []
    for batch in loader:
        for row, image in zip(batch.rows, batch.images, strict=True):
            whole = np.asarray(SQUARE.decoded(paths[row]))
            expected = whole if whole.shape == (20, 30, 3) else np.asarray(SQUARE.image(paths[row]))
            np.testing.assert_array_equal(image.permute(1, 2, 0), expected)
            rows.append(int(row))
    assert rows == list(order)
    assert [skipped.row for skipped in loader.skipped] == [12]


def test_processes_end_with_a_parent_that_is_killed(paths: list[Path], tmp_path: Path) -> None:
    errors = ended_by(
        signal.SIGKILL,
        tmp_path / "unguarded.py",
        "from kappaplace.data.decode_pool import DecodeProcesses\n"
        "from kappaplace.data.decode_worker import Pass\n"
        "from kappaplace.data.images import Preprocessing\n"
        "print('once', flush=True)\n"
        "processes = DecodeProcesses.start(2, Pass(Preprocessing()), 1, 1)\n"
        f"processes.submit([{str(paths[0])!r}], None, None).result()\n"
        "print('running', flush=True)\n"
        f"while True: processes.submit([{str(paths[0])!r}], None, None).result()\n",
    )
    assert errors == ""


def ended_by(end: signal.Signals, script: Path, text: str) -> str:
    """Return what a script with two workers writes to stderr when a signal ends it."""
    # Started in the background, a shell has its children ignore Ctrl-C.
    script.write_text("import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + text)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        try:
            assert [parent.stdout.readline() for _ in range(2)] == ["once\n", "running\n"]
            assert len(_children(of=parent.pid)) == 2
            parent.send_signal(end)
            # Its workers share its stderr: only when all have ended does it close.
            out, errors = parent.communicate(timeout=20)
        finally:
            parent.kill()  # or a failure would wait for it without end
    assert out == ""
    return errors


def test_threads_take_over_where_no_process_starts(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for program in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", program)
        threads, others = both(paths, SQUARE, 12)
        assert torch.equal(threads[0].images, others[0].images)
        assert "could not be started" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    ("cores", "images", "workers", "expected"),
    [
        (4, 1000, None, None),
        (16, 100, None, None),
        (16, 1000, None, 16),
        (64, 1000, None, 32),
        (16, 1000, 4, None),
        (16, 1000, 8, 8),
        (2, 1000, 8, None),
        (16, 1000, 0, None),
    ],
)
def test_many_cores_and_many_files_mean_processes(
    paths: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    images: int,
    workers: int | None,
    expected: int | None,
) -> None:
    counts = recorded_starts(monkeypatch, cores)
    next(iter(ImageLoader(paths, SQUARE, 4, rows=[0] * images, workers=workers)))
    assert counts == ([] if expected is None else [expected])


def test_only_paths_go_to_processes(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = recorded_starts(monkeypatch, cores=16)
    rows = [0] * 1000
    array = np.zeros((16, 16, 3), np.uint8)
    for sources in ([*paths, array], [paths[0].read_bytes()], _OnDemand([paths[0]])):
        next(iter(ImageLoader(sources, SQUARE, 4, rows=rows)))
        with pytest.raises(KappaPlaceError, match="a list of paths"):
            next(iter(ImageLoader(sources, SQUARE, 4, rows=rows, workers=Workers(processes=True))))
    next(iter(ImageLoader(paths, _Own(16, "exact"), 4, rows=rows)))
    assert counts == []
    next(iter(ImageLoader(tuple(map(str, paths)), SQUARE, 4, rows=iter(rows))))
    assert counts == [16]


class _OnDemand(UserList[Any]):
    """A sequence that computes its items on access, so checking all of them may be slow."""


class _Own(Preprocessing):
    pass


def recorded_starts(monkeypatch: pytest.MonkeyPatch, cores: int) -> list[int]:
    """Record the number of processes that a loader starts on a machine with this many cores."""
    counts: list[int] = []
    monkeypatch.setattr(loader, "usable_cores", lambda: cores)
    monkeypatch.setattr(loader.DecodeProcesses, "start", lambda count, *_: counts.append(count))
    return counts


def test_workers_start_without_torch() -> None:
    program = "import sys, kappaplace.data.decode_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
