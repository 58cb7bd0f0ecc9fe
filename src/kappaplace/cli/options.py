"""Options of a command from an option record: one place states names, defaults and help."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from kappaplace.records import Help, Hint

Device = Annotated[
    str, typer.Option(help="Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu.")
]
BatchSize = Annotated[int, typer.Option(help="Number of images to embed at once.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
MapFolder = Annotated[
    Path, typer.Argument(metavar="MAP", help="Map folder, written by `kappaplace map build`.")
]
MapModel = Annotated[str, typer.Option(help="Model of the map, if it has moved: a folder, a file or a name.")]
Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the Hugging Face hub.")]
Public = Annotated[bool, typer.Option("--public", help="Let everybody see a new repository; else private.")]
Out = Annotated[Path, typer.Option(help="The folder to make.")]
Revision = Annotated[str, typer.Option(help="A branch, tag or commit; without it the newest.")]
USAGE: type[Exception] = typer.BadParameter.__bases__[0]
"""Errors of the command line: click's class, or that of the copy inside newer versions of typer."""
Function: TypeAlias = Callable[..., None]


class _Command(TyperCommand):
    """Names what `--rerank` was in earlier versions: a flag."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except USAGE as error:
            said = str(getattr(error, "format_message", error.__str__)())
            if "--rerank" not in said:
                raise
            raise typer.BadParameter(
                f"{said.rstrip('.')}: it is the number of matches to compare. To order matches by "
                "probability, use --order probability."
            ) from None


def command(
    app: typer.Typer, name: str | None = None, *, panel: str | None = None, hidden: bool = False
) -> Callable[[Function], Function]:
    """Register a command as ``app.command`` does; parameters that are option records become options.

    Every field of a record becomes one option: its name, its type and its default are those of the field, and
    its help is that of `kappaplace.records.Help`. A ``Literal`` lists its values. An option whose default is
    None or empty text is absent unless the user passes it.

    Args:
        app: Where the command belongs.
        name: Name of the command. Default: the name of the function.
        panel: Heading of ``--help`` under which the command is listed.
        hidden: Omit the command from ``--help``.
    """

    def register(function: Function) -> Function:
        hints = get_type_hints(function, include_extras=True)
        records = {key: hint for key, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in records:
                parameters += _options(records[parameter.name])
            else:
                parameters.append(parameter.replace(annotation=hints[parameter.name]))

        @wraps(function)
        def run(**values: object) -> None:
            built = {
                key: record(**{field.name: values.pop(field.name) for field in _shown(record)})
                for key, record in records.items()
            }
            function(**values, **built)

        required = inspect.Parameter.empty
        parameters.sort(key=lambda each: each.default is not required)
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, cls=_Command, rich_help_panel=panel, hidden=hidden)(run)
        return function

    return register


class _Names(dict[str, object]):
    """Names of a module; types that are imported for type checking alone are `object`."""

    def __missing__(self, name: str) -> object:
        return getattr(builtins, name, object)


def _hints(record: type) -> dict[str, Hint]:
    names = _Names(vars(sys.modules[record.__module__]))
    return get_type_hints(record, localns=names, include_extras=True)


def _shown(record: type) -> list[Field[object]]:
    """Return the fields that have a help text: the others are for Python alone."""
    hints = _hints(record)
    return [field for field in fields(record) if _help(hints[field.name]) is not None]


def _help(hint: Hint) -> Help | None:
    extras = getattr(hint, "__metadata__", ())  # of Annotated
    return next((each for each in extras if isinstance(each, Help)), None)


def _options(record: type) -> list[inspect.Parameter]:
    hints = _hints(record)
    return [_option(field, hints[field.name]) for field in _shown(record)]


def _option(field: Field[object], hint: Hint) -> inspect.Parameter:
    text = _help(hint)
    assert text is not None
    option = typer.Option(*text.flags, help=text.text)
    missing = field.default is MISSING and field.default_factory is MISSING
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if missing else default,
        annotation=Annotated[get_args(hint)[0], option],
    )
