"""Pittsburgh (and Tokyo 24/7) ground truth as a Matlab ``dbStruct``: image names and UTM coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.readers.layout import Reader, existing_folder
from kappaplace.errors import KappaPlaceError

_ZONES = {"pitts": "EPSG:32617", "tokyo": "EPSG:32654"}  # the files give coordinates without their zone


def read(
    folder: str | Path, *, mat: str = "", split: str = "", query_folder: str = "queries_real", frame: str = ""
) -> PlaceImages:
    """Read a ``dbStruct`` file; images need not be there. Query images lie in ``query_folder``."""
    root = existing_folder(folder)
    file = _mat_file(root, mat, split)
    struct = _load(file)
    references = [str(name) for name in np.atleast_1d(struct.dbImageFns)]
    queries = [str(name) for name in np.atleast_1d(struct.qImageFns)]
    prefix = f"{query_folder}/" if query_folder and not str(queries[0]).startswith(query_folder) else ""
    positions = np.concatenate([_columns(struct.utmDb), _columns(struct.utmQ)])
    if len(positions) != len(references) + len(queries):
        raise KappaPlaceError(
            f"{file} holds {len(positions)} coordinates for {len(references) + len(queries)} images."
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


def _mat_file(root: Path, mat: str, split: str) -> Path:
    if mat:
        file = Path(mat) if Path(mat).is_file() else root / mat
        if not file.is_file():
            raise KappaPlaceError(f"There is no file {mat}, neither here nor in {root}.")
        return file
    found = sorted(f for place in (root, root / "datasets") for f in place.glob("*.mat") if split in f.stem)
    if len(found) != 1:
        names = ", ".join(f.name for f in found) or "none"
        raise KappaPlaceError(
            f"{root} must hold exactly one matching .mat file but holds {names}: choose with mat=…."
        )
    return found[0]


def _load(file: Path) -> Any:
    from scipy.io import loadmat

    try:
        struct = loadmat(file, squeeze_me=True, struct_as_record=False)["dbStruct"]
        for name in ("dbImageFns", "utmDb", "qImageFns", "utmQ", "posDistThr"):
            getattr(struct, name)
    except (KeyError, AttributeError) as error:
        raise KappaPlaceError(f"{file} has no complete dbStruct ({error}).") from None
    except (ValueError, NotImplementedError) as error:
        raise KappaPlaceError(f"{file} is no Matlab file that can be read ({error}).") from None
    return struct


def _columns(utm: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = np.asarray(utm, dtype=np.float64).reshape(2, -1)
    return array.T


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
