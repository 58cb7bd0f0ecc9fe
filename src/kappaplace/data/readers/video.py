"""A video and the trajectory of its camera: frames are sampled by distance and written as images."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kappaplace.data.readers.layout import Reader, check_folder, select_file
from kappaplace.data.readers.trajectory import Trajectory, headings, read_trajectory, sample_by_distance
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError, import_extra
from kappaplace.files import make_folder, replace_file, write_file
from kappaplace.progress import track
from kappaplace.types import Json

_STAMP = ".source.json"
_WRITTEN = re.compile(r"\d{7}\.(jpg|png)")  # names of the images that the readers write


def frames_table(
    files: list[Path],
    path: Trajectory,
    time: NDArray[np.float64],
    rows: NDArray[np.int64],
    source: Path,
    radius: float,
) -> PlaceImages:
    """Build the table of frames sampled from a video or a bag.

    Args:
        files: Image files of the sampled frames.
        path: Trajectory of the camera.
        time: Time of every frame.
        rows: Numbers of the sampled frames.
        source: The video or bag.
        radius: Distance in metres within which a reference is a positive.

    Returns:
        The table.
    """
    positions = path.at(time[rows])
    return PlaceImages.create(
        [file.name for file in files],
        positions,
        heading=headings(positions),
        timestamp=None if path.by_frame else time[rows],
        condition=[source.stem] * len(rows),
        frame_number=rows,
        accuracy=path.accuracy_at(time[rows]),
        root=files[0].parent,
        frame=path.frame,
        name=source.stem,
        radius=radius,
    )


def frames_folder(folder: Path, source: Path, topic: str = "") -> Path:
    """Prepare a folder for the images of a video or of a bag's topic.

    The folder stores the source in a stamp file. Images of the same source are kept, so an interrupted import
    resumes. If the source has changed (size or modification time), its images are removed before the new
    stamp is written. Images and stamp therefore agree after any interruption.

    Args:
        folder: The folder.
        source: The video or bag.
        topic: Topic of the images in a bag.

    Returns:
        The folder.

    Raises:
        KappaPlaceError: If the folder contains images of another source.
    """
    make_folder(folder)
    identity = {"name": source.name, "topic": topic}
    stamp: dict[str, Json] = {**identity, **_state(source)}
    previous = _read_stamp(folder / _STAMP)
    if previous == stamp:
        return folder
    images = [file for file in folder.iterdir() if _WRITTEN.fullmatch(file.name)]
    if images and {key: previous.get(key) for key in identity} != identity:
        owner = " ".join(str(previous[key]) for key in identity if previous.get(key)) or "another source"
        raise KappaPlaceError(
            f"{folder} contains images of {owner}, not of {' '.join(filter(None, identity.values()))}. "
            "Choose another folder with frames=…."
        )
    for file in images:
        file.unlink()
    write_file(folder / _STAMP, json.dumps(stamp))
    return folder


def _state(source: Path) -> dict[str, int]:
    """Return size and modification time; for a bag that is a folder, over all its files."""
    files = sorted(f for f in source.rglob("*") if f.is_file()) if source.is_dir() else [source]
    facts = [file.stat() for file in files]
    latest = max((f.st_mtime_ns for f in facts), default=0)
    return {"bytes": sum(f.st_size for f in facts), "mtime_ns": latest}


def _read_stamp(file: Path) -> dict[str, Json]:
    try:
        stamp = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


VIDEOS = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
_TRAJECTORIES = (".txt", ".tum", ".kitti", ".csv", ".gpx")
EXTRA = ("Reading videos", "video")


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
    """Read frames and positions of a video.

    An interrupted import resumes. Frames of an earlier video with the same name are replaced.

    Args:
        folder: Folder with the video and the trajectory.
        video: The video. Default: the only one in the folder.
        trajectory: The trajectory. Default: the only .txt, .tum, .kitti, .csv or .gpx in the folder.
        every: Distance between frames in metres. Default: 2.
        offset: Time of the first frame, in seconds of the trajectory. Default: time of the first pose.
        plane: Horizontal axes of the trajectory: xy, xz or yz. Default: xy for TUM, xz for KITTI.
        frames: Folder for the frames. Default: FOLDER/frames/VIDEO.
        radius: Distance in metres within which a reference is a positive. Default: 25.

    Returns:
        The table.
    """
    root = check_folder(folder)
    file = select_file(root, video, _with_suffix(root, VIDEOS), "video", "video")
    poses = select_file(root, trajectory, _with_suffix(root, _TRAJECTORIES), "trajectory", "trajectory")
    path = read_trajectory(poses, plane)
    count, rate = _length_and_rate(file)
    start = path.time[0] if np.isnan(offset) else offset
    time = np.arange(float(count)) if path.by_frame else start + np.arange(count) / rate
    rows = sample_by_distance(path.at(time), every)
    if not len(rows):
        raise KappaPlaceError(
            f"{file.name} has no frame within the trajectory. Set offset=SECONDS, the time of the first "
            "frame in the trajectory."
        )
    out = frames_folder(Path(frames) if frames else root / "frames" / file.stem, file)
    return frames_table(_write_frames(file, rows, out), path, time, rows, file, radius)


def _with_suffix(root: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [file for file in root.glob("*") if file.suffix.lower() in suffixes]


def _length_and_rate(file: Path) -> tuple[int, float]:
    cv2 = import_extra("cv2", *EXTRA)
    capture = cv2.VideoCapture(str(file))
    count, rate = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), float(capture.get(cv2.CAP_PROP_FPS))
    opened = capture.isOpened()
    capture.release()
    if not opened or count <= 0 or not rate > 0:
        raise KappaPlaceError(f"{file} is not a video with known length and frame rate. Convert it.")
    return count, rate


def _write_frames(file: Path, rows: NDArray[np.int64], out: Path) -> list[Path]:
    files = [out / f"{row:07d}.jpg" for row in rows]
    missing = {int(row): image for row, image in zip(rows, files, strict=True) if not image.is_file()}
    if not missing:
        return files
    capture = import_extra("cv2", *EXTRA).VideoCapture(str(file))
    with track("Writing frames", max(missing) + 1) as bar:
        for number in range(max(missing) + 1):
            if not capture.grab():
                capture.release()
                raise KappaPlaceError(f"{file} is damaged and ends at frame {number}. Replace it.")
            if number in missing:
                _write_frame(capture.retrieve()[1][:, :, ::-1], missing[number])
            bar.advance()
    capture.release()
    return files


def _write_frame(pixels: NDArray[np.uint8], file: Path) -> None:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    replace_file(file, lambda part: image.save(part, format="JPEG", quality=95))


READER = Reader(
    "video",
    "a video and its trajectory (TUM, KITTI or GPX); frames are sampled by distance",
    read,
    extra="video",
)
