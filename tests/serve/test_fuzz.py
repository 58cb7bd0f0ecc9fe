"""Hostile images and strange requests: an answer each time, never a server error, and nothing piles up."""

from __future__ import annotations

import gc
import os
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from tests.serve.conftest import assert_problem, encoded
from tests.serve.test_openapi import PATHS

GOOD = ("JPEG", "PNG", "WEBP")


def png_header(width: int, height: int, rest: bytes = b"", depth: int = 8, color: int = 2) -> bytes:
    """A PNG that claims a size and brings what is given, or nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    packed = zlib.compress(rest, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def bomb(side: int) -> bytes:
    """A whole, valid picture in black: a thousandth of its pixels in bytes."""
    return png_header(side, side, bytes(side * (side // 8 + 1)), depth=1, color=0)


def malformed(count: int, seed: int = 0) -> Iterator[bytes]:
    """Truncated, with bytes changed, of the wrong kind, two kinds in one, and claiming absurd sizes."""
    rng = np.random.default_rng(seed)
    whole = [encoded(kind, (96, 64)) for kind in GOOD]
    whole.append(encoded("JPEG", (96, 64), progressive=True))
    other = [encoded(kind, (32, 32)) for kind in ("GIF", "BMP", "TIFF", "PPM", "TGA", "PCX", "ICO")]
    fixed = [
        b"\x00",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"GIF89a<script>alert(1)</script>",
        b"\xff\xd8\xff",
        b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        bytes.fromhex("0000001866747970686569630000000068656963"),
        png_header(2**31 - 1, 2**31 - 1),
        png_header(100_000, 1),
        png_header(0, 0),
        png_header(4000, 4000),
        bomb(8000),  # 64 megapixels: above our limit, below Pillow's
        bomb(20_000),
    ]
    yield from fixed
    for _ in range(count - len(fixed)):
        data = bytearray(whole[rng.integers(len(whole))])
        kind = int(rng.integers(6))
        if kind == 0:
            yield bytes(data[: rng.integers(1, len(data))])
        elif kind == 1:
            for at in rng.integers(0, len(data), int(rng.integers(1, 30))):
                data[at] = rng.integers(256)
            yield bytes(data)
        elif kind == 2:  # sizes and tables stand at the front
            for at in rng.integers(0, min(200, len(data)), 4):
                data[at] = rng.integers(256)
            yield bytes(data)
        elif kind == 3:
            yield other[rng.integers(len(other))] + bytes(data)
        elif kind == 4:  # a second file behind the first, or in its middle
            at = int(rng.integers(len(data)))
            yield bytes(data[:at]) + other[rng.integers(len(other))] + bytes(data[at:])
        else:
            yield rng.bytes(int(rng.integers(1, 2000)))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def throw(client: TestClient, images: Iterator[bytes]) -> dict[int, int]:
    seen: dict[int, int] = {}
    for data in images:
        answer = client.post("/v1/localize?k=1", content=data, headers={"content-type": "image/png"})
        assert answer.status_code in (200, 413, 422), (answer.status_code, answer.text, data[:40])
        if answer.status_code != 200:
            assert_problem(answer)
            assert "Traceback" not in answer.text
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
    return seen


def test_malformed_images_are_told_or_read(client: TestClient) -> None:
    seen = throw(client, malformed(100))
    assert seen[422] > 40  # most cannot be read
    assert seen[200] > 0  # a changed pixel is still a picture


def alive() -> int:
    """Pictures that nobody has let go."""
    gc.collect()
    return sum(isinstance(each, Image.Image) for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_two_thousand_malformed_images_neither_crash_nor_leak(client: TestClient) -> None:
    throw(client, malformed(300, seed=1))  # caches and pools have their size now
    files, memory, pictures = open_files(), resident(), alive()
    tracemalloc.start()
    try:
        seen = throw(client, malformed(2000, seed=2))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(seen.values()) == 2000
    assert open_files() <= files + 3
    assert alive() <= pictures + 3
    assert kept < 2 << 20  # the uploads alone are more than 10 MB
    assert resident() - memory < 64 << 20  # what the decoders take besides, and the bombs made here


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_strange_parameters_never_break_the_service(client: TestClient, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path for path, method in PATHS.items() if method == "get"]))
    strange = st.one_of(
        st.integers().map(str),
        st.floats().map(str),
        st.text(max_size=20),
        st.sampled_from(["1,2,3,4", "nan", "-1"]),
    )
    for name in ("{id}", "{index}"):
        path = path.replace(name, str(data.draw(st.integers(-10, 10**20))))
    names = st.sampled_from(["map", "bbox", "limit", "order", "max_risk", "k", "x"])
    answer = client.get(path, params=data.draw(st.dictionaries(names, strange, max_size=4)))
    assert answer.status_code < 500, (path, answer.text)
    if answer.status_code >= 400:
        assert_problem(answer)
