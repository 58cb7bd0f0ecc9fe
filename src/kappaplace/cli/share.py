"""``push`` and ``pull`` of models and maps: the same options, the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Repo = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A repository of the Hugging Face hub.")]
Public = Annotated[bool, typer.Option("--public", help="Let everybody see a new repository; else private.")]
Out = Annotated[Path, typer.Option(help="The folder to make.")]
Revision = Annotated[str, typer.Option(help="A branch, tag or commit; without it the newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def show_push(push: Callable[..., str], folder: Path, repo: str, public: bool, as_json: bool) -> None:
    """Upload and say where it is now."""
    address = push(folder, repo, public=public)
    typer.echo(json.dumps({"repository": repo, "address": address}) if as_json else f"Uploaded to {address}.")


def show_pull(pull: Callable[..., Path], repo: str, out: Path, revision: str, as_json: bool) -> None:
    """Download and say where it lies."""
    folder = pull(repo, out, revision=revision)
    said = {"repository": repo, "folder": str(folder)}
    typer.echo(json.dumps(said) if as_json else f"Downloaded to {folder}, checksums compared.")
