"""Throughput and latency of the service, as ratios to calls of the map in the process.

    python benchmarks/serve_load.py                   # 32 clients, 320 requests, an untrained ResNet-18
    python benchmarks/serve_load.py --model runs/pt/model --csv results/serve_load.csv

One run measures on the same JPEG files: `PlaceMap.localize` in batches, `PlaceMap.localize` one by one, and a
service in its own process on loopback, with batches across clients and without (--batch-size 1). Every answer
over HTTP is compared with the direct one: same best match, same similarities. Clients and service share the
cores.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.table import PlaceImages
from kappaplace.maps import Localization, PlaceMap
from kappaplace.maps.tune.self_calibrate import self_calibrate_map
from kappaplace.models.place_model import PlaceModel
from kappaplace_city import SyntheticCity
from record import Option, log_row, parse_options, timed

K = 5


def main() -> None:
    options = parse_options(
        __doc__,
        clients=32,
        requests=320,
        side=Option(480, help="longer side of the JPEG files in pixels"),
        model=Option("", help="name or folder; default: an untrained ResNet-18"),
        csv=Path,
    )
    with tempfile.TemporaryDirectory() as folder:
        place_map, queries = _town(Path(folder), options.model, options.side)
        queries_sent = [queries[i % len(queries)] for i in range(options.requests)]
        direct = place_map.localize(queries, K)
        expected = [direct[i % len(queries)] for i in range(options.requests)]
        place_map.localize(queries_sent[:64], K)
        bulk = options.requests / timed(lambda: place_map.localize(queries_sent, K))[1]
        single = [timed(lambda data=data: place_map.localize(data, K))[1] for data in queries_sent[:100]]
        batched = _service(place_map, queries_sent, expected, options.clients)
        alone = _service(
            place_map, queries_sent, expected, options.clients, "--batch-size", "1", "--window", "0"
        )
    bare = float(np.percentile(single, 99))
    row: dict[str, Any] = {
        "clients": options.clients,
        "requests": options.requests,
        "model": options.model or "resnet18 untrained, 160 px",
        "threads": torch.get_num_threads(),
        "in_process_per_s": bulk,
        "one_by_one_per_s": 1 / float(np.mean(single)),
        "service_per_s": batched["rate"],
        "unbatched_per_s": alone["rate"],
        "service_to_in_process": batched["rate"] / bulk,
        "batched_to_unbatched": batched["rate"] / alone["rate"],
        "p99_to_bare_call": batched["p99"] / bare,
        "p99_one_client_to_bare_call": batched["p99_alone"] / bare,
        "wrong_answers": batched["wrong"] + alone["wrong"],
        "lost_answers": batched["lost"] + alone["lost"],
    }
    log_row(options.csv, row)
    if row["wrong_answers"] or row["lost_answers"]:
        sys.exit("Some answers were lost or mixed up.")


def _town(folder: Path, model: str, side: int) -> tuple[PlaceMap, list[bytes]]:
    """Build a calibrated map of a synthetic district, and queries as JPEG files in memory."""
    torch.manual_seed(0)
    views = SyntheticCity(0, (1, 1)).views("val", spacing=20.0, queries=32, query_strength=0.3, seed=0)
    size = (side * 3 // 4, side)
    files = []
    for i, image in enumerate(views.render(size)):
        files.append(folder / f"{i:04d}.jpg")
        Image.fromarray(np.asarray(image)).save(files[-1], quality=90)
    table = PlaceImages.create(
        [file.name for file in files],
        views.positions,
        heading=views.heading,
        is_query=views.is_query,
        root=folder,
        frame="EPSG:32610",
    )
    untrained = PlaceModel.create("resnet18", dim=256, preprocessing=Preprocessing(160, "exact")).eval()
    place_map = PlaceMap.build(table, folder / "town.map", model or untrained)
    self_calibrate_map(place_map, queries=30)
    return place_map, [Path(path).read_bytes() for path in table.image_paths(table.query_rows)]


def _service(
    place_map: PlaceMap,
    queries_sent: list[bytes],
    expected: list[Localization],
    clients: int,
    *arguments: str,
) -> dict[str, float]:
    command = [sys.executable, "-m", "kappaplace", "serve", str(place_map.folder), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if "Open http" in line), "")
        match = re.search(r"http://\S+", line)
        if match is None:
            sys.exit("The service did not start.")
        address = urlsplit(match[0])
        assert address.hostname is not None
        assert address.port is not None
        return asyncio.run(_load(address.hostname, address.port, queries_sent, expected, clients))
    finally:
        process.terminate()
        process.wait(60)


async def _load(
    host: str, port: int, queries_sent: list[bytes], expected: list[Localization], clients: int
) -> dict[str, float]:
    waiting = list(range(len(queries_sent)))[::-1]
    seconds, wrong, lost = [], 0, 0

    async def client(numbers: list[int]) -> list[float]:
        nonlocal wrong, lost
        took = []
        reader, writer = await asyncio.open_connection(host, port)
        while numbers:
            i = numbers.pop()
            start = time.perf_counter()
            status, answer = await _post(reader, writer, queries_sent[i])
            took.append(time.perf_counter() - start)
            lost += status != 200
            wrong += status == 200 and not _same(answer, expected[i])
        writer.close()
        return took

    await client(list(range(16)))  # warm
    alone = await client(list(range(min(100, len(queries_sent))))[::-1])
    start = time.perf_counter()
    for took in await asyncio.gather(*(client(waiting) for _ in range(clients))):
        seconds += took
    rate = len(queries_sent) / (time.perf_counter() - start)
    lost += len(queries_sent) - len(seconds)
    return {
        "rate": rate,
        "p99": float(np.percentile(seconds, 99)),
        "p99_alone": float(np.percentile(alone, 99)),
        "wrong": wrong,
        "lost": lost,
    }


async def _post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> tuple[int, dict[str, Any]]:
    head = f"POST /v1/localize?k={K} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    head_text = io.StringIO((await reader.readuntil(b"\r\n\r\n")).decode())
    status, length = int(head_text.readline().split()[1]), 0
    for line in head_text:
        name, _, value = line.partition(":")
        length = int(value) if name.lower() == "content-length" else length
    return status, json.loads(await reader.readexactly(length))


def _same(answer: dict[str, Any], direct: Localization) -> bool:
    """Compare two answers; batches differ from single images in the last digits, so ties may swap."""
    close = np.allclose(
        [m["similarity"] for m in answer["matches"]], [m.similarity for m in direct.matches], atol=1e-4
    )
    return bool(close) and answer["matches"][0]["name"] == direct.matches[0].name


if __name__ == "__main__":
    main()
