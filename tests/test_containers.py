"""Dockerfile and compose file say only what is there. hadolint reads them, too, in `make test-all`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from kappaplace.cli.main import app

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_everything_that_is_copied_is_there_and_sent() -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for name in " ".join(copies).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in sent, name


def test_extras_are_ours() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (chosen,) = set(re.findall(r"'\.\[(.+?)\]'", DOCKERFILE))
    for extra in chosen.split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_it_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert "root" not in users
    assert "0" not in users


@pytest.mark.parametrize("name", ["serve", "serve-gpu"])
def test_services(name: str) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"][name]
    assert re.search(rf"^FROM \S+ AS {service['build']['target']}$", DOCKERFILE, re.MULTILINE)
    verb, *words = service["command"]
    parameters = {parameter.name for parameter in get_command(app).commands[verb].params}
    options = [word for word in words if word.startswith("--")]
    assert options
    for option in options:
        assert option.removeprefix("--").replace("-", "_") in parameters
    port = words[words.index("--port") + 1]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"EXPOSE {port}" in DOCKERFILE
    assert f"127.0.0.1:{port}/readyz" in DOCKERFILE
    assert service["read_only"]
    assert all(
        volume.split(":")[0] in compose["volumes"] or volume.endswith(":ro") for volume in service["volumes"]
    )


def test_the_workflow_calls_targets_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for step in steps for word in re.findall(r"^make (\S+)", step)]
    assert {"test", "docs"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_issue_forms_are_complete() -> None:
    for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.name != "config.yml":
            assert form["name"]
            assert form["description"]
            assert all(part["type"] in ("textarea", "checkboxes", "markdown") for part in form["body"])
