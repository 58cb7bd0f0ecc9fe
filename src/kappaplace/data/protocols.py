"""Named protocols: a benchmark's name means one exact table, and a table that differs is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kappaplace.data.place_images import DEFAULT_RADIUS, PlaceImages
from kappaplace.data.positives import NoPositives
from kappaplace.errors import KappaPlaceError

NATIVE = "native"  # images keep their size; queries of different sizes go one at a time


@dataclass(frozen=True)
class Protocol:
    """One benchmark: where its table comes from and what it must contain."""

    name: str
    layouts: dict[str, dict[str, Any]]
    """Layouts in which the set is found, with the reader's options; the first that fits is read."""
    queries: int | None
    references: int | None
    source: str
    """Who states the counts."""
    verified: bool = False
    """Counted on the published files by our own readers: a deviation is an error, else a warning."""
    split: str = "test"
    radius: float = DEFAULT_RADIUS
    resize: str = NATIVE
    no_positives: NoPositives = NoPositives.FAIL
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = (
            "name",
            "layouts",
            "split",
            "radius",
            "resize",
            "queries",
            "references",
            "source",
            "verified",
            "note",
        )
        return {key: getattr(self, key) for key in fields} | {"no_positives": self.no_positives.value}


@dataclass(frozen=True)
class ProtocolCheck:
    """What travels with every result: which protocol, which table, and what deviates."""

    protocol: str
    table_hash: str
    warnings: tuple[str, ...] = field(default=())


_SF_XL = 2_805_840
_COSPLACE = "CosPlace, arXiv 2204.02287"
_CROSS_DOMAIN = "Barbarani et al., arXiv 2304.05887"
_BENCHMARK = "Deep Visual Geo-localization Benchmark, arXiv 2204.03444"


def _sf_xl(name: str, queries: int, source: str) -> Protocol:
    options = {"split": "test", "queries": f"queries_{name}"}
    return Protocol(f"sf-xl-{name}", {"at-names": options}, queries, _SF_XL, source)


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        _sf_xl("v1", 1000, _COSPLACE),
        _sf_xl("v2", 598, _COSPLACE),
        _sf_xl("night", 466, _CROSS_DOMAIN),
        _sf_xl("occlusion", 76, _CROSS_DOMAIN),
        Protocol(
            "pitts30k-test",
            {"pitts-mat": {"split": "pitts30k_test"}, "at-names": {"split": "test"}},
            6816,
            10_000,
            "pitts30k_test.mat as published with NetVLAD, arXiv 1511.07247",
            verified=True,
        ),
        Protocol(
            "msls-val-740",
            {"msls": {"cities": "val", "queries": "subtask"}},
            740,
            18_871,
            "ground truth published with GSV-Cities, arXiv 2210.10239",
            split="val",
            resize="512x512",
            note="queries of the subtask 'all' that have a positive, panoramas left out",
        ),
        Protocol(
            "msls-val",
            {"msls": {"cities": "val", "queries": "all"}, "at-names": {"split": "val"}},
            11_084,
            18_871,
            _BENCHMARK,
            split="val",
            resize="512x512",
            note="every query of Copenhagen and San Francisco that is no panorama",
        ),
        Protocol(
            "amstertime",
            {"amstertime": {}, "at-names": {"split": "test"}},
            1231,
            1231,
            "verification.csv of AmsterTime v1.0, arXiv 2203.16291",
            verified=True,
            note="archival photos are the queries; one positive a query",
        ),
        Protocol(
            "nordland",
            {"at-names": {"split": "test"}},
            27_592,
            27_592,
            "Patch-NetVLAD's split, arXiv 2103.01486, in the VPR downloader's form",
            note="winter asks summer; 10 frames are made to lie within 25 m",
        ),
        Protocol(
            "tokyo247",
            {"at-names": {"split": "test"}},
            315,
            75_984,
            "Torii et al., CVPR 2015 (24/7 place recognition)",
        ),
        Protocol("st-lucia", {"at-names": {"split": "test"}}, 1464, 1549, _BENCHMARK),
        Protocol(
            "synthetic-city",
            {},
            None,
            None,
            "this package renders it; its counts follow from the city's settings",
            note="made by the package itself, not imported",
        ),
    )
}


def get_protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise KappaPlaceError(f"Protocol {name!r} is unknown; known are {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def check_protocol(table: PlaceImages, name: str) -> ProtocolCheck:
    """Compare a table with a protocol: a verified count that differs is an error, another one a warning."""
    protocol = get_protocol(name)
    if table.given_positives is None and table.radius != protocol.radius:
        raise KappaPlaceError(
            f"{name} asks for positives within {protocol.radius:g} m but the table has {table.radius:g} m."
        )
    found = {"queries": len(table.query_rows), "references": len(table.reference_rows)}
    expected = {"queries": protocol.queries, "references": protocol.references}
    wrong = [kind for kind in found if expected[kind] is not None and found[kind] != expected[kind]]
    warnings = []
    for kind in wrong:
        sentence = f"{name}: found {found[kind]:,} {kind}, expected {expected[kind]:,} ({protocol.source})"
        if protocol.verified:
            raise KappaPlaceError(f"{sentence}: check that the download is complete and the right subset.")
        warnings.append(f"{sentence}; the count is not verified here, so check the download or the count")
    return ProtocolCheck(name, table.content_hash, tuple(warnings))


def read_protocol(
    name: str, folder: str | Path, *, ask: Callable[[str], bool] | None = None, **options: Any
) -> tuple[PlaceImages, ProtocolCheck]:
    """Read a benchmark's folder in whichever of its layouts it comes, and check it."""
    from kappaplace.data.readers.registry import get_reader, read_layout

    protocol = get_protocol(name)
    if not protocol.layouts:
        raise KappaPlaceError(f"{name} is not imported from a folder: {protocol.source}.")
    reasons = []
    for layout, fixed in protocol.layouts.items():
        own = {key: value for key, value in options.items() if key in get_reader(layout).options}
        try:
            table = read_layout(layout, folder, ask=ask, **(fixed | own))
        except KappaPlaceError as error:
            reasons.append(f"{layout}: {error}")
            continue
        table = replace(table, name=name, protocol=name)
        return table, check_protocol(table, name)
    raise KappaPlaceError(f"{name} was not found in {folder}. " + " ".join(reasons))
