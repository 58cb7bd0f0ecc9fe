"""Files to and from a repository on the Hugging Face hub (extra ``hub``): named ones, and no others.

What is in a repository was written by somebody else, so nothing but the files that a reader asks for by name
is ever downloaded, every name is checked before it becomes a path, and what arrives appears at its place
only when it is whole.

Models on the Hugging Face hub: the folder that `save_model` writes, and nothing else that lies there.

Maps on the Hugging Face hub: what the manifest names and the model that lies in the map, without images.

Folders of the machine that built it are not told: the images' place is left out, and a model that was used
from a folder goes with the map.
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
from typing import Any, Literal

from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.files import make_folder
from kappaplace.maps import FIT_RECORD as FIT
from kappaplace.maps import (
    MANIFEST,
    MODEL_FOLDER,
    SEGMENTS,
    Manifest,
    keep_model,
    model_of,
    read_manifest,
    verified,
    write_manifest,
)
from kappaplace.models import CALIBRATION, CARD, HUB, PAGE, checked_weights, is_shipped, read_card

Kind = Literal["model", "dataset"]
"""What the hub calls a repository: ours hold a model or, as a dataset, a map."""
SUFFIXES = (".json", ".safetensors", ".npy", ".bin", ".md")
"""Everything that a model or a map is made of; pickles and code are not among it."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def checked_name(name: str) -> str:
    """A relative path of plain parts with a known ending, or an error: no ``..``, no root, no hidden file.

    >>> checked_name("segments/000000/kappa.npy")
    'segments/000000/kappa.npy'
    """
    plain = all(_PART.fullmatch(part) for part in name.split("/"))
    if not plain or not name.endswith(SUFFIXES):
        raise KappaPlaceError(
            f"{name!r} is not a name that a model or a map gives to a file; nothing was downloaded under it."
        )
    return name


@dataclass(frozen=True)
class Repository:
    """One repository at one commit, so that all files of a pull belong together."""

    name: str
    kind: Kind
    commit: str
    files: frozenset[str]

    @classmethod
    def find(cls, name: str, kind: Kind, revision: str = "") -> Repository:
        """Look up the commit that a revision (a branch, a tag, a commit) means now, and its files."""
        with _telling(name, kind):
            found = _api().repo_info(name, repo_type=kind, revision=revision or None)
        files = frozenset(each.rfilename for each in found.siblings or ())
        return cls(name, kind, str(found.sha), files)

    def fetch(self, name: str, into: Path) -> Path:
        """Download one file to the same relative path below a folder."""
        if checked_name(name) not in self.files:
            raise KappaPlaceError(f"The repository {self.name} holds no {name}: it is no {_what(self.kind)}.")
        with _telling(self.name, self.kind):
            file = _api().hf_hub_download(
                self.name, name, repo_type=self.kind, revision=self.commit, local_dir=into
            )
        return Path(file)


@contextmanager
def arriving(out: Path) -> Iterator[Path]:
    """A folder to download into; it becomes ``out`` at the end, and is gone if anything went wrong."""
    if out.exists():
        raise KappaPlaceError(f"{out} is there already; pull into a new folder.")
    make_folder(out.parent)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        shutil.rmtree(part / ".cache", ignore_errors=True)  # the client's own notes on what it downloaded
        os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def push_files(
    files: Mapping[str, Path], name: str, kind: Kind, *, replaces: tuple[str, ...] = (), public: bool = False
) -> str:
    """Put files into a repository in one commit, made if need be; the address of the repository.

    ``replaces`` are patterns of names that belong to us: such files of an earlier push that are not among
    the new ones go. A new repository is private unless ``public`` is said.
    """
    api = _api()
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = [CommitOperationAdd(checked_name(path), str(file)) for path, file in files.items()]
    with _telling(name, kind):
        address = api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
        old = [
            path
            for path in api.list_repo_files(name, repo_type=kind)
            if path not in files and any(fnmatchcase(path, pattern) for pattern in replaces)
        ]
        operations = [*adds, *(CommitOperationDelete(path) for path in old)]
        message = f"Upload of a {_what(kind)} by kappaplace"
        api.create_commit(name, operations, commit_message=message, repo_type=kind)
    return str(address)


def _what(kind: Kind) -> str:
    return "model" if kind == "model" else "map"


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtra("The Hugging Face hub", "hub") from None
    # Read at every call: the client itself looks at its environment only once.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="kappaplace")


@contextmanager
def _telling(name: str, kind: Kind) -> Iterator[None]:
    """Whatever the client raises as one sentence: it has a dozen classes for it, others with each release."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise KappaPlaceError(f"{name!r} is no repository of the hub; give it as OWNER/NAME.") from None
    except errors.RevisionNotFoundError:
        raise KappaPlaceError(f"The repository {name} has no such branch, tag or commit.") from None
    except errors.RepositoryNotFoundError:
        raise KappaPlaceError(
            f"The hub shows no {kind} repository {name}: it is not there, or it is private; in the second "
            "case log in with `hf auth login` or set HF_TOKEN."
        ) from None
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise KappaPlaceError(
                f"The hub refuses access to {name}: log in with `hf auth login`, or set HF_TOKEN to a token "
                "that may do this."
            ) from None
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
        raise KappaPlaceError(
            f"The hub could not be asked for {name} ({reason}); nothing here was changed."
        ) from None


WEIGHTS = re.compile(r"model-[0-9a-f]{12}\.safetensors")
BESIDE = (PAGE, CALIBRATION)
"""What may lie beside card and weights: the page about the model, and its calibration."""


def push_model(folder: str | Path, repo: str, *, public: bool = False) -> str:
    """Upload a model folder; the address of its repository. A page is written for one that has none."""
    folder = Path(folder)
    record = read_card(folder)
    weights = checked_weights(folder, record)
    files = {CARD: folder / CARD, weights.name: weights}
    files |= {name: folder / name for name in BESIDE if (folder / name).is_file()}
    with tempfile.TemporaryDirectory() as scratch:
        if PAGE not in files:
            files[PAGE] = Path(scratch) / PAGE
            files[PAGE].write_text(_model_page(record, repo), encoding="utf-8")
        return push_files(files, repo, "model", replaces=("model-*.safetensors",), public=public)


def pull_model(repo: str, out: str | Path, *, revision: str = "") -> Path:
    """Download a model into a new folder; it appears there when its checksum is right, and not before."""
    out = Path(out)
    found = Repository.find(repo, "model", revision)
    with arriving(out) as part:
        fetch_model(found, part)
    return out


def fetch_model(found: Repository, part: Path, inside: str = "") -> None:
    """Card, weights and what may lie beside them, from a folder ``inside/`` of a repository; checked."""
    found.fetch(inside + CARD, part)
    folder = part / inside
    record = read_card(folder)
    if not WEIGHTS.fullmatch(str(record["weights"])):
        raise KappaPlaceError(
            f"The card of {found.name} names {record['weights']!r} as its weights, which is no file that "
            "kappaplace writes; it was not downloaded."
        )
    found.fetch(inside + record["weights"], part)
    for name in BESIDE:
        if inside + name in found.files:
            found.fetch(inside + name, part)
    checked_weights(folder, record)


_LICENCES = {"Apache-2.0": "apache-2.0", "MIT": "mit", "GPL-3.0": "gpl-3.0", "BSD-3-Clause": "bsd-3-clause"}


def _model_page(record: dict[str, Any], repo: str) -> str:
    """A model card in the hub's form, from our own."""
    metrics = "\n".join(f"| {name} | {value:g} |" for name, value in record["metrics"].items())
    table = f"\n| metric | value |\n|---|---|\n{metrics}\n" if metrics else ""
    notes = f"\n{record['notes']}\n" if record["notes"] else ""
    return f"""---
library_name: kappaplace
license: {_LICENCES.get(record["licence"], "other")}
tags: [visual-place-recognition, uncertainty-estimation]
---
# {repo.rpartition("/")[2]}

A model for visual place recognition that says how sure it is: descriptor and concentration κ of each image.

- Trained on: {record["data"]}
- Licence: {record["licence"]}
{table}{notes}
```bash
kappaplace models pull {repo} --out model
kappaplace map build photos/ --out town.map --model model
```
"""


OURS = (f"{SEGMENTS}/*", "extras/*", "model-*/*")


def push_map(folder: str | Path, repo: str, *, public: bool = False) -> str:
    """Upload a map; the address of its repository. A damaged one is refused."""
    folder = Path(folder)
    manifest, broken = verified(folder)
    if broken:
        raise KappaPlaceError(f"The map {folder} is damaged and is not uploaded: {broken[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        told = _to_tell(folder, Path(scratch), manifest)
        write_manifest(Path(scratch), told)
        (Path(scratch) / PAGE).write_text(_map_page(told, repo), encoding="utf-8")
        files = {name: folder / name for name in data_files(manifest)}
        files |= {str(f.relative_to(scratch)): f for f in Path(scratch).rglob("*") if f.is_file()}
        return push_files(files, repo, "dataset", replaces=OURS, public=public)


def pull_map(repo: str, out: str | Path, *, revision: str = "") -> Path:
    """Download a map into a new folder; it appears there when every checksum is right, and not before."""
    out = Path(out)
    found = Repository.find(repo, "dataset", revision)
    with arriving(out) as part:
        found.fetch(MANIFEST, part)
        manifest = read_manifest(part)
        source = manifest.model.source
        inside = source.startswith("./") and MODEL_FOLDER.fullmatch(source.removeprefix("./"))
        if source and not (inside or source in HUB or is_shipped(source)):
            raise KappaPlaceError(
                f"The map {repo} names {source!r} as its model, which is neither in it nor a known name; it "
                "was not downloaded."
            )
        for name in data_files(manifest):
            found.fetch(name, part)
        if source.startswith("./"):
            kept = f"{source.removeprefix('./')}/"
            fetch_model(found, part, kept)
            if kept + FIT in found.files:
                found.fetch(kept + FIT, part)
        broken = verified(part)[1]
        if broken:
            raise KappaPlaceError(f"The map {repo} arrived damaged, or was so before: {broken[0]}")
    return out


def data_files(manifest: Manifest) -> list[str]:
    """The arrays of a map, relative to its folder."""
    extras = (manifest.removed, manifest.distinctiveness, manifest.sample, manifest.codebook)
    return [
        *(f"{SEGMENTS}/{segment.name}/{file}" for segment in manifest.segments for file in segment.files),
        *(extra.file for extra in extras if extra is not None),
    ]


def _to_tell(folder: Path, scratch: Path, manifest: Manifest) -> Manifest:
    """The manifest without folders of this machine; a model that came from one is put into ``scratch``."""
    segments = tuple(replace(segment, root="") for segment in manifest.segments)
    model = manifest.model
    if model.source.startswith("./"):
        shutil.copytree(folder / model.source, scratch / model.source)
    elif model.source and model.source not in HUB and not is_shipped(model.source):
        ready = model_of(folder, model)
        model = replace(model, source=f"./model-{model.fingerprint[:12]}")
        keep_model(scratch, model, ready)
    return replace(manifest, segments=segments, model=model)


def _map_page(manifest: Manifest, repo: str) -> str:
    model = manifest.model.source or "its author's own"
    return f"""---
tags: [visual-place-recognition, kappaplace-map]
---
# {manifest.name or repo.rpartition("/")[2]}

A map for visual place recognition: descriptors and positions of {manifest.count:,} reference images
({manifest.frame}), {"small pictures of them" if manifest.thumbnails else "without pictures"}. Model: {model}.

```bash
kappaplace map pull {repo} --out town.map
kappaplace localize town.map query.jpg
```
"""
