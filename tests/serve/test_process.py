"""A real server process: address, SIGTERM, bad input, and the client."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from kappaplace import Client, KappaPlaceError
from kappaplace.client import ServiceError
from kappaplace.maps import PlaceMap
from tests.serve.conftest import READ, WRITE

COMMAND = [sys.executable, "-m", "kappaplace", "serve"]


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Open (http://\S+) in", line):
            return found[1]
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


@pytest.fixture(scope="module")
def running(
    served_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    folder = tmp_path_factory.mktemp("process") / "town.map"
    shutil.copytree(served_folder / "town.map", folder)
    process = start(str(folder), "--port", "0", KAPPAPLACE_READ_TOKEN=READ, KAPPAPLACE_WRITE_TOKEN=WRITE)
    yield address(process), process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_the_client_gives_the_answers_of_the_map(
    running: tuple[str, subprocess.Popen[str]], opened: PlaceMap, query_files: list[Path]
) -> None:
    client = Client(running[0], token=READ)
    assert client.ready()
    assert client.maps() == ["town"]
    direct = opened.localize(str(query_files[0]), 4)
    pixels = np.asarray(Image.open(query_files[0]).convert("RGB"))
    for source in (query_files[0], query_files[0].read_bytes(), pixels):
        found = client.localize(source, 4)
        assert type(found) is type(direct)
        assert [m.name for m in found.matches] == [m.name for m in direct.matches]
        assert found.probability == pytest.approx(direct.probability, rel=1e-4)
        assert found.sentence == direct.sentence
        assert found.calibration == direct.calibration
    batch = client.localize_batch(query_files[:3], area=(0.0, 0.0, 1.0), max_risk=0.3)
    assert [answer.matches for answer in batch] == [(), (), ()]
    assert np.isnan(batch[0].uncertainty)
    np.testing.assert_allclose(
        client.embed(query_files[:2]).descriptor,
        opened.embed([*map(str, query_files[:2])]).descriptor,
        atol=1e-5,
    )
    assert client.info()["references"] >= len(opened)
    assert len(client.references(limit=4)) == 4
    assert client.calibration()["calibrated"]


def test_the_client_tells_what_is_wrong(
    running: tuple[str, subprocess.Popen[str]], query_files: list[Path]
) -> None:
    with pytest.raises(ServiceError, match="token") as refused:
        Client(running[0]).maps()
    assert refused.value.status == 401
    client = Client(running[0], token=READ)
    with pytest.raises(ServiceError, match="atlantis"):
        client.localize(query_files[0], map="atlantis")
    with pytest.raises(ServiceError, match="write token"):
        client.append(query_files[0])
    with pytest.raises(KappaPlaceError, match="Cannot read"):
        client.localize("nowhere.jpg")
    with pytest.raises(ServiceError, match="does not answer"):
        Client("http://127.0.0.1:9", timeout=1).maps()
    with pytest.raises(KappaPlaceError, match="http"):
        Client("ftp://x")
    added = Client(running[0], token=WRITE).append(query_files[0], x=1.0, y=2.0)
    assert added["added"]
    assert client.localize(query_files[0], 1).matches[0].name == added["name"]


def test_sigterm_answers_what_was_taken_and_ends_well(
    running: tuple[str, subprocess.Popen[str]], query_files: list[Path]
) -> None:
    """Last of those that share the process: it is gone afterwards."""
    url, process = running
    data = query_files[0].read_bytes()
    taken = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    taken.putrequest("POST", "/v1/localize?k=1")
    for name, value in (("Content-Type", "image/png"), ("Content-Length", len(data))):
        taken.putheader(name, str(value))
    taken.putheader("Authorization", f"Bearer {READ}")
    taken.endheaders(data[:100])
    time.sleep(0.3)  # it is read as far as it goes
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    with pytest.raises(ServiceError) as refused:  # nothing new is taken
        Client(url, token=READ, tries=1).maps()
    assert refused.value.status in (0, 503)
    assert process.poll() is None
    taken.send(data[100:])
    answer = taken.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["matches"]
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_well_and_twice_at_once(served_folder: Path, times: int) -> None:
    process = start(str(served_folder / "town.map"), "--port", "0")
    taken = http.client.HTTPConnection(urlsplit(address(process)).netloc, timeout=20)
    taken.putrequest("POST", "/v1/localize")
    taken.putheader("Content-Type", "image/png")
    taken.putheader("Content-Length", "100")
    taken.endheaders(b"never the whole")
    if times == 1:
        taken.close()
    time.sleep(0.2)
    for _ in range(times):  # the first waits for the request, the second does not
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.map"], "No map at nowhere.map"),
        (["{map}", "{map}"], 'Two maps have the name "town"'),
        (["{map}", "--host", "0.0.0.0"], "without a token"),
        (["{map}", "--token-file", "nowhere"], "cannot be read"),
        (["{map}", "--demo-queries", "nowhere"], "No folder of demo queries"),
        (["{map}", "--port", "{taken}"], "address already in use"),
        (["{map}", "--host", "no.such.host.invalid"], "without a token"),
        (["{map}", "--port", "70000"], "--port must be between 0 and 65,535"),
        (["{map}", "--set", "max-batch=many"], "--set max-batch must be a whole number"),
    ],
)
def test_bad_input_is_one_sentence(served_folder: Path, arguments: list[str], words: str) -> None:
    from typer.testing import CliRunner

    from kappaplace.cli.main import app

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        values = {"map": str(served_folder / "town.map"), "taken": str(taken.getsockname()[1])}
        found = CliRunner().invoke(app, ["serve", *(text.format(**values) for text in arguments)])
    assert isinstance(found.exception, KappaPlaceError), found.output
    assert words in str(found.exception)


def test_log_levels_are_a_closed_set(served_folder: Path) -> None:
    from typer.testing import CliRunner

    from kappaplace.cli.main import app

    arguments = ["serve", str(served_folder / "town.map"), "--log-level", "loud"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "--log-level" in result.output) == (2, True)


@pytest.mark.slow
def test_schemathesis_finds_nothing_to_complain_of(served_folder: Path, tmp_path: Path) -> None:
    """Requests made up from the OpenAPI document, and answers held to it; where schemathesis is installed."""
    command = Path(sys.executable).with_name("schemathesis")
    if not command.exists():
        pytest.skip("schemathesis is not installed")
    folder = tmp_path / "town.map"
    shutil.copytree(served_folder / "town.map", folder)
    process = start(str(folder), "--port", "0", KAPPAPLACE_WRITE_TOKEN=WRITE)
    try:
        checks = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
        asked = subprocess.run(
            [
                *(str(command), "run", f"{address(process)}/openapi.json", "--max-examples", "15"),
                *("--checks", ",".join((*checks, "response_schema_conformance"))),
                *("--header", f"Authorization: Bearer {WRITE}"),
            ],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
        )
        assert asked.returncode == 0, asked.stdout
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    from kappaplace.serve.settings import read_tokens

    file = tmp_path / "tokens"
    file.write_text(f"# fleet\nread {READ}\n\nwrite {WRITE}\n")
    assert read_tokens(file, "A", "B", {"A": "other"}) == {"read_token": READ, "write_token": WRITE}
    assert read_tokens(None, "A", "B", {"A": READ}) == {"read_token": READ, "write_token": ""}
    for text in ("", "admin x", f"read {READ} more"):
        file.write_text(text)
        with pytest.raises(KappaPlaceError) as refused:
            read_tokens(file, "A", "B", {})
        assert READ not in str(refused.value)
