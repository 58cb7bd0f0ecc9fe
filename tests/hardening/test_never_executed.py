"""What is loaded is never run: a pickle that attacks, in place of every file that is read."""

from __future__ import annotations

import ast
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kappaplace.errors import KappaPlaceError
from tests.hardening.test_fuzz_files import KINDS, whole  # noqa: F401  # a fixture
from tests.test_security_promises import CALLS, SOURCE

HARM = "harm"


class Attack:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.folder / HARM),)


def _plain(attack: Attack) -> bytes:
    return pickle.dumps(attack)


def _torch(attack: Attack) -> bytes:
    stream = io.BytesIO()
    torch.save({"format": 1, "model": attack, "state_dict": attack}, stream)
    return stream.getvalue()


def _npy(attack: Attack) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([attack] * 24, object), allow_pickle=True)
    return stream.getvalue()


def _npz(attack: Attack) -> bytes:
    stream = io.BytesIO()
    objects = np.array([attack], object)
    np.savez(stream, **dict.fromkeys(("name", "descriptors", "kappa", "A", "kappaplace", "model"), objects))
    return stream.getvalue()


def _zip_that_climbs(attack: Attack) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as parts:
        parts.writestr(f"../{HARM}", pickle.dumps(attack))
        parts.writestr("archive/data.pkl", pickle.dumps(attack))
        parts.writestr("archive/version", "3")
    return stream.getvalue()


PAYLOADS: dict[str, Callable[[Attack], bytes]] = {
    "pickle": _plain,
    "torch": _torch,
    "npy": _npy,
    "npz": _npz,
    "zip": _zip_that_climbs,
}


def test_the_attack_would_work(tmp_path: Path) -> None:
    pickle.loads(_plain(Attack(tmp_path)))
    assert (tmp_path / HARM).is_dir()


@pytest.mark.parametrize("name", KINDS)
def test_a_pickle_in_place_of_a_file_is_refused_and_not_run(
    name: str,
    whole: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    kind = KINDS[name]
    top = kind.file.partition("/")[0]
    (tmp_path / "in").mkdir()
    copy = tmp_path / "in" / kind.file
    if (whole / top).is_dir():
        shutil.copytree(whole / top, tmp_path / "in" / top)
    else:
        shutil.copy(whole / top, tmp_path / "in" / top)
    for payload in PAYLOADS.values():
        copy.write_bytes(payload(Attack(tmp_path / "in")))
        with pytest.raises(KappaPlaceError):
            kind.read(copy)
        assert not list(tmp_path.rglob(HARM))


def test_a_pickle_in_a_cache_is_not_run(whole: Path, tmp_path: Path) -> None:  # noqa: F811
    """Files that are read silently, and made anew where they are of no use."""
    from kappaplace.data.identity import image_digests
    from kappaplace.maps.embed import Pending
    from kappaplace.training.features import ViewSource, _open

    images = ViewSource(None, None, np.arange(1), (0,), 0)  # type: ignore[arg-type]
    image = whole / "größe" / "00.jpg"
    good = image_digests([str(image)], tmp_path / "files")
    (record,) = (tmp_path / "files").glob("*.npz")
    (tmp_path / "pending").mkdir()
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "features.json").write_text('{"key": "k"}')
    for payload in PAYLOADS.values():
        attack = payload(Attack(tmp_path))
        for file in (
            "pending/000000.npz",
            "features/reduced.npy",
            "features/descriptor.npy",
        ):
            (tmp_path / file).write_bytes(attack)
        record.write_bytes(attack)
        assert (image_digests([str(image)], tmp_path / "files") == good).all()
        assert Pending(tmp_path / "pending", "key").find("a") is None
        assert _open(tmp_path / "features", "k", images) is None
        assert not list(tmp_path.rglob(HARM))


def test_pickle_is_imported_for_its_error_alone() -> None:
    """Of torch, and of the parser of public files that calls nothing (`pickles.py`)."""
    importing = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "runpy"} & set(names):
                importing.add(file.relative_to(SOURCE).as_posix())
    assert importing <= {"models/published.py", "data/readers/pickles.py"}


@pytest.mark.parametrize(
    "name", ["compile", "__import__", "pickle.Unpickler", "yaml.unsafe_load", "os.popen"]
)
def test_nothing_else_that_runs_text(name: str) -> None:
    assert not [file for file, called, _ in CALLS if called == name]


def test_no_member_of_an_archive_becomes_a_path() -> None:
    assert not [file for file, name, _ in CALLS if name.startswith("tarfile.")]
    archives = {file for file, name, _ in CALLS if name.startswith("zipfile.")}
    assert archives
    assert not [file for file, name, _ in CALLS if file in archives and name.split(".")[-1] == "extract"]
