"""Pittsburgh (and Tokyo 24/7) ground truth as a Matlab ``dbStruct``: image names and UTM coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.readers.layout import Reader, chosen_file, existing_folder
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason

_ZONES = {"pitts": "EPSG:32617", "tokyo": "EPSG:32654"}  # the files give coordinates without their zone


def read(
    folder: str | Path, *, mat: str = "", split: str = "", query_folder: str = "queries_real", frame: str = ""
) -> PlaceImages:
    """Read a ``dbStruct`` file; images need not be there. Query images lie in ``query_folder``."""
    root = existing_folder(folder)
    found = [f for place in (root, root / "datasets") for f in place.glob("*.mat") if split in f.stem]
    file = chosen_file(root, mat, found, "matching .mat file", "mat")
    struct = _load(file)
    references, queries = (_names(struct, field, file) for field in ("dbImageFns", "qImageFns"))
    prefix = f"{query_folder}/" if query_folder and not queries[0].startswith(query_folder) else ""
    positions = np.concatenate(
        [
            _positions(struct, "utmDb", len(references), file),
            _positions(struct, "utmQ", len(queries), file),
        ]
    )
    known = next((zone for key, zone in _ZONES.items() if key in file.stem.lower()), "local")
    return PlaceImages.create(
        references + [prefix + name for name in queries],
        positions,
        is_query=np.arange(len(positions)) >= len(references),
        root=root,
        frame=frame or known,
        name=file.stem,
        radius=float(struct.posDistThr),
    )


def _load(file: Path) -> Any:
    from scipy.io import loadmat

    try:
        struct = loadmat(file, squeeze_me=True, struct_as_record=False)["dbStruct"]
        for name in ("dbImageFns", "utmDb", "qImageFns", "utmQ", "posDistThr"):
            getattr(struct, name)
    except (KeyError, AttributeError) as error:
        raise KappaPlaceError(f"{file} has no complete dbStruct ({error}).") from None
    except Exception as error:  # SciPy meets damaged bytes with many types (zlib, MatRead, Type errors ...)
        raise KappaPlaceError(f"{file} is no Matlab file that can be read ({reason(error)}).") from error
    return struct


def _names(struct: Any, field: str, file: Path) -> list[str]:
    names = [str(name) for name in np.atleast_1d(getattr(struct, field))]
    if not names:
        raise KappaPlaceError(f"{file} names no image in {field}: queries and references are needed.")
    return names


def _positions(struct: Any, field: str, count: int, file: Path) -> NDArray[np.float64]:
    """Coordinates of so many images, N×2; the file holds them 2×N, and plain 2 for a single one."""
    array = np.asarray(getattr(struct, field), dtype=np.float64)
    if array.shape != (2, count) and not (count == 1 and array.shape == (2,)):
        shape = "×".join(map(str, array.shape)) or "one number"
        raise KappaPlaceError(f"{file}: {field} is {shape} but {count} images need 2×{count}.")
    return array.reshape(2, count).T


READER = Reader(
    "pitts-mat",
    "Pittsburgh dbStruct: a .mat file with names and UTM coordinates, queries in queries_real/",
    read,
    {
        "mat": "the .mat file (default: the only one in the folder or in datasets/)",
        "split": "part of the file name to choose by, e.g. pitts30k_test",
        "query_folder": "folder of the query images (queries_real)",
        "frame": "frame of the coordinates (Pittsburgh: EPSG:32617)",
    },
)
