"""Pittsburgh (and Tokyo 24/7) ground truth as a Matlab ``dbStruct``: image names and UTM coordinates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from kappaplace.data.readers.layout import Reader, check_folder, select_file
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import reason

_ZONES = {"pitts": "EPSG:32617", "tokyo": "EPSG:32654"}  # the files omit the zone of their coordinates
_FIELDS = ("dbImageFns", "utmDb", "qImageFns", "utmQ", "posDistThr")


def read(
    folder: str | Path, *, mat: str = "", split: str = "", query_folder: str = "queries_real", frame: str = ""
) -> PlaceImages:
    """Read a ``dbStruct`` file; the images do not have to exist.

    Args:
        folder: Folder of the dataset.
        mat: The .mat file. Default: the only one in the folder or in datasets/.
        split: Part of the file name that selects the file, for example pitts30k_test.
        query_folder: Folder of the query images.
        frame: Frame of the coordinates. Default: UTM of Pittsburgh or Tokyo, by the file name.

    Returns:
        The table.
    """
    root = check_folder(folder)
    candidates = [f for parent in (root, root / "datasets") for f in parent.glob("*.mat") if split in f.stem]
    file = select_file(root, mat, candidates, "matching .mat file", "mat")
    fields = _load(file)
    references, queries = (_names(fields, field, file) for field in ("dbImageFns", "qImageFns"))
    prefix = f"{query_folder}/" if query_folder and not queries[0].startswith(query_folder) else ""
    positions = np.concatenate(
        [
            _positions(fields, "utmDb", len(references), file),
            _positions(fields, "utmQ", len(queries), file),
        ]
    )
    zone = next((zone for key, zone in _ZONES.items() if key in file.stem.lower()), "local")
    return PlaceImages.create(
        references + [prefix + name for name in queries],
        positions,
        is_query=np.arange(len(positions)) >= len(references),
        root=root,
        frame=frame or zone,
        name=file.stem,
        radius=float(np.asarray(fields["posDistThr"])),
    )


def _load(file: Path) -> dict[str, npt.ArrayLike]:
    from scipy.io import loadmat

    try:
        struct = loadmat(file, squeeze_me=True, struct_as_record=False)["dbStruct"]
        return {name: getattr(struct, name) for name in _FIELDS}
    except (KeyError, AttributeError) as error:
        raise KappaPlaceError(f"{file} has no complete dbStruct ({error}). Download it again.") from None
    except Exception as error:  # for damaged bytes, SciPy raises many types (zlib, MatRead, Type errors ...)
        raise KappaPlaceError(f"{file} is not a readable Matlab file ({reason(error)}).") from error


def _names(fields: dict[str, npt.ArrayLike], field: str, file: Path) -> list[str]:
    names = [str(name) for name in np.atleast_1d(fields[field])]
    if not names:
        raise KappaPlaceError(f"{file} names no images in {field}. Both queries and references are needed.")
    return names


def _positions(fields: dict[str, npt.ArrayLike], field: str, count: int, file: Path) -> NDArray[np.float64]:
    """Return coordinates N×2; the file contains them as 2×N, or as plain 2 for one image."""
    array = np.asarray(fields[field], dtype=np.float64)
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
        "split": "part of the file name that selects the file, for example pitts30k_test",
        "query_folder": "folder of the query images (default: queries_real)",
        "frame": "frame of the coordinates (default for Pittsburgh: EPSG:32617)",
    },
)
