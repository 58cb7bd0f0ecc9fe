"""Embedding on a Ray cluster: the same map as without it, even if workers die."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kappaplace.cli.main import BAD_INPUT, main
from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.maps import AddOptions, BuildOptions, PlaceMap
from kappaplace.maps import build as extend
from kappaplace.models.checkpoint import save_model
from kappaplace.models.embedding import embed_images
from kappaplace.models.embedding.ray import RETRIES, LocalEmbedder, RayEmbedder, embed_block
from kappaplace.models.frozen import FrozenEncoder
from tests.maps.fakes import Counting, assert_same

BLOCK = 4


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extend, "BLOCK", BLOCK)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    """A local Ray cluster that embeds two blocks at once. The process has joined it, so `auto` uses it."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def slowed(log: Path, seconds: float, last: Callable[[], None] = lambda: None) -> Callable[..., None]:
    """A hook that slows a model down and logs its process; it is sent along with the model."""

    def hook(*_: object) -> None:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{os.getpid()}\n".encode())
        os.close(handle)
        time.sleep(seconds)
        last()

    return hook


def runs(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(two_workers, town, tiny, tmp_path):
    options = BuildOptions(segment_rows=16, patches="none")  # a codebook is fitted before the first block
    here = PlaceMap.build(town, tmp_path / "here.map", tiny, options=options)
    log = tmp_path / "log"
    tiny.register_forward_hook(slowed(log, 0.6))
    killed: list[int] = []

    def kill_one() -> None:
        while len(runs(log)) < 5:  # midway: some blocks are done, two are in progress
            time.sleep(0.01)
        killed.append(runs(log)[-1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    made = PlaceMap.build(town, tmp_path / "ray.map", tiny, options=replace(options, ray="auto"))
    killer.join()
    pids, blocks = runs(log), len(town.reference_rows) // BLOCK
    assert os.getpid() not in pids
    assert len(set(pids)) >= 3  # two workers, and a replacement of the dead one
    assert len(pids) > blocks  # the block that died was embedded again
    assert made.report.added == len(made) == 56
    assert_same(made, here)  # names, descriptors, κ: bit for bit
    assert made.verify() == []
    assert not (made.folder / "pending").exists()


@pytest.mark.slow
def test_add_and_reembed_on_a_cluster(two_workers, town, tiny, tmp_path):
    torch.manual_seed(7)
    other = FrozenEncoder(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        preprocessing=Preprocessing(32, "exact"),
    ).eval()
    rows = town.reference_rows
    maps = []
    for ray in ("", "auto"):
        made = PlaceMap.build(
            town.select(rows[:24]), tmp_path / f"m{ray}", tiny, options=BuildOptions(ray=ray)
        )
        assert made.add(town, options=AddOptions(ray=ray)).added == 32
        maps.append(made)
    assert_same(*maps)
    for ray, made in zip(("", "auto"), maps, strict=True):
        assert made.reembed(other, options=AddOptions(ray=ray)).added == 56
    assert_same(*maps)
    assert maps[1].manifest.model.dim == 8


@pytest.mark.slow
def test_bad_images_are_named_as_they_are_here(two_workers, town, tiny, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in town.reference_rows[:10]:
        (folder / f"{row}.png").write_bytes(Path(town.image_path(int(row))).read_bytes())
    (folder / "3.png").write_bytes(b"not an image")
    table = PlaceImages.create([f"{i}.png" for i in range(10)], root=folder)
    with pytest.raises(KappaPlaceError, match=r"photos/3\.png is not an image"):
        PlaceMap.build(table, tmp_path / "strict", tiny, options=BuildOptions(on_error="stop", ray="auto"))
    made = PlaceMap.build(folder, tmp_path / "m", tiny, options=BuildOptions(ray="auto"))
    assert ([name for name, _ in made.report.skipped], len(made)) == (["3.png"], 9)
    assert_same(made, PlaceMap.build(folder, tmp_path / "here", tiny))


@pytest.mark.slow
def test_a_block_that_kills_every_worker_ends_in_a_sentence(two_workers, town, tiny, tmp_path):
    log = tmp_path / "log"
    good = PlaceMap.build(town, tmp_path / "m", tiny, options=BuildOptions(embedder=Counting(tmp_path / "c")))
    handle = tiny.register_forward_hook(slowed(log, 0, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    with pytest.raises(
        KappaPlaceError, match=rf"workers died {RETRIES + 1} times .*run the command again to resume"
    ):
        PlaceMap.open(good.folder, tiny).add(
            town.select(town.reference_rows[:2]), options=AddOptions(prefix="x/", ray="auto")
        )
    handle.remove()
    assert len(set(runs(log))) == RETRIES + 1
    assert PlaceMap.open(good.folder).verify() == []
    assert len(PlaceMap.open(good.folder)) == 56


@pytest.mark.slow
def test_what_a_cluster_cannot_do_is_told(two_workers, tiny):
    with pytest.raises(KappaPlaceError, match="cluster has no GPU"):
        RayEmbedder(tiny, tiny.preprocessing, device="cuda")
    with pytest.raises(KappaPlaceError, match="device must be cpu or cuda, got 'cuda:1'"):
        RayEmbedder(tiny, tiny.preprocessing, device="cuda:1")
    tiny.lock = threading.Lock()
    with pytest.raises(KappaPlaceError, match="cannot be sent to Ray workers"):
        RayEmbedder(tiny, tiny.preprocessing)


def test_a_cluster_that_is_not_there_is_told_quickly(town, tiny, tmp_path):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "nonsense"):
        with pytest.raises(KappaPlaceError, match=f"Ray cluster at {address} cannot be reached"):
            RayEmbedder(tiny, tiny.preprocessing, address)
    assert time.monotonic() - start < 5
    with pytest.raises(KappaPlaceError, match="cannot be used together"):
        PlaceMap.build(
            town, tmp_path / "m", tiny, options=BuildOptions(ray="auto", embedder=Counting(tmp_path / "log"))
        )


def test_the_command_tells_of_a_cluster_that_is_not_there(town_folder, tiny, tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    model, table = save_model(tiny, tmp_path / "model"), town_folder / "val.parquet"
    words = ["map", "build", table, "--out", tmp_path / "m", "--model", model, "--ray", "127.0.0.1:1"]
    monkeypatch.setattr("sys.argv", ["kappaplace", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert (stop.value.code, said.count("\n")) == (BAD_INPUT, 1)
    assert "Ray cluster at 127.0.0.1:1 cannot be reached" in said
    assert len(PlaceMap.build(table, tmp_path / "m", model)) == 56  # the same command, here


@pytest.mark.slow
def test_auto_starts_a_cluster_where_none_runs(town_folder, tiny, tmp_path):
    """Run in another process, because this one may have joined a cluster."""
    pytest.importorskip("ray")
    model, table = save_model(tiny, tmp_path / "model"), town_folder / "val.parquet"
    words = [str(word) for word in ("map", "build", table, "--out", tmp_path / "m", "--model", model)]
    # A separate folder hides the clusters of this machine; sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        own = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        ran = subprocess.run(
            [sys.executable, "-m", "kappaplace", *words, "--ray", "auto"],
            env=os.environ | own,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert "No Ray cluster is running. Started one with" in ran.stderr
    assert "56 images added" in ran.stdout


def test_workers_of_another_version_refuse(tiny):
    said = embed_block("0.0.1", (None,), tiny.preprocessing.to_dict(), {}, [b""])
    assert "Install the same version on both" in str(said)


class Eager(LocalEmbedder):
    """Start several blocks before waiting for the first, like a cluster."""

    ahead = 3

    def __init__(self, embed: Any, events: list[str]) -> None:
        super().__init__(embed)
        self.events = events

    def begin(self, paths: Any) -> Any:
        self.events.append(f"begin {paths[0][-7:]}")
        waiting = super().begin(paths)

        def wait() -> Any:
            self.events.append(f"wait {paths[0][-7:]}")
            return waiting()

        return wait


def test_blocks_under_way_are_bounded_and_stay_in_order(town, tiny, tmp_path, monkeypatch):
    from contextlib import contextmanager

    events: list[str] = []

    @contextmanager
    def eager(model: Any, preprocessing: Any, **_: Any) -> Iterator[Eager]:
        def embed(paths: Any) -> Any:
            return embed_images(model, preprocessing, paths, progress=False)

        yield Eager(embed, events)

    options = BuildOptions(segment_rows=16, patches="none")  # a codebook is fitted before the first block
    here = PlaceMap.build(town, tmp_path / "here", tiny, options=options)
    monkeypatch.setattr(extend, "starter", eager)
    made = PlaceMap.build(town, tmp_path / "ahead", tiny, options=options)
    assert_same(made, here)
    under_way = np.cumsum([1 if event.startswith("begin") else -1 for event in events])
    assert (under_way.max(), under_way[-1]) == (4, 0)
    waited = [event for event in events if event.startswith("wait")]
    assert waited == sorted(waited)
