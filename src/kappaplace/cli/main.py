"""The command ``kappaplace``: parse, call one function, show."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kappaplace.cli import (
    bench,
    calibrate,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    export,
    localize,
    models,
    serve,
    slam,
    train,
)
from kappaplace.cli import map as place_map
from kappaplace.errors import KappaPlaceError

BAD_INPUT, INTERRUPTED = 2, 130
STOPPED = "kappaplace: stopped. What was finished is kept; the same command goes on from there."


class _Interruptible(TyperGroup):
    """Ctrl-C as a sentence: typer would end without a word, or with one that differs by version."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(STOPPED, err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="kappaplace",
    cls=_Interruptible,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Visual place recognition that knows how sure it is.\n\nStart with `kappaplace demo`.",
)
app.command("demo")(demo.demo)
app.command("city")(data.city)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("bench")(bench.bench)
app.command("localize")(localize.localize)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
app.add_typer(place_map.app, name="map")
app.add_typer(slam.app, name="slam")


def _show_version(wanted: bool) -> None:
    if wanted:
        from kappaplace.version import package_version

        typer.echo(f"kappaplace {package_version()}")
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
    except MemoryError:
        typer.echo("kappaplace: there is not enough memory for this; ask for less at a time.", err=True)
        sys.exit(BAD_INPUT)
    except OSError as error:  # the disk's own words, where nobody nearer had better ones
        if error.errno is None:
            raise
        where = f" ({error.filename})" if error.filename else ""
        typer.echo(f"kappaplace: {os.strerror(error.errno)}{where}.", err=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo(STOPPED, err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
