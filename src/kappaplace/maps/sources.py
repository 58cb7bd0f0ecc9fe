"""What shall be in a map: names, image files and poses, from a folder, a table or a list of paths."""

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
from kappaplace.maps.store.reader import MapStore

Images: TypeAlias = "str | Path | PlaceImages | Iterable[str | Path]"
"""A folder, a table (a file or in memory), one image, or a list of image files."""
TABLES = (".parquet", ".csv")


@dataclass(frozen=True, eq=False)
class Wanted:
    """References that a map shall have. Rows of the same number belong together."""

    names: Sequence[str]
    paths: Sequence[str]
    poses: NDArray[np.float64]
    routes: NDArray[np.int64]
    root: str
    prefix: str

    def __len__(self) -> int:
        return len(self.names)


def wanted_images(table: PlaceImages, prefix: str = "") -> Wanted:
    """The references of a table; a name is the path below the table's root, after ``prefix``."""
    table = table.references
    if not len(table):
        raise KappaPlaceError(f"The table {table.name!r} has queries only; a map is made of references.")
    names = [prefix + path for path in table.paths.tolist()]
    _refuse_doubles(names)
    poses = np.column_stack([table.positions, table.heading.astype(np.float64), table.timestamp])
    route_of = {text: _route(prefix, text) for text in set(table.condition.tolist())}
    routes = np.array([route_of[text] for text in table.condition.tolist()], np.int64)
    root = os.path.abspath(table.root)
    return Wanted(
        names,
        [os.path.join(root, path) for path in table.paths.tolist()],
        poses,
        np.column_stack([routes, table.frame_numbers()]),
        root,
        prefix,
    )


def wanted_again(store: MapStore) -> list[Wanted]:
    """All references of a map, by where their images came from, to be embedded anew."""
    found: dict[tuple[str, str], list[Wanted]] = {}
    for segment, chosen in store.parts():
        root, prefix = segment.record.root, segment.record.prefix
        if not root and len(chosen):
            raise KappaPlaceError(
                f"The map {store.folder} has {len(chosen):,} references without image files (imported "
                "descriptors): they cannot be embedded anew; remove them first."
            )
        pieces = segment.names.all()
        names = [pieces[i].decode("utf-8", "surrogateescape") for i in chosen.tolist()]
        paths = [os.path.join(root, name.removeprefix(prefix)) for name in names]
        part = Wanted(
            names, paths, segment.array("poses")[chosen], segment.array("routes")[chosen], root, prefix
        )
        found.setdefault((root, prefix), []).append(part)
    return [_joined(parts) for parts in found.values()]


def _joined(parts: list[Wanted]) -> Wanted:
    return Wanted(
        [name for part in parts for name in part.names],
        [path for part in parts for path in part.paths],
        np.concatenate([part.poses for part in parts]),
        np.concatenate([part.routes for part in parts]),
        parts[0].root,
        parts[0].prefix,
    )


def as_table(images: Images, layout: str = "", *, skip_unreadable: bool = True) -> PlaceImages:
    """Images with what is known of their poses; without a ``layout`` a folder's photos tell it by EXIF."""
    if isinstance(images, str | Path) and Path(images).is_dir():
        return _folder(Path(images), layout, skip_unreadable)
    if isinstance(images, str | Path) and not Path(images).exists():
        raise KappaPlaceError(f"Nothing at {images}; give a folder of images, a table or image files.")
    if layout not in ("", "photos"):
        raise KappaPlaceError(
            f"A layout ({layout}) is that of a folder, and none was given; leave it out, or give the folder."
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
            f"A map cannot be made of a {type(images).__name__}; give a folder, a table or image files."
        )
    files = [os.path.abspath(os.fspath(image)) for image in images]
    if not files:
        raise KappaPlaceError("There is nothing to put into the map: the list of images is empty.")
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    return _photos(Path(root), [Path(os.path.relpath(f, root)).as_posix() for f in files], skip_unreadable)


def _folder(folder: Path, layout: str, skip_unreadable: bool) -> PlaceImages:
    from kappaplace.data.readers import read_layout
    from kappaplace.data.readers.layout import images_or_error

    if layout and layout != "photos":
        return read_layout(layout, folder)
    return _photos(folder, images_or_error(folder), skip_unreadable)


def _photos(root: Path, paths: list[str], skip_unreadable: bool) -> PlaceImages:
    """As the layout photos, but one unreadable file need not end it: embedding will name it."""
    from kappaplace.data.readers.photos import MAX_ACCURACY, PhotoPose, read_pose

    poses = []
    for path in paths:
        try:
            poses.append(read_pose(root / path))
        except KappaPlaceError:
            if not skip_unreadable:
                raise
            poses.append(PhotoPose())
    lat, lon, heading, accuracy, time = np.array(poses, np.float64).T
    vague = accuracy > MAX_ACCURACY
    positions, frame = project(*(np.where(vague, np.nan, side) for side in (lat, lon)))
    text = np.array(paths, np.dtypes.StringDType())
    condition = [path.rpartition("/")[0] for path in paths]
    known = {"heading": heading, "timestamp": time, "condition": np.array(condition, np.dtypes.StringDType())}
    return PlaceImages.create(text, positions, **known, root=root, frame=frame, name=root.name)


def into_frame(table: PlaceImages, frame: str, empty: bool) -> PlaceImages:
    """The table in the map's own frame; one that cannot be brought there is refused."""
    if table.frame == frame or not table.posed.any():
        return table
    codes = frame_codes(frame)
    if frame == LOCAL_FRAME and empty:
        return table
    if len(codes) != 1 or table.frame == LOCAL_FRAME:
        raise KappaPlaceError(
            f"The map lies in the frame {frame} but these images in {table.frame}: the two cannot be brought "
            "together; convert their positions, or build a map of its own."
        )
    from pyproj import Transformer

    lat, lon = unproject(table.positions, table.frame)
    posed = table.posed
    positions = np.full_like(table.positions, np.nan)
    east, north = Transformer.from_crs(4326, codes[0], always_xy=True).transform(lon[posed], lat[posed])
    positions[posed] = np.column_stack([east, north])
    if not np.isfinite(positions[posed]).all():
        raise KappaPlaceError(
            f"Some of these images lie too far from the map's frame {frame}; build another."
        )
    return replace(table, positions=positions, frame=frame)


def is_same_image(query: str, image: str) -> bool:
    """Whether two paths lead to one image file; an empty one leads nowhere."""
    return bool(image) and os.path.realpath(query) == os.path.realpath(image)


def _refuse_doubles(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise KappaPlaceError(
                f"The name {name!r} comes twice in these images; a map tells references by their names."
            )
        seen.add(name)


def _route(prefix: str, condition: str) -> int:
    digest = hashlib.blake2b(f"{prefix}\0{condition}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
