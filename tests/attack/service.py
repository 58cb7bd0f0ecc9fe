"""Attacks on a running service: silent connections, half headers, names of the host, expensive images.

python -m tests.attack.service [CONNECTIONS] [SEED]
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.maps import PlaceMap
from kappaplace.models.place_model import PlaceModel
from tests.attack import Row
from tests.serve.conftest import asked, encoded, many_scans
from tests.serve.test_connections import flood
from tests.serve.test_fuzz import malformed

HOSTS = (
    *(
        "evil.example",
        "[localhost].evil.com",
        "localhost:80@evil.com",
        "localhost.evil.com",
        "127.0.0.1.nip.io",
    ),
    *(
        "[::1",
        "[::1].evil.com",
        "localhost:",
        "localhost:80:80",
        "localhost/evil.com",
        "::1",
        "localhost#evil",
    ),
)
ANSWERS = (200, 400, 404, 413, 415, 422, 429, 503)
"""Statuses that a client may get; 503 comes with a time to retry."""


@contextlib.contextmanager
def service(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a small map in a process of its own."""
    import torch

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    (folder / "My Photos").mkdir(parents=True)
    for i in range(8):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "My Photos" / f"{i}.png")
    model = PlaceModel.create("resnet_tiny", dim=16, preprocessing=Preprocessing(32, "exact")).eval()
    PlaceMap.build(folder / "My Photos", folder / "town.map", model)
    process = subprocess.Popen(
        [*(sys.executable, "-m", "kappaplace", "serve"), str(folder / "town.map"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        url = next(match[1] for line in process.stdout if (match := re.search(r"Open (http://\S+) in", line)))
        yield url, process
    finally:
        process.kill()
        process.wait()


def silent(url: str, count: int) -> int:
    """Open connections that send nothing or half a header; 1 if the service then keeps anyone out."""
    links = flood(url, count)
    try:
        statuses = [asked(url, path) for path in ("/healthz", "/readyz", "/v1/maps")]
        statuses.append(asked(url, "/v1/localize", encoded()))
    except (OSError, http.client.HTTPException):
        return 1
    finally:
        for link in links:
            link.close()
    return int(statuses != [200] * 4)


def hosts(url: str) -> int:
    """Send other names of the host; number of those that are accepted."""
    accepted = 0
    for host in HOSTS:
        link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        link.putrequest("GET", "/v1/maps", skip_host=True)
        link.putheader("Host", host)
        link.endheaders()
        accepted += link.getresponse().status not in (400, 421)
        link.close()
    return accepted


def bombs(url: str, tries: int, seed: int) -> int:
    """Send images that are damaged, or expensive to decode; number of wrong answers."""
    chance, wrong = random.Random(seed), 0
    images = [*malformed(max(tries, 20), seed), *(many_scans(n, 2048) for n in (100, 1000, 10_000))]
    for image in chance.sample(images, min(tries, len(images))):
        link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        try:
            link.request("POST", "/v1/localize?k=1", image, {"Content-Type": "image/png"})
            answer = link.getresponse()
            text = answer.read().decode()
            leaks = answer.status != 200 and ("/" in json.loads(text)["error"] or "Traceback" in text)
            wrong += answer.status not in ANSWERS or leaks
        except (OSError, http.client.HTTPException, ValueError):
            wrong += 1
        finally:
            link.close()
    return wrong


def stops(process: subprocess.Popen[str]) -> int:
    """Send SIGTERM; 1 if the process does not end well in time."""
    process.send_signal(signal.SIGTERM)
    try:
        return int(process.wait(60) != 0)
    except subprocess.TimeoutExpired:
        return 1


def run(tries: int, seed: int) -> list[Row]:
    """Attack a service.

    Args:
        tries: Number of connections, and of images.
        seed: Random seed.

    Returns:
        One row per attack.
    """
    rows = []

    def measured(attack: str, count: int, work: object, good: str) -> None:
        begin = time.monotonic()
        bad = work()  # type: ignore[operator]
        rows.append(Row(attack, count, bad, good if not bad else f"{bad} wrong", time.monotonic() - begin))

    with tempfile.TemporaryDirectory() as scratch, service(Path(scratch)) as (url, process):
        measured(
            "service: silent connections and half headers",
            tries,
            lambda: silent(url, tries),
            "health checks and queries answer",
        )
        measured("service: names of the host", len(HOSTS), lambda: hosts(url), "all rejected")
        measured(
            "service: damaged and expensive images",
            min(tries, 300),
            lambda: bombs(url, min(tries, 300), seed),
            "an answer each, no path, no traceback",
        )
        measured("service: SIGTERM afterwards", 1, lambda: stops(process), "ends with status 0")
    return rows


def main(tries: str = "1100", seed: str = "0") -> int:
    rows = run(int(tries), int(seed))
    for row in rows:
        print(row)
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
