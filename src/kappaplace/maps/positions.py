"""Estimated positions as GeoJSON, GPX or KML, for GIS programs, phones and globes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree

from kappaplace.calibration.decision import Decision
from kappaplace.data.geodesy import LOCAL_FRAME
from kappaplace.errors import KappaPlaceError
from kappaplace.files import write_file
from kappaplace.maps.answer import Localization, write_csv
from kappaplace.maps.messages import write_mcap
from kappaplace.types import Json
from kappaplace.version import package_version

FORMATS = (".csv", ".geojson", ".gpx", ".kml", ".mcap")
GPX, KML = "http://www.topografix.com/GPX/1/1", "http://www.opengis.net/kml/2.2"
OWN = "urn:kappaplace:gpx"
"""Namespace of the facts that GPX has no element for. It is only a name."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_positions_file(file: str | Path, frame: str) -> None:
    """Fail early if positions cannot be written to a file.

    Args:
        file: Path of the file. Its suffix selects the format.
        frame: Frame of the map.

    Raises:
        KappaPlaceError: If the suffix is unknown, or the format needs degrees and the frame is local.
    """
    suffix = Path(file).suffix.lower()
    if suffix not in FORMATS:
        raise KappaPlaceError(
            f"Positions are written to {', '.join(FORMATS[:-1])} or {FORMATS[-1]} files, got '{file}'. "
            "Choose one of these suffixes."
        )
    if frame == LOCAL_FRAME and suffix in (".gpx", ".kml"):
        raise KappaPlaceError(
            f"{suffix} files need latitude and longitude, and the map has no location on Earth. Write "
            ".geojson or .csv instead."
        )


def write_positions(answers: Sequence[Localization], file: str | Path, place_radius: float = 25.0) -> None:
    """Write where images were taken to a .csv, .geojson, .gpx, .kml or .mcap file.

    GPX and KML omit answers without a position; GeoJSON writes them without a geometry. In GPX, answers with
    a time are a track of the accepted ones, interrupted where one is not accepted; others are waypoints. In a
    local frame, GeoJSON has metres, which the member ``kappaplace`` states.

    Args:
        answers: Answers of `PlaceMap.localize`.
        file: Path of the file. Its suffix selects the format.
        place_radius: Radius of a place in metres, from which .mcap files estimate an unknown covariance.

    Raises:
        KappaPlaceError: If the suffix is unknown, or the format needs degrees and the frame is local.
    """
    file = Path(file)
    for frame in dict.fromkeys(answer.frame for answer in answers) or ("",):
        check_positions_file(file, frame)
    suffix = file.suffix.lower()
    if suffix == ".csv":
        write_csv(answers, file)
    elif suffix == ".mcap":
        write_mcap(answers, file, place_radius)
    elif suffix == ".geojson":
        write_file(file, _geojson(answers))
    else:
        root = _gpx(answers) if suffix == ".gpx" else _kml(answers)
        ElementTree.indent(root)
        write_file(file, ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n")


def _facts(answer: Localization) -> dict[str, str | float]:
    """Return what is known of an answer besides its position."""
    pose, best = answer.pose, answer.matches[0] if answer.matches else None
    facts: dict[str, str | float | None] = {
        "match": None if best is None else best.name,
        "decision": answer.decision,
        "probability": answer.probability,
        "radius": answer.radius,
        "radius_level": answer.radius_level,
        "radius_source": answer.radius_source,
        "far": answer.far,
        "heading": None if pose is None else pose.heading,
        "x": None if pose is None else pose.x,
        "y": None if pose is None else pose.y,
        "frame": answer.frame,
    }
    return {key: value for key, value in facts.items() if value is not None and value == value}


def _geojson(answers: Sequence[Localization]) -> bytes:
    features: list[Json] = []
    for answer in answers:
        point: Json = None
        if answer.pose is not None:
            degrees = (answer.longitude, answer.latitude)
            local = [answer.pose.x, answer.pose.y]
            point = {"type": "Point", "coordinates": local if None in degrees else list(degrees)}
        properties = {"query": answer.query, "sentence": answer.sentence, **_facts(answer)}
        features.append({"type": "Feature", "geometry": point, "properties": properties})
    local_frame = any(answer.frame == LOCAL_FRAME for answer in answers)
    collection: dict[str, Json] = {
        "type": "FeatureCollection",
        "kappaplace": {"coordinates": "metres" if local_frame else "WGS 84"},
        "features": features,
    }
    return (json.dumps(collection, indent=1) + "\n").encode()


def _gpx(answers: Sequence[Localization]) -> ElementTree.Element:
    ElementTree.register_namespace("kappaplace", OWN)
    root = ElementTree.Element(
        "gpx", {"version": "1.1", "creator": f"KappaPlace {package_version()}", "xmlns": GPX}
    )
    track = segment = None
    for answer in answers:
        timed = answer.time is not None
        accepted = answer.decision == Decision.ACCEPT
        if answer.latitude is None or answer.longitude is None or (timed and not accepted):
            segment = None
            continue
        if timed and segment is None:
            track = ElementTree.Element("trk") if track is None else track
            segment = ElementTree.SubElement(track, "trkseg")
        at = {"lat": f"{answer.latitude:.8f}", "lon": f"{answer.longitude:.8f}"}
        parent = root if segment is None or not timed else segment
        point = ElementTree.SubElement(parent, "trkpt" if timed else "wpt", at)
        if answer.time is not None:
            _text(
                point,
                "time",
                datetime.fromtimestamp(answer.time, timezone.utc).isoformat(timespec="milliseconds"),
            )
        _text(point, "name", answer.query)
        _text(point, "desc", answer.sentence)
        if answer.decision is not None:
            _text(point, "type", answer.decision)
        extensions = ElementTree.SubElement(point, "extensions")
        for key, value in _facts(answer).items():
            _text(extensions, f"{{{OWN}}}{key}", value)
    if track is not None:  # after all waypoints, as the format requires
        root.append(track)
    return root


def _kml(answers: Sequence[Localization]) -> ElementTree.Element:
    root = ElementTree.Element("kml", {"xmlns": KML})
    document = ElementTree.SubElement(root, "Document")
    for answer in _placed(answers):
        mark = ElementTree.SubElement(document, "Placemark")
        _text(mark, "name", answer.query)
        _text(mark, "description", answer.sentence)
        data = ElementTree.SubElement(mark, "ExtendedData")
        for key, value in _facts(answer).items():
            _text(ElementTree.SubElement(data, "Data", {"name": key}), "value", value)
        point = ElementTree.SubElement(mark, "Point")
        _text(point, "coordinates", f"{answer.longitude:.8f},{answer.latitude:.8f}")
    return root


def _placed(answers: Sequence[Localization]) -> list[Localization]:
    return [answer for answer in answers if answer.latitude is not None and answer.longitude is not None]


def _text(parent: ElementTree.Element, tag: str, value: str | float) -> None:
    """Add an element with text; characters that XML does not allow become escapes."""
    text = value if isinstance(value, str) else f"{value:.12g}"
    text = text.encode("utf-8", "backslashreplace").decode()
    ElementTree.SubElement(parent, tag).text = _NOT_XML.sub(lambda m: f"\\x{ord(m[0]):02x}", text)
