"""``kappaplace map push`` and ``map pull``: maps on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kappaplace.cli.share import Json, Out, Public, Repo, Revision, show_pull, show_push


def push(
    place_map: Annotated[Path, typer.Argument(metavar="MAP", help="A map made by `map build`.")],
    repo: Repo,
    public: Public = False,
    as_json: Json = False,
) -> None:
    """Upload a map, its model too where that is not one that everybody can name; images stay here.

    Positions, names, and thumbnails if the map keeps them, are part of it: think before `--public`.

    Examples:

        kappaplace map push town.map me/town
    """
    from kappaplace.sharing import push_map

    show_push(push_map, place_map, repo, public, as_json)


def pull(repo: Repo, out: Out, revision: Revision = "", as_json: Json = False) -> None:
    """Download a map; it appears when every file has its checksum.

    Examples:

        kappaplace map pull me/town --out town.map
    """
    from kappaplace.sharing import pull_map

    show_pull(pull_map, repo, out, revision, as_json)
