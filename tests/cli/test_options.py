"""Option records become options of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from kappaplace.cli.options import command
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, Setting


@dataclass(frozen=True)
class Baking:
    minutes: Annotated[int, Help("Minutes in the oven.")]
    heat: Annotated[float, Help("Degrees.", ("--heat", "--temperature"))] = 180.0
    crust: Annotated[Literal["soft", "crisp"], Help("How the crust is.")] = "soft"
    racks: Annotated[int, Setting("number of racks.")] = 1
    glaze: Annotated[Literal["sugar", "egg"], Setting("coating.")] = "sugar"
    taste: object = None


def ask(*words: str) -> tuple[int, str]:
    app, out = typer.Typer(), []

    @command(app, "bake")
    def bake(cake: Annotated[str, typer.Argument()], options: Baking, loud: bool = False) -> None:
        out.append((cake, options, loud))
        typer.echo(f"{cake} {options.minutes} {options.heat:g} {options.crust} {options.taste} {loud}")
        assert options.racks == int(cake.partition("-")[2] or 1)

    result = CliRunner().invoke(app, list(words))
    if isinstance(result.exception, KappaPlaceError):
        raise result.exception
    return result.exit_code, result.output


def test_fields_become_options_with_defaults() -> None:
    assert ask("plum", "--minutes", "40") == (0, "plum 40 180 soft None False\n")
    assert ask("plum", "--minutes", "40", "--temperature", "99", "--crust", "crisp", "--loud") == (
        0,
        "plum 40 99 crisp None True\n",
    )


def test_a_field_without_a_default_is_required_and_closed_sets_are_listed() -> None:
    code, text = ask("plum")
    assert code == 2
    assert "--minutes" in text
    code, text = ask("--help")
    assert code == 0
    assert "soft|crisp" in text
    assert "Minutes in the oven." in text
    assert "--taste" not in text
    assert ask("plum", "--minutes", "4", "--crust", "burnt")[0] == 2


def test_a_setting_is_listed_under_set_and_has_a_hidden_option() -> None:
    text = " ".join(ask("--help")[1].replace("│", " ").split())
    assert "--racks" not in text
    assert "number of racks. Default: 1." in text
    assert ask("plum", "--minutes", "4", "-s", "glaze=egg")[0] == 0
    for words in (("--set", "racks=3"), ("--racks", "3"), ("--racks", "2", "-s", "racks=3")):
        assert ask("plum-3", "--minutes", "4", *words)[0] == 0
    for change, message in (
        ("rack=3", 'Unknown setting "rack"'),
        ("racks=x", "must be a whole number"),
        ("glaze=jam", "Choose from: sugar, egg"),
    ):
        with pytest.raises(KappaPlaceError, match=message):
            ask("plum", "--minutes", "4", "--set", change)
