"""The program `kappaplace`: it parses the command line, calls one function and shows the result."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kappaplace.cli import (
    audit,
    bench,
    data,
    demo,
    doctor,
    evaluate,
    geotag,
    models,
    pair,
    serve,
    slam,
    train,
)
from kappaplace.cli import map as place_map
from kappaplace.cli.options import command
from kappaplace.errors import KappaPlaceError

BAD_INPUT, INTERRUPTED = 2, 130
STOPPED = "kappaplace: interrupted. Completed work is saved; run the same command again to resume."


class _Interruptible(TyperGroup):
    """Group of commands that reports Ctrl-C with one message, because typer's own message differs by
    version."""

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
    help="Visual place recognition with calibrated confidence.\n\nStart with `kappaplace demo`.",
)
USE, RESEARCH, TOOLS = "Use", "Research", "Tools"
app.command("demo", rich_help_panel=USE)(demo.demo)
app.add_typer(data.app, name="data", rich_help_panel=USE)
app.add_typer(place_map.app, name="map", rich_help_panel=USE)
command(app, panel=USE)(serve.serve)
app.add_typer(slam.app, name="slam", rich_help_panel=USE)
command(app, panel=USE)(geotag.geotag)
command(app, panel=USE)(pair.pair)
command(app, panel=USE)(audit.audit)
command(app, panel=RESEARCH)(train.train)
app.add_typer(evaluate.app, name="evaluate", rich_help_panel=RESEARCH)
command(app, panel=RESEARCH)(evaluate.compare)
app.add_typer(models.app, name="models", rich_help_panel=TOOLS)
app.command("doctor", rich_help_panel=TOOLS)(doctor.doctor)
app.command("bench", rich_help_panel=TOOLS)(bench.bench)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Options of ``mallopt`` in the GNU C library."""
ALIASES = {"localize": place_map.app, "calibrate": place_map.app, "city": data.app, "export": models.app}
"""Commands that are also available at the top, with their group."""


def _alias(name: str, group: typer.Typer) -> None:
    """Register a command of a group at the top as well, but omit it from ``--help``."""
    for each in group.registered_commands:
        if each.callback is not None and name == (each.name or each.callback.__name__):
            app.command(name, cls=each.cls, hidden=True)(each.callback)


for _name, _group in ALIASES.items():
    _alias(_name, _group)


def _show_version(version: bool) -> None:
    if version:
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


def _keep_memory() -> None:
    """Let the process keep memory that it frees.

    Batches of images have the same size. If the C library returns their memory to the system after each batch
    and requests it again, this takes half of the processor time of embedding.
    """
    with contextlib.suppress(OSError, AttributeError):  # not the GNU C library
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 1 << 26)):
            mallopt(option, value)


def main() -> None:
    """Run a command. Bad input is one message on stderr and exit code 2, never a traceback."""
    _keep_memory()
    try:
        app()
    except KappaPlaceError as error:
        typer.echo(f"kappaplace: {error}", err=True)
        sys.exit(BAD_INPUT)
    except MemoryError:
        typer.echo(
            "kappaplace: Out of memory. Pass a smaller --batch-size, or fewer images at a time.", err=True
        )
        sys.exit(BAD_INPUT)
    except OSError as error:  # errors that no caller has explained
        if error.errno is None:
            raise
        file = f" ({error.filename})" if error.filename else ""
        typer.echo(f"kappaplace: {os.strerror(error.errno)}{file}.", err=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo(STOPPED, err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
