"""Another model for a map: all its images embedded again, while the map stays usable until that is done."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from kappaplace.errors import KappaPlaceError
from kappaplace.maps.change import remove_references, rewrite
from kappaplace.maps.distinctiveness import finish
from kappaplace.maps.extend import Options, Report, extend
from kappaplace.maps.manifest import ModelRecord, read_manifest
from kappaplace.maps.map_models import keep_model, loaded, record_of
from kappaplace.maps.sources import wanted_again
from kappaplace.maps.writer import MapWriter, writer_of
from kappaplace.models.loading import AnyModel

REEMBED = "reembed"


def reembed_map(folder: Path, model: AnyModel | str | Path, options: Options | None = None) -> Report:
    """Embed all images of a map again with another model; until that is done the map stays as it is.

    The new references grow in a map of their own inside this one, so that a killed run goes on where it was.
    """
    options = options or Options(on_error="raise")
    ready, source = loaded(model)
    with writer_of(folder) as writer:
        record = record_of(ready, source)
        draft = replace(
            writer.manifest,
            model=record,
            # Codes are learnt from the new descriptors when all of them are there.
            storage="float16" if writer.manifest.storage == "pq" else writer.manifest.storage,
            codebook=None,
            segments=(),
            removed=None,
            distinctiveness=None,
            sample=None,
            unposed=0,
            calibration=None,
            version=0,
        )
        inner, report = folder / REEMBED, Report()
        if inner.is_dir() and _other_model(inner, record):
            shutil.rmtree(inner)
        sources = wanted_again(writer.store)
        with writer_of(inner, create=draft) as fresh:
            for wanted in sources:
                part = extend(fresh, wanted, ready, options)
                report.added += part.added
                report.already += part.already
                report.unposed += part.unposed
                report.skipped += part.skipped
            _drop_others(fresh, {name for wanted in sources for name in wanted.names})
            finish(fresh)
            if fresh.manifest.removed is not None or fresh.manifest.storage != writer.manifest.storage:
                rewrite(fresh, writer.manifest.storage)
            keep_model(folder, record, ready)
            _take_over(writer, fresh)
        shutil.rmtree(inner, ignore_errors=True)
        return report


def _other_model(inner: Path, record: ModelRecord) -> bool:
    try:
        return read_manifest(inner).model != record
    except KappaPlaceError:
        return True


def _drop_others(fresh: MapWriter, names: set[str]) -> None:
    """References that left the map while its re-embedding lay still."""
    store = fresh.store
    gone = [i for i, name in enumerate(store.names()) if name not in names]
    if gone:
        remove_references(fresh, np.array(gone, np.int64))


def _take_over(writer: MapWriter, fresh: MapWriter) -> None:
    """Put the new segments in the place of the old ones: links first, then one swap."""
    records = [writer.adopt(fresh.folder, record) for record in fresh.manifest.segments]
    new = fresh.manifest
    changes = {}
    for what, extra in (
        ("distinctiveness", new.distinctiveness),
        ("sample", new.sample),
        ("codebook", new.codebook),
    ):
        changes[what] = (
            None if extra is None else writer.extra(what, fresh.store.extra(extra), extra.rows, extra.how)
        )
    writer.commit(
        model=new.model,
        segments=tuple(records),
        removed=None,
        unposed=new.unposed,
        calibration=None,
        **changes,
    )
    writer.clean(pending=True)
