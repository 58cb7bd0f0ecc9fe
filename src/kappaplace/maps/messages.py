"""Answers as ROS messages, and as an MCAP file. The same code serves a running node and a file.

An accepted answer becomes a NavSatFix if the map has latitude and longitude, otherwise a
PoseWithCovarianceStamped in the frame of the map. Every answer becomes a diagnostic status with the reason.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from kappaplace.calibration.decision import Decision
from kappaplace.errors import import_extra
from kappaplace.files import write_file
from kappaplace.maps.answer import Localization

if TYPE_CHECKING:
    from numpy.typing import NDArray

POSE, FIX = "geometry_msgs/msg/PoseWithCovarianceStamped", "sensor_msgs/msg/NavSatFix"
DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
TOPICS = {POSE: "/kappaplace/pose", FIX: "/kappaplace/fix", DIAGNOSTICS: "/diagnostics"}
UNKNOWN = 1e6
"""Variance of a quantity that is not estimated, in m² or rad²."""
Types: TypeAlias = Callable[[str], Any]
"""Function that returns the class of a message by its name, such as ``sensor_msgs/msg/NavSatFix``."""


class Stamped(NamedTuple):
    """A message with its type and time."""

    kind: str
    time: float
    message: Any


def reason_of(answer: Localization) -> str:
    """Return why an answer was accepted or not, in a few words."""
    if not answer.matches:
        return "no reference in the searched area"
    if answer.decision == Decision.ACCEPT and answer.pose is None:
        return "accepted, but the position of the best match is unknown"
    if answer.in_map is False and answer.inside is not None:
        return f"probably outside the map: probability {answer.inside:.2f} of being on it"
    if answer.probability is None:
        unlike = [note for note in answer.notes if note.startswith("No probability")]
        return unlike[0].rstrip(".") if unlike else "no calibrated probability"
    return f"{answer.decision or 'no decision'}: probability {answer.probability:.2f}"


def ros_messages(answer: Localization, time: float, types: Types, radius: float) -> list[Stamped]:
    """Convert an answer to ROS messages.

    Args:
        answer: The answer.
        time: Time of its image in seconds.
        types: Function that returns the classes of the messages.
        radius: Radius of a place of the map in metres, for answers without a calibrated radius.

    Returns:
        A diagnostic status, and a pose or a fix if the answer is accepted and has a position.
    """
    header = _header(time, types)
    made = [Stamped(DIAGNOSTICS, time, _diagnostics(answer, header, types))]
    if answer.decision != Decision.ACCEPT or answer.pose is None:
        return made
    kind = POSE if answer.latitude is None else FIX
    message = (_pose if kind == POSE else _fix)(answer, header, types, _covariance(answer, radius))
    return [*made, Stamped(kind, time, message)]


def write_mcap(answers: Sequence[Localization], file: str | Path, radius: float) -> None:
    """Write answers as an MCAP file of ROS 2 messages.

    Args:
        answers: The answers. If a time is unknown, the images are a second apart.
        file: The .mcap file. An existing file is replaced.
        radius: Radius of a place of the map in metres.

    Raises:
        KappaPlaceError: If the package ``rosbags`` is missing or the file cannot be written.
    """
    rosbag2, typesys = (
        import_extra(f"rosbags.{name}", "Writing bags", "rosbag") for name in ("rosbag2", "typesys")
    )
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    times = [answer.time for answer in answers]
    stamps = [float(row) if None in times else time or 0.0 for row, time in enumerate(times)]
    with tempfile.TemporaryDirectory() as folder:
        bag = Path(folder) / "bag"
        with rosbag2.Writer(bag, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP) as writer:
            topics = {
                kind: writer.add_connection(topic, kind, typestore=store) for kind, topic in TOPICS.items()
            }
            for answer, time in zip(answers, stamps, strict=True):
                for each in ros_messages(answer, time, store.types.__getitem__, radius):
                    data = store.serialize_cdr(each.message, each.kind)
                    writer.write(topics[each.kind], round(each.time * 1e9), data)
        (written,) = bag.glob("*.mcap")
        write_file(Path(file), written.read_bytes())


def _header(time: float, types: Types) -> Any:
    nanoseconds = round(time * 1e9)
    stamp = types("builtin_interfaces/msg/Time")(
        sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000
    )
    return types("std_msgs/msg/Header")(stamp=stamp, frame_id="map")


def _diagnostics(answer: Localization, header: Any, types: Types) -> Any:
    status, pair = types("diagnostic_msgs/msg/DiagnosticStatus"), types("diagnostic_msgs/msg/KeyValue")
    accepted = answer.decision == Decision.ACCEPT and answer.pose is not None
    match = answer.matches[0].name if answer.matches else None
    values = {
        "image": answer.query,
        "decision": answer.decision,
        "probability": answer.probability,
        "in_map": answer.inside,
        "kappa": None if math.isnan(answer.kappa) else answer.kappa,
        "match": match,
    }
    known = [pair(key=key, value=str(value)) for key, value in values.items() if value is not None]
    level = status.OK if accepted else status.WARN
    each = status(
        level=level, name="kappaplace: localization", message=reason_of(answer), hardware_id="", values=known
    )
    return types(DIAGNOSTICS)(header=header, status=[each])


def _covariance(answer: Localization, radius: float) -> NDArray[np.float64]:
    """Return the covariance of east, north and heading (counterclockwise), 3×3."""
    assert answer.pose is not None
    if answer.covariance is not None:
        turn = np.diag([1.0, 1.0, -1.0])
        return turn @ np.array(answer.covariance, np.float64) @ turn
    if answer.radius is not None and answer.radius_level is not None and answer.radius_level < 1:
        variance = answer.radius**2 / (-2 * math.log(1 - answer.radius_level))
    else:
        variance = (radius / 2) ** 2
    return np.diag([variance, variance, UNKNOWN])


def _pose(answer: Localization, header: Any, types: Types, covariance: NDArray[np.float64]) -> Any:
    assert answer.pose is not None
    heading = answer.pose.heading
    yaw = 0.0 if math.isnan(heading) else math.radians(90.0 - heading)
    whole = np.diag(np.full(6, UNKNOWN))
    rows = np.array([0, 1, 5])
    whole[np.ix_(rows, rows)] = covariance
    point = types("geometry_msgs/msg/Point")(x=answer.pose.x, y=answer.pose.y, z=0.0)
    turn = types("geometry_msgs/msg/Quaternion")(x=0.0, y=0.0, z=math.sin(yaw / 2), w=math.cos(yaw / 2))
    pose = types("geometry_msgs/msg/Pose")(position=point, orientation=turn)
    with_covariance = types("geometry_msgs/msg/PoseWithCovariance")(pose=pose, covariance=whole.ravel())
    return types(POSE)(header=header, pose=with_covariance)


def _fix(answer: Localization, header: Any, types: Types, covariance: NDArray[np.float64]) -> Any:
    status = types("sensor_msgs/msg/NavSatStatus")
    whole = np.diag([0.0, 0.0, UNKNOWN])
    whole[:2, :2] = covariance[:2, :2]
    kind = types(FIX)
    return kind(
        header=header,
        status=status(status=0, service=0),
        latitude=answer.latitude,
        longitude=answer.longitude,
        altitude=math.nan,
        position_covariance=whole.ravel(),
        position_covariance_type=kind.COVARIANCE_TYPE_APPROXIMATED,
    )
