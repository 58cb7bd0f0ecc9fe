"""The command line as a user meets it: version, help, one sentence and exit code 2 for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import kappaplace
from kappaplace.cli import main as command_line


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Exit code of ``kappaplace WORDS`` in this process."""
    monkeypatch.setattr(sys, "argv", ["kappaplace", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    return int(stop.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == f"kappaplace {kappaplace.__version__}"


def test_help_has_three_panels_and_no_alias(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    panels = [text.index(f" {panel} ─") for panel in (command_line.USE, "Research", "Tools")]
    assert panels == sorted(panels)
    assert not [name for name in command_line.ALIASES if f"│ {name} " in text]


@pytest.mark.parametrize("name", sorted(command_line.ALIASES))
def test_an_alias_is_the_command_of_its_group(name: str) -> None:
    program = typer.main.get_command(command_line.app)
    alias = program.commands[name]
    assert alias.hidden
    assert alias.callback.__wrapped__ in {
        group.commands[name].callback.__wrapped__
        for group in program.commands.values()
        if name in getattr(group, "commands", {})
    }


SHARED = {"model", "device", "batch_size", "as_json", "help", "verbose"}
MOST_OPTIONS = 13


def own_options(command: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every command with the number of its options beside the shared ones."""
    for verb, each in getattr(command, "commands", {}).items():
        yield from own_options(each, f"{name} {verb}".strip())
    if not hasattr(command, "commands") and not command.hidden:
        options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
        yield name, sum(p.name not in SHARED for p in options)


def test_no_command_has_too_many_options() -> None:
    counts = dict(own_options(typer.main.get_command(command_line.app)))
    assert len(counts) > 30
    assert not {name: count for name, count in counts.items() if count > MOST_OPTIONS}


@pytest.mark.parametrize("command", ["demo", "city", "models", "data", "train", "evaluate", "compare"])
def test_every_command_teaches_by_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (command, "import", "--help") if command == "data" else (command, "--help")
    assert run(monkeypatch, *words) == 0
    assert f"kappaplace {command}" in capsys.readouterr().out.replace("\n", " ")


def test_models_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path))
    assert run(monkeypatch, "models", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"resnet50", "efficientnet_lite0"} <= {row["name"] for row in answer["backbones"]}
    cosplace = next(row for row in answer["models"] if row["name"] == "cosplace-resnet50-512")
    assert (cosplace["licence"], cosplace["downloaded"]) == ("MIT", False)


def test_models_as_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "models") == 0
    assert "eigenplaces-resnet50-2048" in capsys.readouterr().out


def test_city_writes_the_public_layout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("city", "--out", tmp_path / "stadt ü", "--size", 16, "--blocks", 1, "--queries", 3, "--json")
    assert run(monkeypatch, *words) == 0
    answer = json.loads(capsys.readouterr().out)
    queries = list((tmp_path / "stadt ü" / "test" / "queries").iterdir())
    assert len(queries) == answer["images"]["test"]["queries"] == 3
    assert all(file.name.startswith("@") and file.name.endswith("@.jpg") for file in queries)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("city", "--size", "1"), "size must be between 4 and 4,096"),
        (("city", "--seed", "-1"), "seed must be 0 or more"),
        (("demo", "--steps", "3"), "Cannot write to the folder"),
        (("data", "check", "no-such-table.parquet"), "no-such-table.parquet"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("in the way")
    out = () if words[0] == "data" else ("--out", tmp_path / "file" / "below")
    assert run(monkeypatch, *words, *out) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert error.startswith("kappaplace: ")
    assert len(error.strip().splitlines()) == 1


def test_ctrl_c_is_a_word_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "app", interrupted)
    assert run(monkeypatch) == 130
    assert capsys.readouterr().err == f"{command_line.STOPPED}\n"


def test_import_brings_no_heavy_module() -> None:
    """What takes time is imported on first use; checked by name, not by clock."""
    code = "import sys, kappaplace; print({'torch', 'numpy', 'matplotlib', 'scipy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_command_line_starts_without_torch() -> None:
    code = "import sys, kappaplace.cli.main; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_every_public_name_resolves() -> None:
    for name in kappaplace.__all__:
        assert getattr(kappaplace, name) is not None
    assert set(kappaplace.__all__) <= set(dir(kappaplace))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kappaplace.nothing
