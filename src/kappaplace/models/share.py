"""Models on the Hugging Face hub: the folder that `save_model` writes, and nothing else that lies there."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from kappaplace.errors import KappaPlaceError
from kappaplace.huggingface import Repository, arriving, push_files
from kappaplace.models.checkpoint import CARD, checked_weights, read_card
from kappaplace.models.shipped import CALIBRATION, PAGE

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
            files[PAGE].write_text(_page(record, repo), encoding="utf-8")
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


def _page(record: dict[str, Any], repo: str) -> str:
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
