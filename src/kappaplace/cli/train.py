"""`kappaplace train`: run a training recipe on a table of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help

if TYPE_CHECKING:
    from kappaplace.training import Settings


@dataclass(frozen=True)
class RunOptions:
    """Data, output folder and device of a training run."""

    data: Annotated[Path | None, Help("Training table, written by `kappaplace data import`.")] = None
    out: Annotated[Path | None, Help("Output folder. Run the same command again to resume.")] = None
    val: Annotated[
        Path | None, Help("Validation table with queries. Default: no validation and no early stopping.")
    ] = None
    encoder: Annotated[
        str,
        Help(
            "Your own encoder for kappa-pt, linear-head or contrastive-pt, as package.module:function. The "
            "function is executed and returns a torch module or a FrozenEncoder."
        ),
    ] = ""
    cpu: Annotated[bool, Help("Train on the CPU even if a GPU is available.", ("--cpu",))] = False


def train(
    recipe: Annotated[
        str, typer.Argument(help="Training recipe. Omit it to list all recipes.", show_default=False)
    ] = "",
    *,
    options: RunOptions,
    start: Annotated[
        # Not --start: torchrun has an option of that name.
        str,
        typer.Option("--from", help="Model to start from: a folder, a weights file or a name."),
    ] = "",
    preset: Annotated[
        str,
        typer.Option(
            help="Settings of the paper's code: paper, or the label of a table of the paper, such as "
            "tab:sf_final. --config and --set override them."
        ),
    ] = "",
    config: Annotated[str, typer.Option(help="TOML file with settings.")] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="Set one setting, as section.key=value; repeatable. Overrides --config."
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option("--show-settings", help="Print all settings as TOML with comments, without training."),
    ] = False,
) -> None:
    """Train an encoder, a κ head, or both.

    Examples:

        kappaplace train retrieval --data train.parquet --val val.parquet --out runs/base

        kappaplace train kappa-pt --from runs/base/model --data train.parquet --val val.parquet --out runs/pt

        kappaplace train kappa-jt --show-settings > jt.toml

        kappaplace train kappa-jt --config jt.toml --data train.parquet --out runs/jt -s run.precision=bf16

    To use several GPUs, run `accelerate launch -m kappaplace train …` or torchrun.
    """
    from kappaplace.training import RECIPES, read_toml, settings_for

    if not recipe and config:
        recipe = str(read_toml(config).get("recipe", ""))
    if not recipe:
        for each in RECIPES.values():
            typer.echo(f"{each.name:<15} {each.about}")
        return
    start_from = [f"model.start={start}"] if start else []
    settings = settings_for(recipe, config, [*(changes or []), *start_from], peers=preset)
    if show:
        typer.echo(settings.to_toml(comments=True), nl=False)
        return
    _run(settings, options)


def _run(settings: Settings, options: RunOptions) -> None:
    from kappaplace.data import PlaceImages
    from kappaplace.models import FrozenEncoder, load_encoder
    from kappaplace.training import TrainingSet, ValidationSet
    from kappaplace.training import train as run

    if options.data is None or options.out is None:
        raise KappaPlaceError("train needs a table and an output folder. Pass --data TABLE and --out FOLDER.")
    own = load_encoder(options.encoder) if options.encoder else None
    if own is not None and not isinstance(own, FrozenEncoder):
        own = FrozenEncoder(own)
    val = None if options.val is None else ValidationSet.from_table(PlaceImages.open(options.val))
    trained = run(
        settings,
        TrainingSet.from_table(PlaceImages.open(options.data)),
        options.out,
        val,
        model=own,
        device="cpu" if options.cpu else "",
        say=typer.echo,
    )
    if not trained.main:  # with several processes, one of them writes and prints
        return
    curves = ""
    if trained.epochs:
        from kappaplace.reports import write_training

        write_training(trained.epochs, trained.folder)
        curves = "; training curves are in training.png"
    typer.echo(f"Model saved to {trained.folder / 'model'}{curves}.")
