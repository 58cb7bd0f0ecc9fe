"""A video plus the trajectory of its camera: frames sampled by distance and written as images.

The folder into which a film or a bag is unpacked; it remembers of what, so no old image is reused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kappaplace.data.near import Neighborhood
from kappaplace.data.readers.layout import Reader, chosen_file, existing_folder
from kappaplace.data.readers.trajectory import headings, read_trajectory, sample_by_distance
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError, MissingExtra
from kappaplace.files import make_folder, replace_file
from kappaplace.progress import track

_STAMP = ".source.json"
_WRITTEN = re.compile(r"\d{7}\.(jpg|png)")  # names that the readers give to the images they write


def frames_folder(folder: Path, source: Path, topic: str = "") -> Path:
    """The folder, made ready for the images of ``source`` (and, of a bag, one of its topics).

    Images of the same source are kept, so that an interrupted import goes on. When the source has changed
    since (size or time of writing), they are removed before the new stamp is written: whenever this stops, no
    image stands under a stamp that is not its own. A folder with images of something else is refused.
    """
    make_folder(folder)
    whose = {"name": source.name, "topic": topic}
    now = whose | _state(source)
    before = _stamp(folder / _STAMP)
    if before == now:
        return folder
    images = [file for file in folder.iterdir() if _WRITTEN.fullmatch(file.name)]
    if images and {key: before.get(key) for key in whose} != whose:
        owner = " ".join(filter(None, (before.get("name"), before.get("topic")))) or "another source"
        raise KappaPlaceError(
            f"{folder} holds images of {owner}, not of {' '.join(filter(None, whose.values()))}: "
            "choose another folder with frames=…."
        )
    for file in images:
        file.unlink()
    replace_file(folder / _STAMP, lambda part: part.write_text(json.dumps(now), encoding="utf-8"))
    return folder


def _state(source: Path) -> dict[str, int]:
    """Bytes and time of writing; of a bag that is a folder, over all its files."""
    files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
    facts = [file.stat() for file in files]
    latest = max((f.st_mtime_ns for f in facts), default=0)
    return {"bytes": sum(f.st_size for f in facts), "mtime_ns": latest}


def _stamp(file: Path) -> dict[str, Any]:
    try:
        stamp = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


_VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
_TRAJECTORIES = (".txt", ".tum", ".kitti", ".csv", ".gpx")


def read(
    folder: str | Path,
    *,
    video: str = "",
    trajectory: str = "",
    every: float = 2.0,
    offset: float = float("nan"),
    plane: str = "",
    frames: str = "",
    radius: float = DEFAULT_RADIUS,
) -> PlaceImages:
    """``folder`` holds video and trajectory; frames go to ``frames`` (default: folder/frames/VIDEO).

    ``offset`` is the trajectory's time of the first frame in seconds (default: its first pose). Frames
    already written are kept, so an interrupted import goes on where it stopped; those of an earlier film
    under the same name are replaced.
    """
    root = existing_folder(folder)
    film = chosen_file(root, video, _with_suffix(root, _VIDEOS), "video", "video")
    poses = chosen_file(root, trajectory, _with_suffix(root, _TRAJECTORIES), "trajectory", "trajectory")
    path = read_trajectory(poses, plane)
    count, rate = _facts(film)
    start = path.time[0] if np.isnan(offset) else offset
    seconds = np.arange(count) / rate
    clock = np.arange(float(count)) if path.by_frame else start + seconds
    positions = path.at(clock)
    rows = sample_by_distance(positions, every)
    if not len(rows):
        raise KappaPlaceError(
            f"No frame of {film.name} falls into the trajectory's time: set offset=… (seconds)."
        )
    out = frames_folder(Path(frames) if frames else root / "frames" / film.stem, film)
    names = _write_frames(film, rows, out)
    return PlaceImages.create(
        names,
        positions[rows],
        heading=headings(positions[rows]),
        timestamp=None if path.by_frame else clock[rows],
        condition=[film.stem] * len(rows),
        frame_number=rows,
        root=out,
        frame=path.frame,
        name=film.stem,
        radius=radius,
        neighborhood=Neighborhood("metres", radius),
    )


def _with_suffix(root: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [file for file in root.glob("*") if file.suffix.lower() in suffixes]


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise MissingExtra("Reading videos", "video") from None
    return cv2


def _facts(film: Path) -> tuple[int, float]:
    cv2 = _opencv()
    capture = cv2.VideoCapture(str(film))
    count, rate = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), float(capture.get(cv2.CAP_PROP_FPS))
    opened = capture.isOpened()
    capture.release()
    if not opened or count <= 0 or not rate > 0:
        raise KappaPlaceError(f"{film} cannot be opened as a video with a known length and frame rate.")
    return count, rate


def _write_frames(film: Path, rows: np.ndarray[Any, np.dtype[np.int64]], out: Path) -> list[str]:
    names = [f"{row:07d}.jpg" for row in rows]
    wanted = {int(row): name for row, name in zip(rows, names, strict=True) if not (out / name).is_file()}
    if not wanted:
        return names
    cv2 = _opencv()
    capture = cv2.VideoCapture(str(film))
    with track("Writing frames", max(wanted) + 1) as bar:
        for number in range(max(wanted) + 1):
            if not capture.grab():
                capture.release()
                raise KappaPlaceError(
                    f"{film} ends at frame {number}, before its trajectory does: is it damaged?"
                )
            if number in wanted:
                _write_frame(capture.retrieve()[1][:, :, ::-1], out / wanted[number])
            bar.advance()
    capture.release()
    return names


def _write_frame(pixels: Any, file: Path) -> None:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    replace_file(file, lambda part: image.save(part, format="JPEG", quality=95))


READER = Reader(
    "video",
    "a video and its trajectory (TUM, KITTI or GPX); frames are sampled by distance",
    read,
    {
        "video": "the video (default: the only one in the folder)",
        "trajectory": "the trajectory (default: the only .txt, .tum, .kitti, .csv or .gpx)",
        "every": "metres between frames (2)",
        "offset": "trajectory time of the first frame in seconds (default: its first pose)",
        "plane": "horizontal axes of the trajectory: xy (TUM), xz (KITTI)",
        "frames": "where frames are written (DIR/frames/VIDEO)",
        "radius": "metres within which a reference is a positive (25)",
    },
    extra="video",
)
