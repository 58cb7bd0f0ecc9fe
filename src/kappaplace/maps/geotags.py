"""Positions for photos without GPS: accepted answers of a map, compared with photos taken at about that time.

Photos that were taken within a few minutes of each other cannot be far apart. An accepted answer is held back
if it would need an implausible speed to or from a photo with GPS, or most other accepted answers. With
``between``, a photo without an accepted answer gets a position between two placed photos that are close to
each other in time and space. Doubtful answers that agree with their neighbors stay doubtful. On one of five
real routes, more than a third of their positions would be wrong (results/geotag_real.csv).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kappaplace.calibration.decision import Decision
from kappaplace.checks import Bools, Floats, Rows
from kappaplace.data.geodesy import frame_codes, project_point, unproject
from kappaplace.data.readers.layout import check_folder, images_or_error
from kappaplace.data.readers.photos import MAX_ACCURACY, PhotoPose, read_pose
from kappaplace.errors import KappaPlaceError
from kappaplace.files import make_folder
from kappaplace.maps.answer import Localization, decide_answer
from kappaplace.maps.geotag_files import Tag, has_sidecar, write_copies, write_sidecars
from kappaplace.maps.opened import OpenMap
from kappaplace.maps.options import GeotagOptions
from kappaplace.models.published import cache_folder
from kappaplace.progress import track
from kappaplace.records import RecordError, from_plain, to_plain
from kappaplace.types import Json

Status = Literal["GPS", "sidecar", "accepted", "between", "implausible", "not accepted", "unreadable"]
PLACED: tuple[Status, ...] = ("accepted", "between")
"""Photos that get a position."""
BETWEEN = 60.0
"""Maximum seconds between two placed photos that place a third one, because a walker stays near both."""
SHOWN = 3
"""Matches of a photo that are kept for the report."""


@dataclass(frozen=True)
class TagMatch:
    """A match of a photo."""

    name: str
    image: str
    reference: int
    similarity: float
    x: float | None
    y: float | None
    probability: float | None
    decision: str | None


@dataclass(frozen=True)
class TagAnswer:
    """Answer of the map to a photo."""

    matches: tuple[TagMatch, ...]
    probability: float | None
    decision: str | None
    guaranteed: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PhotoTag:
    """Result for one photo: its status, its position, and the evidence."""

    photo: Path
    status: Status
    reason: str
    """The evidence in words."""
    x: float | None = None
    """Metres in the frame of the map; None without a position."""
    y: float | None = None
    accuracy: float | None = None
    """Distance in metres within which the position is correct if the match is correct."""
    time: float | None = None
    """Clock of the camera, in seconds; None if unknown."""
    answer: TagAnswer | None = None


@dataclass(frozen=True)
class Geotags:
    """Positions for the photos of a folder."""

    root: Path
    place_map: Path
    frame: str
    tags: tuple[PhotoTag, ...]
    notes: tuple[str, ...]
    """Conditions of the answers."""

    def count(self, *statuses: Status) -> int:
        """Return the number of photos with one of these statuses."""
        return sum(tag.status in statuses for tag in self.tags)

    @property
    def sentence(self) -> str:
        """The result in words."""
        without = len(self.tags) - self.count("GPS", "sidecar")
        return (
            f"{self.count(*PLACED):,} of {without:,} photos without GPS get a position; "
            f"{self.count('implausible'):,} were accepted but contradict other photos."
        )

    def degrees(self, tag: PhotoTag) -> tuple[float, float] | None:
        """Return latitude and longitude of a photo; None if it has no position."""
        if tag.x is None or tag.y is None:
            return None
        latitude, longitude = unproject(np.array([[tag.x, tag.y]]), self.frame)
        return float(latitude[0]), float(longitude[0])

    @property
    def positions(self) -> list[Tag]:
        """The new positions, in degrees."""
        return [_tag(each, *degrees) for each in self.tags if (degrees := self._new(each)) is not None]

    def write(self) -> list[Path]:
        """Write an XMP sidecar next to each photo that gets a position.

        Returns:
            The written files. `undo_geotags` deletes them.
        """
        return write_sidecars(self.root, self.positions)

    def copy_to(self, folder: str | Path) -> list[Path]:
        """Write copies of the photos that get a position, with the position in their EXIF data.

        Args:
            folder: Folder of the copies, outside of the photos.

        Returns:
            The written files. `undo_geotags` deletes them.
        """
        return write_copies(Path(folder), self.root, self.positions)

    def to_dict(self) -> dict[str, Json]:
        """Return all photos as JSON values.

        Returns:
            The sentence, the notes, and one object per photo.
        """
        photos: list[Json] = []
        for tag in self.tags:
            degrees = self.degrees(tag)
            best = None if tag.answer is None or not tag.answer.matches else tag.answer.matches[0].name
            photos.append(
                {
                    "photo": str(tag.photo),
                    "status": tag.status,
                    "reason": tag.reason,
                    "latitude": None if degrees is None else degrees[0],
                    "longitude": None if degrees is None else degrees[1],
                    "accuracy": tag.accuracy,
                    "probability": None if tag.answer is None else tag.answer.probability,
                    "match": best,
                }
            )
        return {"sentence": self.sentence, "notes": list(self.notes), "photos": photos}

    def _new(self, tag: PhotoTag) -> tuple[float, float] | None:
        return self.degrees(tag) if tag.status in PLACED else None


def geotag(photos: str | Path, place_map: OpenMap, options: GeotagOptions | None = None) -> Geotags:
    """Find positions for the photos of a folder that have none. Nothing is written.

    Args:
        photos: Folder of photos.
        place_map: Map whose frame has latitude and longitude.
        options: Options of the search and of the comparison with other photos.

    Returns:
        One entry per photo; its methods write the positions.

    Raises:
        KappaPlaceError: If the map has no latitude and longitude or no calibration, or there is no photo.
    """
    options = options or GeotagOptions()
    manifest = place_map.manifest
    if not frame_codes(manifest.frame):
        raise KappaPlaceError(
            f"The map {place_map.folder} has no latitude and longitude, its frame is '{manifest.frame}'. "
            "Build it from photos with GPS."
        )
    calibration = place_map.calibration or place_map.borrowed
    if calibration is None or calibration.rule is None:
        raise KappaPlaceError(
            f"The map {place_map.folder} has no calibration with decisions, so no position would be "
            "accepted. Run `kappaplace calibrate`."
        )
    root = check_folder(photos)
    files = [root / name for name in images_or_error(root)]
    poses, problems = _poses(files)
    todo = [file for file in files if file in poses and not _has_gps(poses[file]) and not has_sidecar(file)]
    answers = _answers(place_map, todo, options, problems)
    tags = [_first(place_map, file, poses.get(file), answers.get(file), problems) for file in files]
    notes = dict.fromkeys(note for answer in answers.values() for note in answer.notes)
    return Geotags(
        root, place_map.folder, manifest.frame, tuple(_compared(tags, manifest.radius, options)), tuple(notes)
    )


def _poses(files: Sequence[Path]) -> tuple[dict[Path, PhotoPose], dict[Path, str]]:
    poses, problems = {}, {}
    with track("Reading EXIF", len(files)) as bar:
        for file in files:
            try:
                poses[file] = read_pose(file)
            except KappaPlaceError as error:
                problems[file] = str(error)
            bar.advance()
    return poses, problems


def _has_gps(pose: PhotoPose) -> bool:
    return math.isfinite(pose.latitude) and not pose.accuracy > MAX_ACCURACY


def _first(
    place_map: OpenMap,
    file: Path,
    pose: PhotoPose | None,
    answer: TagAnswer | None,
    problems: dict[Path, str],
) -> PhotoTag:
    """Return the status of a photo before it is compared with others."""
    if pose is None or file in problems:
        return PhotoTag(file, "unreadable", problems[file])
    time = pose.clock if math.isfinite(pose.clock) else None
    if _has_gps(pose):
        x, y = project_point(pose.latitude, pose.longitude, place_map.manifest.frame)
        return PhotoTag(file, "GPS", "it has a position", x, y, time=time)
    if answer is None:
        return PhotoTag(file, "sidecar", "it has a sidecar, which is not replaced", time=time)
    best = answer.matches[0] if answer.matches else None
    if answer.decision == Decision.ACCEPT and best is not None and best.x is not None:
        reason = f"{_sure(answer)} that it shows the place of {best.name}"
        radius = place_map.manifest.radius
        return PhotoTag(file, "accepted", reason, best.x, best.y, radius, time, answer)
    outcome = "no decision" if answer.decision is None else str(answer.decision)
    reason = f"{outcome}: {_sure(answer)} for the best match" if best is not None else "no match"
    return PhotoTag(file, "not accepted", reason, time=time, answer=answer)


def _sure(answer: TagAnswer) -> str:
    return "unknown probability" if answer.probability is None else f"probability {answer.probability:.2f}"


def _tag(tag: PhotoTag, latitude: float, longitude: float) -> Tag:
    details = {"Status": tag.status, "Reason": tag.reason}
    if tag.answer is not None and tag.answer.probability is not None:
        details["Probability"] = f"{tag.answer.probability:.4f}"
    return Tag(tag.photo, latitude, longitude, tag.accuracy or 0.0, details)


def _compared(tags: Sequence[PhotoTag], radius: float, options: GeotagOptions) -> Iterator[PhotoTag]:
    """Compare photos with those taken shortly before and after."""
    times = np.array([math.nan if tag.time is None else tag.time for tag in tags])
    points = np.array([[tag.x, tag.y] for tag in tags], np.float64)  # None becomes NaN
    fixed = np.array([tag.status == "GPS" for tag in tags])
    accepted = np.array([tag.status == "accepted" for tag in tags])
    reach = 60 * options.minutes
    against = implausible(times, points, fixed, accepted, (radius, reach, options.speed))
    placed = fixed | (accepted & (against < 0))
    middle = (
        between(times, points, placed, radius, reach) if options.between else np.full(points.shape, np.nan)
    )
    for row, tag in enumerate(tags):
        if tag.status == "accepted" and against[row] >= 0:
            other = tags[against[row]]
            gap = float(np.hypot(*(points[row] - points[against[row]])))
            seconds = abs(times[row] - times[against[row]])
            reason = f"{gap:,.0f} m from {other.photo.name}, taken {seconds:,.0f} s apart"
            yield PhotoTag(tag.photo, "implausible", reason, time=tag.time, answer=tag.answer)
        elif tag.status == "not accepted" and np.isfinite(middle[row, 0]):
            x, y = middle[row].tolist()
            reason = f"taken between two photos with a position, at most {radius:g} m and {BETWEEN:g} s apart"
            yield PhotoTag(tag.photo, "between", reason, x, y, 2 * radius, tag.time, tag.answer)
        else:
            yield tag


def implausible(
    times: Floats, points: Floats, fixed: Bools, accepted: Bools, limits: tuple[float, float, float]
) -> Rows:
    """Find accepted answers that contradict other photos.

    Two photos contradict each other if they were taken within ``reach`` seconds and moving between them needs
    more than ``speed``. The distance is that of their positions, less twice the radius. Answers that
    contradict a photo with GPS are held back first, then again and again the answers with the most
    contradictions.

    Args:
        times: Seconds, N; NaN if unknown.
        points: Positions in metres, N×2; NaN if unknown.
        fixed: Photos with GPS, N.
        accepted: Accepted answers, N.
        limits: Radius in metres, reach in seconds, and speed in metres per second.

    Returns:
        The photo that each answer contradicts, N; −1 if it contradicts none.
    """
    against = np.full(len(times), -1, np.int64)
    one, other = _contradictions(times, points, fixed | accepted, limits)
    one, other = one[accepted[one]], other[accepted[one]]
    first = fixed[other]
    against[one[first]] = other[first]
    while True:
        active = ~fixed[other] & (against[one] < 0) & (against[other] < 0)
        counts = np.bincount(one[active], minlength=len(times))
        if not counts.any():
            return against
        worst = active & (counts[one] == counts.max())
        against[one[worst]] = other[worst]


def _contradictions(
    times: Floats, points: Floats, placed: Bools, limits: tuple[float, float, float]
) -> tuple[Rows, Rows]:
    """Return all pairs of photos that contradict each other, in both orders."""
    radius, reach, speed = limits
    rows = np.flatnonzero(placed & np.isfinite(times))
    rows = rows[np.argsort(times[rows], kind="stable")]
    ends = np.searchsorted(times[rows], times[rows] + reach, side="right")
    pairs = [np.empty((2, 0), np.int64)]
    for start, end in enumerate(ends.tolist()):  # row by row, because a trip has too many pairs of photos
        row, later = rows[start], rows[start + 1 : end]
        gap = np.hypot(*(points[later] - points[row]).T)
        clash = later[gap - 2 * radius > speed * (times[later] - times[row])]
        pairs += [np.stack([np.full(len(clash), row), clash]), np.stack([clash, np.full(len(clash), row)])]
    one, other = np.concatenate(pairs, axis=1)
    return one, other


def between(times: Floats, points: Floats, placed: Bools, radius: float, reach: float) -> Floats:
    """Interpolate the positions of photos between two placed ones.

    Args:
        times: Seconds, N; NaN if unknown.
        points: Positions in metres, N×2; NaN if unknown.
        placed: Photos with a position that others may be placed by, N.
        radius: Both photos must be at most this far apart, in metres.
        reach: Both photos must have been taken at most this many seconds apart.

    Returns:
        Positions, N×2; NaN without two such photos.
    """
    result = np.full(points.shape, np.nan)
    anchors = np.flatnonzero(placed & np.isfinite(times))
    anchors = anchors[np.argsort(times[anchors], kind="stable")]
    if len(anchors) < 2:
        return result
    after = np.searchsorted(times[anchors], times)
    for row in np.flatnonzero(~placed & np.isfinite(times) & (after > 0) & (after < len(anchors))).tolist():
        a, b = anchors[after[row] - 1], anchors[after[row]]
        span = times[b] - times[a]
        if span <= reach and np.hypot(*(points[b] - points[a])) <= radius:
            part = (times[row] - times[a]) / span if span else 0.5
            result[row] = points[a] + part * (points[b] - points[a])
    return result


def _answers(
    place_map: OpenMap, files: Sequence[Path], options: GeotagOptions, problems: dict[Path, str]
) -> dict[Path, TagAnswer]:
    """Localize photos. Every answer is stored immediately, so that an interrupted run resumes."""
    store = _store(place_map, options)
    answers = _stored(store, files)
    todo = [file for file in files if file not in answers]
    with track("Localizing", len(todo)) as bar:
        for start in range(0, len(todo), options.batch_size):
            part = todo[start : start + options.batch_size]
            good = [file for file in part if _decodes(place_map, file, problems)]
            if good:
                batch = place_map.localize(good, rerank=options.rerank, batch_size=options.batch_size)
                new = {
                    file: _short(place_map, answer, options) for file, answer in zip(good, batch, strict=True)
                }
                answers |= new
                _keep(store, new)
            bar.advance(len(part))
    return answers


def _decodes(place_map: OpenMap, file: Path, problems: dict[Path, str]) -> bool:
    try:
        place_map.model.preprocessing.image(file)
    except KappaPlaceError as error:
        problems[file] = str(error)
    return file not in problems


def _short(place_map: OpenMap, answer: Localization, options: GeotagOptions) -> TagAnswer:
    """Return the part of an answer that is kept, decided for the risk of the options."""
    if options.max_risk is not None:
        calibration = place_map.calibration or place_map.borrowed
        answer = decide_answer(answer, calibration, place_map.manifest.radius, options.max_risk).answer
    matches = tuple(
        TagMatch(
            match.name,
            match.image,
            match.reference,
            match.similarity,
            match.x if math.isfinite(match.x) else None,
            match.y if math.isfinite(match.y) else None,
            match.probability,
            match.decision,
        )
        for match in answer.matches[:SHOWN]
    )
    return TagAnswer(matches, answer.probability, answer.decision, answer.guaranteed, answer.notes)


def _store(place_map: OpenMap, options: GeotagOptions) -> Path | None:
    """Return the file of stored answers; it depends on the map, its calibration and the options."""
    calibration = place_map.calibration or place_map.borrowed
    fingerprint = "" if calibration is None else calibration.fingerprint
    parts = [to_plain(place_map.manifest), options.rerank, options.max_risk, fingerprint]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
    with suppress(KappaPlaceError):  # a read-only disk: nothing is stored
        return make_folder(cache_folder() / "geotag") / f"{key}.jsonl"
    return None


def _identity(file: Path) -> list[Json]:
    stat = file.stat()
    return [str(file.resolve()), stat.st_size, stat.st_mtime_ns]


def _stored(store: Path | None, files: Sequence[Path]) -> dict[Path, TagAnswer]:
    answers: dict[str, TagAnswer] = {}
    if store is not None and store.is_file():
        for line in store.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError, RecordError):  # a line of a killed process
                row = json.loads(line)
                answers[json.dumps(row["photo"])] = from_plain(TagAnswer, row["answer"])
    keys = {file: json.dumps(_identity(file)) for file in files} if answers else {}
    return {file: answers[key] for file, key in keys.items() if key in answers}


def _keep(store: Path | None, answers: dict[Path, TagAnswer]) -> None:
    if store is None:
        return
    rows = [{"photo": _identity(file), "answer": to_plain(answer)} for file, answer in answers.items()]
    # a full disk: the stored answers only save time
    with suppress(OSError), store.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows))
