"""Sources of a map: names, image files and poses from a folder, a table or a list of paths."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappaplace.data.geodesy import LOCAL_FRAME, frame_codes, project, unproject
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.files import path_inside
from kappaplace.maps.store import MapStore

Images: TypeAlias = "str | Path | PlaceImages | Iterable[str | Path]"
"""A folder, a table (a file or in memory), one image, or a list of image files."""
TABLES = (".parquet", ".csv")


@dataclass(frozen=True, eq=False)
class ReferenceList:
    """References to put into a map, one per row."""

    names: Sequence[str]
    paths: Sequence[str]
    """Image file of each reference."""
    poses: NDArray[np.float64]
    """Columns x, y, heading and time, N×4; NaN if unknown."""
    routes: NDArray[np.int64]
    """N×2: hash of the route, and number of the frame."""
    root: str
    """Folder of the images."""
    prefix: str
    """Text before each name that is not part of the path."""

    def __len__(self) -> int:
        return len(self.names)


def reference_list(table: PlaceImages, prefix: str = "") -> ReferenceList:
    """Return the references of a table. A name is ``prefix`` and the path relative to the table's root."""
    table = table.references
    if not len(table):
        raise KappaPlaceError(f"The table {table.name!r} has only queries. Pass a table with references.")
    names = [prefix + path for path in table.paths.tolist()]
    _check_names(names)
    poses = np.column_stack([table.positions, table.heading.astype(np.float64), table.timestamp])
    route_of = {text: _route(prefix, text) for text in set(table.condition.tolist())}
    routes = np.array([route_of[text] for text in table.condition.tolist()], np.int64)
    root = os.path.abspath(table.root)
    return ReferenceList(
        names,
        [os.path.join(root, path) for path in table.paths.tolist()],
        poses,
        np.column_stack([routes, table.frame_numbers()]),
        root,
        prefix,
    )


def stored_references(store: MapStore) -> list[ReferenceList]:
    """Return all references of a map, one list per image folder and prefix."""
    sources: dict[tuple[str, str], list[int]] = {}
    count = 0
    for segment, rows in store.parts():
        root, prefix = segment.record.root, segment.record.prefix
        if not root and len(rows):
            raise KappaPlaceError(
                f"The map {store.folder} has {len(rows):,} references without image files, which cannot be "
                "embedded again. Add their folder with `kappaplace map add MAP FOLDER`, or remove them."
            )
        sources.setdefault((root, prefix), []).extend(range(count, count + len(rows)))
        count += len(rows)
    all_names, lists = list(store.names()), []
    for (root, prefix), references in sources.items():
        names = [all_names[reference] for reference in references]
        paths = [path_inside(root, name.removeprefix(prefix)) for name in names]
        if "" in paths:
            raise KappaPlaceError(
                f"The image {names[paths.index('')]!r} of {store.folder} is not inside its folder {root}. "
                "Add it from a folder that contains it, without links to other folders."
            )
        numbers = np.array(references, np.int64)
        poses, routes = store.gather("poses", numbers), store.gather("routes", numbers)
        lists.append(ReferenceList(names, paths, poses, routes, root, prefix))
    return lists


def as_table(images: Images, layout: str = "", *, skip_unreadable: bool = True) -> PlaceImages:
    """Return a table of images and their poses.

    Args:
        images: A folder, a table (a file or in memory), one image, or a list of image files.
        layout: Layout of a folder. Default: photos, with poses from EXIF data.
        skip_unreadable: Whether to accept unreadable photos, without a pose.

    Returns:
        The table.

    Raises:
        KappaPlaceError: If there are no images, or ``layout`` is given without a folder.
    """
    if isinstance(images, str | Path) and Path(images).is_dir():
        return _folder(Path(images), layout, skip_unreadable)
    if isinstance(images, str | Path) and not Path(images).exists():
        raise KappaPlaceError(f"{images} does not exist. Pass a folder of images, a table or image files.")
    if layout not in ("", "photos"):
        raise KappaPlaceError(
            f"The layout {layout!r} needs a folder of images. Pass a folder, or omit the layout."
        )
    if isinstance(images, PlaceImages):
        return images
    if isinstance(images, str | Path):
        path = Path(images)
        if path.suffix.lower() in TABLES:
            return PlaceImages.open(path)
        images = [path]
    if not isinstance(images, Iterable):
        raise KappaPlaceError(
            f"A map cannot be built from a {type(images).__name__}. Pass a folder, a table or image files."
        )
    files = [os.path.abspath(os.fspath(image)) for image in images]
    if not files:
        raise KappaPlaceError("The list of images to add is empty. Pass at least one image.")
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    return _photos(Path(root), [Path(os.path.relpath(f, root)).as_posix() for f in files], skip_unreadable)


def _folder(folder: Path, layout: str, skip_unreadable: bool) -> PlaceImages:
    from kappaplace.data.readers import read_layout
    from kappaplace.data.readers.layout import images_or_error

    if layout and layout != "photos":
        return read_layout(layout, folder)
    return _photos(folder, images_or_error(folder), skip_unreadable)


def _photos(root: Path, paths: list[str], skip_unreadable: bool) -> PlaceImages:
    """Read the layout "photos". Unreadable files can be accepted here, because embedding reports them."""
    from kappaplace.data.readers.photos import MAX_ACCURACY, PhotoPose, read_pose

    poses = []
    for path in paths:
        try:
            poses.append(read_pose(root / path))
        except KappaPlaceError:
            if not skip_unreadable:
                raise
            poses.append(PhotoPose())
    lat, lon, heading, accuracy, time, _ = np.array(poses, np.float64).T
    vague = accuracy > MAX_ACCURACY
    positions, frame = project(*(np.where(vague, np.nan, side) for side in (lat, lon)))
    text = np.array(paths, np.dtypes.StringDType())
    condition = [path.rpartition("/")[0] for path in paths]
    facts = {"heading": heading, "timestamp": time, "condition": np.array(condition, np.dtypes.StringDType())}
    return PlaceImages.create(text, positions, **facts, root=root, frame=frame, name=root.name)


def into_frame(table: PlaceImages, frame: str, empty: bool) -> PlaceImages:
    """Convert the positions of a table to the frame of a map.

    Args:
        table: The table.
        frame: Frame of the map.
        empty: Whether the map has no positions yet, so that it can take the frame of the table.

    Returns:
        The table in the frame of the map, or unchanged if it has no positions.

    Raises:
        KappaPlaceError: If one of the two frames is local, or the positions are too far from the frame.
    """
    if table.frame == frame or not table.posed.any():
        return table
    codes = frame_codes(frame)
    if frame == LOCAL_FRAME and empty:
        return table
    if len(codes) != 1 or table.frame == LOCAL_FRAME:
        raise KappaPlaceError(
            f"Positions of these images cannot be converted from the frame {table.frame} to the map's frame "
            f"{frame}. Convert them yourself, or build a separate map."
        )
    from pyproj import Transformer

    lat, lon = unproject(table.positions, table.frame)
    posed = table.posed
    positions = np.full_like(table.positions, np.nan)
    east, north = Transformer.from_crs(4326, codes[0], always_xy=True).transform(lon[posed], lat[posed])
    positions[posed] = np.column_stack([east, north])
    if not np.isfinite(positions[posed]).all():
        raise KappaPlaceError(
            f"Some of these images are too far away for the frame {frame} of the map. Build a separate map."
        )
    return replace(table, positions=positions, frame=frame)


def is_same_image(query: str, image: str) -> bool:
    """Return whether two paths name the same file; False for an empty path."""
    return bool(image) and os.path.realpath(query) == os.path.realpath(image)


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise KappaPlaceError(
                f"The image name {name!r} appears more than once. Names must be unique within a map."
            )
        seen.add(name)


def _route(prefix: str, condition: str) -> int:
    digest = hashlib.blake2b(f"{prefix}\0{condition}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
