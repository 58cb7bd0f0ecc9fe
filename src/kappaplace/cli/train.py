"""``kappaplace train``: run a recipe on a table of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="One option, section.key=value; repeatable, stronger than --config."),
]


def train(
    recipe: Annotated[str, typer.Argument(help="How to train; without it the recipes are listed.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="Training table made by `kappaplace data import`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the same command goes on in it.")
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="Validation table with queries; without it nothing stops early.")
    ] = None,
    start: Annotated[
        # Not --start: torchrun would take it for an option of its own.
        str,
        typer.Option("--from", help="Model to start from: a folder, a weights file or a name."),
    ] = "",
    config: Annotated[str, typer.Option(help="TOML file with options.")] = "",
    option: _Set = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")] = False,
    show: Annotated[
        bool, typer.Option("--show-settings", help="Print all options as TOML and stop.")
    ] = False,
) -> None:
    """Train an encoder, κ, or both.

    Examples:

        kappaplace train retrieval --data train.parquet --val val.parquet --out runs/base

        kappaplace train kappa-pt --from runs/base/model --data train.parquet --val val.parquet --out runs/pt

        kappaplace train kappa-jt --show-settings > jt.toml

        kappaplace train kappa-jt --config jt.toml --data train.parquet --out runs/jt -s run.precision=bf16

    Several GPUs: `accelerate launch -m kappaplace train …`, or torchrun.
    """
    from kappaplace.training import RECIPES, read_toml, settings_for

    if not recipe and config:
        recipe = str(read_toml(config).get("recipe", ""))
    if not recipe:
        for each in RECIPES.values():
            typer.echo(f"{each.name:<15} {each.about}")
        return
    stated = [f"model.start={start}"] if start else []
    settings = settings_for(recipe, config, [*(option or []), *stated])
    if show:
        typer.echo(settings.to_toml(), nl=False)
        return
    _run(settings, data, out, val, cpu)


def _run(settings: object, data: Path | None, out: Path | None, val: Path | None, cpu: bool) -> None:
    from kappaplace.data import PlaceImages
    from kappaplace.errors import KappaPlaceError
    from kappaplace.training import Settings, TrainingSet, ValidationSet
    from kappaplace.training import train as run

    assert isinstance(settings, Settings)
    if data is None or out is None:
        raise KappaPlaceError("A run needs --data TABLE and --out FOLDER; see `kappaplace train --help`.")
    validation = None if val is None else ValidationSet.from_table(PlaceImages.open(val))
    trained = run(
        settings,
        TrainingSet.from_table(PlaceImages.open(data)),
        out,
        validation,
        device="cpu" if cpu else "",
        say=typer.echo,
    )
    if trained.epochs and trained.main:
        from kappaplace.reports import write_training

        write_training(trained.epochs, trained.folder)
    typer.echo(f"The model is in {trained.folder / 'model'}, the course of the run in training.png.")
