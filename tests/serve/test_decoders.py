"""Uploads are decoded in processes that end if an image takes too long; scans are counted before."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.maps import PlaceMap
from kappaplace.serve import decoders as module
from kappaplace.serve.decode_worker import count_scans
from kappaplace.serve.decoders import Decoders
from kappaplace.serve.problems import ApiError
from kappaplace.serve.settings import Settings
from tests.serve.conftest import READ, Serve, asked, encoded, many_scans
from tests.serve.test_process import address, start

HANGS = (  # a decoder without its limits
    "import kappaplace.serve.decoders as d; d.MOST_SCANS = 10**9; d.CPU_SECONDS = 10**4; "
    "from kappaplace.cli.main import main; main()"
)
SQUARE = Preprocessing(64, "exact")
LONG = 200_000
"""Scans that take minutes."""


@pytest.fixture
def decoders() -> Iterator[Decoders]:
    started = Decoders(Settings(timeout=20.0), count=1)
    yield started
    started.close()


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SCANS", 10**9)
    monkeypatch.setattr(module, "CPU_SECONDS", 10**4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_an_upload_becomes_the_image_of_a_file(kind: str, decoders: Decoders, tmp_path: Path) -> None:
    data = encoded(kind, (300, 200))
    file = tmp_path / "image"
    file.write_bytes(data)
    decoded = decoders.submit(data, SQUARE).result()
    assert decoded.format == kind
    np.testing.assert_array_equal(np.asarray(decoded.image), np.asarray(SQUARE.image(file)))


@given(data=st.binary(max_size=300))
def test_counting_scans_ends_for_any_bytes(data: bytes) -> None:
    assert 0 <= count_scans(b"\xff\xd8" + data, 5) <= 6
    assert count_scans(b"RIFF" + data, 5) == 0


def test_scans_are_counted_by_markers() -> None:
    assert count_scans(encoded("JPEG"), 64) == 1
    assert count_scans(encoded("JPEG", progressive=True), 64) == 10  # the script of libjpeg for colors
    assert count_scans(many_scans(40), 64) == 50
    assert count_scans(many_scans(4000), 64) == 65
    thumbnail = encoded("JPEG", progressive=True)  # in a segment, whose content is skipped
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = encoded("JPEG")
    assert count_scans(whole[:2] + segment * 20 + whole[2:], 64) == 1
    assert count_scans(encoded("PNG"), 64) == 0


def test_too_many_scans_are_refused_before_decoding(serve: Serve) -> None:
    client, data = serve(), many_scans(5000, 2048)
    assert len(data) < 1 << 20
    begin = time.process_time()
    answer = client.post("/v1/localize", files={"image": data})
    assert answer.status_code == 422
    assert "more than 64 scans" in answer.json()["error"]
    assert client.post("/v1/localize", files={"image": many_scans(20)}).status_code == 200
    assert time.process_time() - begin < 10


def test_the_limit_of_processor_time_ends_the_process(
    decoders: Decoders, unlimited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_SECONDS", 0)
    with pytest.raises(ApiError, match="seconds to decode") as refused:
        decoders.decode(many_scans(LONG), SQUARE)
    assert refused.value.status == 422
    monkeypatch.undo()
    assert decoders.decode(encoded(), SQUARE).image.size == (64, 64)


def test_the_time_out_frees_the_process(serve: Serve, unlimited: None) -> None:
    """Images that would occupy their processes for minutes, on two cores all processes."""
    client, data = serve(timeout=2.0), many_scans(LONG)
    images = [("image", data) for _ in range(min(os.cpu_count() or 1, 2) + 1)]
    answer = client.post("/v1/localize/batch", files=images)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    for _ in range(10):  # a process starts in a few tenths of a second; with much other work, later
        answer = client.post("/v1/localize", files={"image": encoded()})
        if answer.status_code == 200:
            break
    assert answer.status_code == 200


def test_closing_ends_processes_that_decode(unlimited: None) -> None:
    started = Decoders(Settings(timeout=300.0), count=1)
    pending = started.submit(many_scans(LONG), SQUARE)
    end = time.monotonic() + 20
    while not started._busy:
        assert time.monotonic() < end
        time.sleep(0.01)
    (worker,) = started._busy
    started.close()
    assert worker.process.poll() is not None
    with pytest.raises(ApiError) as refused:
        pending.result(timeout=5)
    assert refused.value.status == 503
    with pytest.raises(ApiError):
        started.decode(encoded(), SQUARE)


def test_a_process_that_ends_by_itself_is_replaced(decoders: Decoders) -> None:
    decoders.decode(encoded(), SQUARE)
    (worker,) = decoders._idle
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    with pytest.raises(ApiError) as refused:
        decoders.decode(encoded(), SQUARE)
    assert refused.value.status == 422
    assert decoders.decode(encoded(), SQUARE).format == "PNG"


def test_an_image_whose_sides_differ_too_much(decoders: Decoders) -> None:
    buffer = io.BytesIO()
    Image.new("L", (1, 40_000)).save(buffer, "PNG")
    with pytest.raises(ApiError, match="too narrow"):
        decoders.decode(buffer.getvalue(), Preprocessing(512, "shorter"))


def test_sigterm_ends_while_a_decoder_hangs(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.serve.test_process.COMMAND", [sys.executable, "-c", HANGS, "serve"])
    process = start(str(served_folder / "town.map"), "--port", "0", "--set", "timeout=2")
    try:
        url = address(process)
        image = many_scans(LONG)

        def ask() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked(url, "/v1/localize", image)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=2 + 5 + 20)  # the time limit, the grace period, a busy machine
        for thread in asking:
            thread.join(30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_an_appended_image_is_decoded_there_too(serve: Serve, served_folder: Path, tmp_path: Path) -> None:
    import shutil

    from tests.serve.conftest import WRITE

    folder = tmp_path / "copy.map"
    shutil.copytree(served_folder / "town.map", folder)
    client = serve({"town": PlaceMap.open(folder)}, write_token=WRITE, read_token=READ)
    answer = client.post(
        "/v1/references", files={"image": many_scans(300)}, headers={"Authorization": f"Bearer {WRITE}"}
    )
    assert answer.status_code == 422
    assert "scans" in answer.json()["error"]
