"""Models and maps on the Hugging Face hub (extra ``hub``).

A repository is an untrusted source. Only files that kappaplace requests by name are downloaded, and every
name is checked before it becomes a path. A download appears in its folder only when it is complete.

An uploaded map contains no paths of your machine. The folders of its images are removed, and a model from a
folder is included. Images are never uploaded.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import new_folder, reason
from kappaplace.maps import FIT_RECORD as FIT
from kappaplace.maps import (
    MANIFEST,
    SEGMENTS,
    Manifest,
    model_of,
    read_manifest,
    verify_folder,
    write_manifest,
)
from kappaplace.models import CALIBRATION, CARD, HUB, PAGE, checked_weights, is_shipped, read_card

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["model", "dataset"]
"""The hub's type of a repository: a model, or a dataset, which contains a map."""
_NOUNS: dict[Kind, str] = {"model": "model", "dataset": "map"}
SUFFIXES = (".json", ".safetensors", ".npy", ".bin", ".md")
"""Suffixes of all files of a model or a map; there are no pickles and no code."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def checked_name(name: str) -> str:
    """Return a relative path; fail for ``..``, absolute paths, hidden files and unknown suffixes.

    >>> checked_name("segments/000000/kappa.npy")
    'segments/000000/kappa.npy'
    """
    plain = all(_PART.fullmatch(part) for part in name.split("/"))
    if not plain or not name.endswith(SUFFIXES):
        raise KappaPlaceError(f"{name!r} is not a file name of a model or a map. It was not downloaded.")
    return name


@dataclass(frozen=True)
class Repository:
    """One repository at one commit, so that all files of a download belong together."""

    name: str
    kind: Kind
    commit: str
    files: frozenset[str]

    @classmethod
    def find(cls, name: str, kind: Kind, revision: str = "") -> Repository:
        """Look up the commit of a revision, and its files.

        Args:
            name: Name of the repository, OWNER/NAME.
            kind: Content of the repository.
            revision: Branch, tag or commit. Default: the latest commit.

        Returns:
            The repository at this commit.
        """
        with _hub_errors(name, kind):
            look_up = _api().model_info if kind == "model" else _api().dataset_info
            info = look_up(name, revision=revision or None)
        return cls(name, kind, str(info.sha), frozenset(each.rfilename for each in info.siblings or ()))

    def fetch(self, name: str, folder: Path) -> Path:
        """Download one file to the same relative path below a folder."""
        if checked_name(name) not in self.files:
            raise KappaPlaceError(
                f"The repository {self.name} is not a {_NOUNS[self.kind]}: it has no {name}. Check the name."
            )
        with _hub_errors(self.name, self.kind):
            file = _api().hf_hub_download(
                self.name, name, repo_type=self.kind, revision=self.commit, local_dir=folder
            )
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes on its downloads
        return Path(file)


def push_files(
    files: Mapping[str, Path], name: str, kind: Kind, *, replaces: tuple[str, ...] = (), public: bool = False
) -> str:
    """Upload files to a repository in one commit; the repository is created if it does not exist.

    Args:
        files: Name in the repository → local file.
        name: Repository, as OWNER/NAME.
        kind: Type of the repository.
        replaces: Patterns of file names. Files of an earlier upload that match a pattern are deleted, unless
            they are uploaded again.
        public: Create the repository as public. Default: private.

    Returns:
        URL of the repository.
    """
    api = _api()
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = [CommitOperationAdd(checked_name(path), str(file)) for path, file in files.items()]
    with _hub_errors(name, kind):
        url = api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
        deletions = [
            CommitOperationDelete(path)
            for path in api.list_repo_files(name, repo_type=kind)
            if path not in files and any(fnmatchcase(path, pattern) for pattern in replaces)
        ]
        message = f"Upload of a {_NOUNS[kind]} by kappaplace"
        api.create_commit(name, [*adds, *deletions], commit_message=message, repo_type=kind)
    return str(url)


def _api() -> HfApi:
    hub = import_extra("huggingface_hub", "The Hugging Face hub", "hub")
    # Read for every call: the client itself reads its environment only once.
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="kappaplace")


@contextmanager
def _hub_errors(name: str, kind: Kind) -> Iterator[None]:
    """Turn every error of the hub's client into a message; its error classes change with releases."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise KappaPlaceError(f"{name!r} is not a repository name. Pass OWNER/NAME.") from None
    except errors.RevisionNotFoundError:
        raise KappaPlaceError(f"The repository {name} has no such revision. Check --revision.") from None
    except errors.RepositoryNotFoundError:
        raise KappaPlaceError(
            f"The hub has no {kind} repository {name}, or it is private. For a private one, log in with "
            "`hf auth login` or set HF_TOKEN."
        ) from None
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise KappaPlaceError(
                f"The hub denied access to {name}. Log in with `hf auth login`, or set HF_TOKEN to a token "
                "that has the permission."
            ) from None
        raise KappaPlaceError(
            f"The hub request for {name} failed ({reason(error)}). Nothing was changed."
        ) from None


WEIGHTS = re.compile(r"model-[0-9a-f]{12}\.safetensors")
OPTIONAL_FILES = (PAGE, CALIBRATION)
"""Files of a model besides card and weights: the page about the model, and its calibration."""


def push_model(folder: str | Path, repo: str, *, public: bool = False) -> str:
    """Upload a model folder to the hub; a page is written for a model without one.

    Args:
        folder: Folder written by `save_model`.
        repo: Repository, as OWNER/NAME.
        public: Create the repository as public. Default: private.

    Returns:
        URL of the repository.

    Raises:
        KappaPlaceError: If the model is damaged or the hub reports an error.
    """
    folder = Path(folder)
    record = read_card(folder)
    weights = checked_weights(folder, record)
    files = {CARD: folder / CARD, weights.name: weights}
    files |= {name: folder / name for name in OPTIONAL_FILES if (folder / name).is_file()}
    with tempfile.TemporaryDirectory() as scratch:
        if PAGE not in files:
            files[PAGE] = Path(scratch) / PAGE
            files[PAGE].write_text(_model_page(record, repo), encoding="utf-8")
        return push_files(files, repo, "model", replaces=("model-*.safetensors",), public=public)


def pull_model(repo: str, out: str | Path, *, revision: str = "") -> Path:
    """Download a model into a new folder, which appears only after its checksum was verified.

    Args:
        repo: Repository, as OWNER/NAME.
        out: The new folder.
        revision: Branch, tag or commit. Default: the main branch.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder exists, the checksum differs or the hub reports an error.
    """
    out = Path(out)
    repository = Repository.find(repo, "model", revision)
    with new_folder(out) as part:
        fetch_model(repository, part)
    return out


def fetch_model(repository: Repository, part: Path, inside: str = "") -> None:
    """Download and verify the files of a model.

    Args:
        repository: The repository.
        part: Folder to download into.
        inside: Folder of the model in the repository, with a trailing slash. Default: the top.

    Raises:
        KappaPlaceError: If the card or the weights are not valid.
    """
    repository.fetch(inside + CARD, part)
    folder = part / inside
    record = read_card(folder)
    if not WEIGHTS.fullmatch(str(record["weights"])):
        raise KappaPlaceError(
            f"The card of {repository.name} names {record['weights']!r} as its weights, which is not a file "
            "name that kappaplace writes. It was not downloaded."
        )
    repository.fetch(inside + record["weights"], part)
    for name in OPTIONAL_FILES:
        if inside + name in repository.files:
            repository.fetch(inside + name, part)
    checked_weights(folder, record)


_LICENSES = {"Apache-2.0": "apache-2.0", "MIT": "mit", "GPL-3.0": "gpl-3.0", "BSD-3-Clause": "bsd-3-clause"}


def _model_page(record: dict[str, Any], repo: str) -> str:
    """Return the page of a model in the hub's format."""
    metrics = "\n".join(f"| {name} | {value:g} |" for name, value in record["metrics"].items())
    table = f"\n| metric | value |\n|---|---|\n{metrics}\n" if metrics else ""
    notes = f"\n{record['notes']}\n" if record["notes"] else ""
    return f"""---
library_name: kappaplace
license: {_LICENSES.get(record["licence"], "other")}
tags: [visual-place-recognition, uncertainty-estimation]
---
# {repo.rpartition("/")[2]}

A model for visual place recognition that reports its confidence: a descriptor and its concentration κ for
each image.

- Trained on: {record["data"]}
- Licence: {record["licence"]}
{table}{notes}
```bash
kappaplace models pull {repo} --out model
kappaplace map build photos/ --out town.map --model model
```
"""


MAP_FILES = (f"{SEGMENTS}/*", "extras/*", "model-*/*")
"""Patterns of the files of a map besides its manifest and page."""


def push_map(folder: str | Path, repo: str, *, public: bool = False) -> str:
    """Upload a map to the hub, without images and without paths of this machine.

    Args:
        folder: The map.
        repo: Repository, as OWNER/NAME.
        public: Create the repository as public. Default: private.

    Returns:
        URL of the repository.

    Raises:
        KappaPlaceError: If the map is damaged or the hub reports an error.
    """
    folder = Path(folder)
    manifest, broken = verify_folder(folder)
    if broken:
        raise KappaPlaceError(f"The map {folder} is damaged, so it was not uploaded. {broken[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        public_manifest = _public_copy(folder, Path(scratch), manifest)
        write_manifest(Path(scratch), public_manifest)
        (Path(scratch) / PAGE).write_text(_map_page(public_manifest, repo), encoding="utf-8")
        files = {name: folder / name for name in data_files(manifest)}
        files |= {str(f.relative_to(scratch)): f for f in Path(scratch).rglob("*") if f.is_file()}
        return push_files(files, repo, "dataset", replaces=MAP_FILES, public=public)


def pull_map(repo: str, out: str | Path, *, revision: str = "") -> Path:
    """Download a map into a new folder, which appears only after all checksums were verified.

    Args:
        repo: Repository, as OWNER/NAME.
        out: The new folder.
        revision: Branch, tag or commit. Default: the main branch.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder exists, a checksum differs or the hub reports an error.
    """
    out = Path(out)
    repository = Repository.find(repo, "dataset", revision)
    with new_folder(out) as part:
        repository.fetch(MANIFEST, part)
        manifest = read_manifest(part)
        source, inside = manifest.model.source, manifest.model.inside
        if source and not (inside or source in HUB or is_shipped(source)):
            raise KappaPlaceError(
                f"The map {repo} names {source!r} as its model, which is neither in it nor a known name. "
                "It was not downloaded."
            )
        for name in data_files(manifest):
            repository.fetch(name, part)
        if inside:
            model_folder = f"{inside}/"
            fetch_model(repository, part, model_folder)
            if model_folder + FIT in repository.files:
                repository.fetch(model_folder + FIT, part)
        broken = verify_folder(part)[1]
        if broken:
            raise KappaPlaceError(f"The downloaded map {repo} is damaged, so it was deleted. {broken[0]}")
        write_manifest(part, _without_folders(manifest))
    return out


def data_files(manifest: Manifest) -> list[str]:
    """Return the names of a map's arrays, relative to its folder."""
    return [
        *(f"{SEGMENTS}/{segment.name}/{file}" for segment in manifest.segments for file in segment.files),
        *(extra.file for extra in manifest.extras),
    ]


def _public_copy(folder: Path, scratch: Path, manifest: Manifest) -> Manifest:
    """Return the manifest without folders of this machine; a model from a folder is copied to ``scratch``."""
    model = manifest.model
    if model.inside:
        shutil.copytree(folder / model.inside, scratch / model.inside)
    elif model.source and model.source not in HUB and not is_shipped(model.source):
        model_of(folder, model)  # raises the error that the model must be passed once
    return _without_folders(manifest)


def _without_folders(manifest: Manifest) -> Manifest:
    """Return the manifest without the image folders of another machine."""
    return replace(manifest, segments=tuple(replace(segment, root="") for segment in manifest.segments))


def _map_page(manifest: Manifest, repo: str) -> str:
    model = manifest.model.source or "its author's own"
    return f"""---
tags: [visual-place-recognition, kappaplace-map]
---
# {manifest.name or repo.rpartition("/")[2]}

A map for visual place recognition: descriptors and positions of {manifest.count:,} reference images
({manifest.frame}), {"with thumbnails" if manifest.thumbnails else "without images"}. Model: {model}.

```bash
kappaplace map pull {repo} --out town.map
kappaplace localize town.map query.jpg
```
"""
