"""The command ``kappaplace``: parse, call one function, show."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kappaplace.cli import (
    calibrate,
    city,
    compare,
    data,
    demo,
    evaluate,
    localize,
    models,
    serve,
    slam,
    train,
)
from kappaplace.cli import map as place_map
from kappaplace.errors import KappaPlaceError

BAD_INPUT, INTERRUPTED = 2, 130

app = typer.Typer(
    name="kappaplace",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Visual place recognition that knows how sure it is.\n\nStart with `kappaplace demo`.",
)
app.command("demo")(demo.demo)
app.command("city")(city.city)
app.command("models")(models.models)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("localize")(localize.localize)
app.command("serve")(serve.serve)
app.add_typer(data.app, name="data")
app.add_typer(place_map.app, name="map")
app.add_typer(slam.app, name="slam")


def _show_version(wanted: bool) -> None:
    if wanted:
        import kappaplace

        typer.echo(f"kappaplace {kappaplace.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command; bad input is one sentence on stderr and exit code 2, never a traceback."""
    try:
        app()
    except KappaPlaceError as error:
        typer.echo(f"kappaplace: {error}", err=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo("kappaplace: stopped.", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
