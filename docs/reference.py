"""Pages that mkdocs generates: the command reference from the command tree, one API page per package.

mkdocs loads this module as a hook. Nothing is written to the repository, so the pages cannot become outdated.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import kappaplace
import kappaplace_city
from kappaplace.cli.main import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PACKAGES = [path.parent.name for path in sorted(Path(kappaplace.__file__).parent.glob("*/__init__.py"))]
"""Packages of `kappaplace`; `kappaplace.cli` exports nothing and has no page."""
MODULES = {
    "kappaplace.types": ["Embeddings", "Matches"],
    "kappaplace.errors": ["KappaPlaceError", "MissingExtra"],
    "kappaplace.client": ["Client", "ServiceError"],
    "kappaplace.sharing": ["push_model", "pull_model", "push_map", "pull_map"],
    "kappaplace_city": list(kappaplace_city.__all__),
}
"""Public names of modules that are not packages of `kappaplace`; they share one page."""
COMMANDS_INTRO = """\
# Command line

Every command and option. `kappaplace COMMAND --help` prints the same text. Each command ends with
one of these exit codes:

| code | meaning |
|---|---|
| 0 | success |
| 1 | the command ran and found a problem, for example `map verify`, `data check` or `doctor` |
| 2 | bad input; one message on standard error tells you what to do, and completed work is kept |
| 130 | interrupted with Ctrl-C; run the same command again to resume |
"""
API_NEXT = "\n**Next:** [the names of `kappaplace` itself](../api.md)\n"


def commands_page() -> str:
    """Return the command reference as Markdown."""
    root: Any = typer.main.get_command(app)
    parts = [COMMANDS_INTRO]
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panels.setdefault(str(getattr(command, "rich_help_panel", "")), []).append((name, command))
    for panel, commands in panels.items():
        parts.append(f"## {panel}\n")
        for name, command in commands:
            parts += [_section(path, leaf) for path, leaf in leaves(f"kappaplace {name}", command)]
    parts.append("**Next:** [Files, settings and environment variables](files.md)\n")
    return "\n".join(parts)


def leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every visible command below a command, with its full name."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        if not each.hidden:
            yield from leaves(f"{path} {name}", each)


def _section(path: str, command: Any) -> str:
    lines = [
        f"### {path}\n",
        _help(command.help or ""),
        "",
        "| argument or option | meaning | default |",
        "|---|---|---|",
    ]
    for option in command.params:
        if not getattr(option, "hidden", False):
            lines.append(
                f"| {_names(option)} | {_cell(str(getattr(option, 'help', '') or ''))} | {_default(option)} |"
            )
    return "\n".join([*lines, ""])


def _help(text: str) -> str:
    """Turn the indented examples of a help text into fenced blocks."""
    text = re.sub(r"[\b\f]\n?", "", text)
    examples = r"(?m)(?:^ {4}\S.*\n?)(?:^ {4}.*\n?|^\n(?= {4}))*"
    return re.sub(
        examples,
        lambda match: "```bash\n" + re.sub(r"(?m)^ {4}", "", match[0]).rstrip() + "\n```\n",
        text + "\n",
    ).rstrip()


def _names(option: Any) -> str:
    if _is_argument(option):
        return f"`{option.metavar or option.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names + "".join(f"<br>`{choice}`" for choice in _choices(option))


def _is_argument(option: Any) -> bool:
    return not option.opts[0].startswith("-")


def _choices(option: Any) -> list[str]:
    """Return the values of a closed set, which typer stores as an enum or as click choices."""
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return [str(each.value) for each in annotation]
    choices = getattr(getattr(option, "type", None), "choices", None) or []
    return [str(getattr(each, "value", each)) for each in choices]


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    if _is_argument(option) or value in (None, "", (), [], False) or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("\n- ", "<br>• ").split()).replace("|", "\\|")


def package_page(package: str) -> str:
    """Return the API page of a package as Markdown, with one entry per exported name."""
    name = f"kappaplace.{package}"
    return f"# {name}\n\n{_entry(name, import_module(name).__all__)}{API_NEXT}"


def core_page() -> str:
    """Return the API page of the modules that are not packages."""
    entries = [_entry(module, names) for module, names in MODULES.items()]
    return "# Types, errors, client, sharing, synthetic city\n\n" + "\n".join(entries) + API_NEXT


def _entry(module: str, names: list[str]) -> str:
    members = "".join(f"        - {name}\n" for name in sorted(names))
    return f"::: {module}\n    options:\n      members:\n{members}"


def pages() -> dict[str, str]:
    """Return the path of each generated page and its Markdown text."""
    generated = {f"api/{package}.md": package_page(package) for package in PACKAGES if package != "cli"}
    return {"commands.md": commands_page(), "api/core.md": core_page(), **generated}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
