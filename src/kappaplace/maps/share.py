"""Maps on the Hugging Face hub: what the manifest names and the model that lies in the map, without images.

Folders of the machine that built it are not told: the images' place is left out, and a model that was used
from a folder goes with the map.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from kappaplace.errors import KappaPlaceError
from kappaplace.huggingface import Repository, arriving, push_files
from kappaplace.maps.fit_record import FILE as FIT
from kappaplace.maps.manifest import MANIFEST, MODEL_FOLDER, Manifest, read_manifest, write_manifest
from kappaplace.maps.map_models import keep_model, model_of
from kappaplace.maps.segments import SEGMENTS
from kappaplace.maps.verify import verified
from kappaplace.models.hub import HUB
from kappaplace.models.share import fetch_model
from kappaplace.models.shipped import is_shipped

PAGE = "README.md"
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
        (Path(scratch) / PAGE).write_text(_page(told, repo), encoding="utf-8")
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


def _page(manifest: Manifest, repo: str) -> str:
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
