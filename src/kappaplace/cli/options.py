"""Command-line options from option records, so that names, defaults and help are defined once."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from kappaplace.checks import choice, within
from kappaplace.errors import KappaPlaceError
from kappaplace.records import Help, Hidden, Hint, Setting

if TYPE_CHECKING:
    from kappaplace.maps import PlaceMap
    from kappaplace.retrieval import EngineOptions

_DEVICE = "Device: cpu, cuda, cuda:1 or mps. Default: the first GPU, or cpu."
_BATCH_SIZE = "Number of images to embed at once."
Device = Annotated[str, typer.Option(help=_DEVICE)]
BatchSize = Annotated[int, typer.Option(help=_BATCH_SIZE)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
MapFolder = Annotated[
    Path, typer.Argument(metavar="MAP", help="Map folder, written by `kappaplace map build`.")
]
Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hugging Face Hub.")]
Public = Annotated[bool, typer.Option("--public", help="Create the repository as public. Default: private.")]
Out = Annotated[Path, typer.Option(help="Folder to create.")]
Revision = Annotated[str, typer.Option(help="Branch, tag or commit. Default: the latest commit.")]
USAGE: type[Exception] = typer.BadParameter.__bases__[0]
"""Errors of the command line: click's class, or that of the copy inside newer versions of typer."""
Function: TypeAlias = Callable[..., None]


@dataclass(frozen=True)
class MapAccess:
    """Model and device with which a map is opened."""

    model: Annotated[str, Help("Model of the map, if it has moved: a folder, a file or a name.")] = ""
    device: Annotated[str, Help(_DEVICE)] = ""

    def open(self, place_map: Path, engine: str = "auto", options: EngineOptions | None = None) -> PlaceMap:
        """Return the open map.

        Args:
            place_map: Map folder.
            engine: Search engine: auto, exact, ivf-pq, milvus or postgres.
            options: Options of the search engine.

        Returns:
            The open map.
        """
        from kappaplace.maps import PlaceMap

        return PlaceMap.open(
            place_map, self.model or None, device=self.device or None, engine=engine, engine_options=options
        )


@dataclass(frozen=True)
class EncoderOptions:
    """Model, device and batch size with which images are embedded."""

    model: Annotated[str, Help("Model: a folder, weights file or name. Default: the pretrained model.")] = ""
    device: Annotated[str, Help(_DEVICE)] = ""
    batch_size: Annotated[int, Help(_BATCH_SIZE)] = 32


@dataclass(frozen=True)
class MapEncoder(MapAccess):
    """Model, device and batch size with which queries of a map are embedded."""

    batch_size: Annotated[int, Help(_BATCH_SIZE)] = 32

    def __post_init__(self) -> None:
        within(self.batch_size, "--batch-size", 1)


class VerbGroup(TyperGroup):
    """A group of commands that accepts earlier spellings without a command, such as `models NAME`."""

    def with_command(self, words: list[str]) -> list[str]:
        """Return the arguments with the command in front."""
        raise NotImplementedError

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command if it is missing, except for shell completion, which lists the commands."""
        if not ctx.resilient_parsing and args[:1] != ["--help"] and args[:1] != ["-h"]:
            args = self.with_command(args)
        return super().parse_args(ctx, args)


class _Command(TyperCommand):
    """Command that explains `--rerank` without a number, which was a flag in earlier versions."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except USAGE as error:
            message = str(getattr(error, "format_message", error.__str__)())
            if "--rerank" not in message:
                raise
            raise typer.BadParameter(
                f"{message.rstrip('.')}. --rerank is the number of matches to compare; to order matches by "
                "probability, use --order probability."
            ) from None


def command(
    app: typer.Typer, name: str | None = None, *, panel: str | None = None, hidden: bool = False
) -> Callable[[Function], Function]:
    """Register a command as ``app.command`` does; parameters that are option records become options.

    Every field of a record becomes one option with the name, type and default of the field; its help text
    is its annotation `kappaplace.records.Help`. A ``Literal`` lists its values. Fields with a `Setting` share
    the option ``--set``.

    Args:
        app: Program or group that the command belongs to.
        name: Name of the command. Default: the name of the function.
        panel: Heading of ``--help`` under which the command is listed.
        hidden: Omit the command from ``--help``.

    Returns:
        A decorator, which returns the function unchanged.
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
        settings = _settings(records.values())
        if settings:
            parameters.append(_set_option(settings))

        @wraps(function)
        def run(**values: object) -> None:
            values |= _changes(values.pop(_SET, None) or (), settings)
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
    """Names of a module; types that are imported for type checking only are `object`."""

    def __missing__(self, name: str) -> object:
        return getattr(builtins, name, object)


def _hints(record: type) -> dict[str, Hint]:
    names = _Names()
    for base in reversed(record.__mro__):
        names.update(vars(sys.modules[base.__module__]))
    return get_type_hints(record, localns=names, include_extras=True)


def _shown(record: type) -> list[Field[object]]:
    """Return the fields that have a help text: the others are only for Python."""
    hints = _hints(record)
    return [field for field in fields(record) if _help(hints[field.name]) is not None]


def _help(hint: Hint) -> Help | None:
    extras = getattr(hint, "__metadata__", ())  # the extra arguments of Annotated
    return next((each for each in extras if isinstance(each, Help)), None)


def _options(record: type) -> list[inspect.Parameter]:
    hints = _hints(record)
    return [_option(field, hints[field.name]) for field in _shown(record)]


def _option(field: Field[object], hint: Hint) -> inspect.Parameter:
    text = _help(hint)
    assert text is not None
    option = typer.Option(*text.flags, help=text.text, hidden=isinstance(text, Hidden))
    missing = field.default is MISSING and field.default_factory is MISSING
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if missing else default,
        annotation=Annotated[get_args(hint)[0], option],
    )


_SET = "settings"
"""Parameter of the option ``--set``."""
_Settings: TypeAlias = dict[str, tuple[Field[object], Hint]]


def _settings(records: Iterable[type]) -> _Settings:
    """Return the fields that ``--set`` changes, by their names on the command line."""
    return {
        field.name.replace("_", "-"): (field, hint)
        for record in records
        for field, hint in ((field, _hints(record)[field.name]) for field in _shown(record))
        if isinstance(_help(hint), Setting)
    }


def _set_option(settings: _Settings) -> inspect.Parameter:
    lines = []
    for name, (field, hint) in settings.items():
        text = _help(hint)
        assert text is not None
        value = f"{field.default:g}" if isinstance(field.default, float) else field.default
        lines.append(f"\n- `{name}`: {text.text}" + ("" if value in (None, "") else f" Default: {value}."))
    help_ = "Change one setting, as NAME=VALUE; repeatable." + "".join(lines)
    option = typer.Option("--set", "-s", metavar="NAME=VALUE", help=help_)
    annotation = Annotated[list[str] | None, option]
    return inspect.Parameter(_SET, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _changes(pairs: object, settings: _Settings) -> dict[str, object]:
    """Return the values that ``--set`` specifies, by the names of their fields."""
    changes: dict[str, object] = {}
    assert isinstance(pairs, Sequence)
    for pair in pairs:
        name, _, text = str(pair).partition("=")
        if name not in settings:
            raise KappaPlaceError(f'Unknown setting "{name}". Choose from: {", ".join(settings)}.')
        field, hint = settings[name]
        kind = get_args(hint)[0]
        if NoneType in get_args(kind):
            (kind,) = set(get_args(kind)) - {NoneType}
        if get_args(kind):  # the names of a Literal
            choice(text, kind, f"value of --set {name}")
            changes[field.name] = text
            continue
        try:
            changes[field.name] = text if kind is str else int(text) if kind is int else float(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise KappaPlaceError(f'--set {name} must be {number}, got "{text}".') from None
    return changes
