"""Named protocols: a benchmark's name means one exact table, and a table that differs is told so.

What a written synthetic city knows of its images: the condition that does most damage to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kappaplace.data.positives import NoPositives
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError

if TYPE_CHECKING:
    from kappaplace.data.images import Preprocessing


CLEAR = "clear"  # an image under no condition at all


def with_city_conditions(table: PlaceImages) -> PlaceImages:
    """Fill ``condition`` from the conditions.csv that `kappaplace city` writes beside its split folders.

    It lies in the table's root, or above it where a single split was imported; without it, or for images
    that it does not name, nothing changes.
    """
    from kappaplace.data.readers.text import number, read_rows
    from kappaplace_city.files import CONDITIONS_FILE
    from kappaplace_city.weather import WEIGHTS

    root = table.root.absolute()
    home = next((place for place in (root, root.parent) if (place / CONDITIONS_FILE).is_file()), None)
    if home is None:
        return table
    head = "" if home == root else f"{root.name}/"
    worst: dict[str, str] = {}
    for row in read_rows(home / CONDITIONS_FILE, ("file", *WEIGHTS)):
        # Levels are weighed as in `Conditions.damage`: half a fog hides more of a place than a whole winter.
        damage = {name: weight * number(row[name]) for name, weight in WEIGHTS.items()}
        name = max(damage, key=lambda key: damage[key])
        worst[row["file"]] = name if damage[name] > 0 else CLEAR
    known = zip(table.paths.tolist(), table.condition.tolist(), strict=True)
    condition = [worst.get(head + path, old) for path, old in known]
    return replace(table, condition=np.array(condition, dtype=np.dtypes.StringDType()))


NATIVE: dict[str, Any] = {"mode": "none"}  # images keep their size; other sizes go one at a time
_512 = {"mode": "exact", "size": [512, 512]}
# The only options a user may add: they say where files lie, never which images belong to the benchmark.
LOCATION_OPTIONS = frozenset({"mat", "query_folder", "database"})


@dataclass(frozen=True)
class Protocol:
    """One benchmark: where its table comes from and what it must contain."""

    name: str
    layouts: dict[str, dict[str, Any]]
    """Layouts in which the set is found, with the reader's options; the first that fits is read."""
    queries: int
    references: int
    source: str
    """Who states the counts."""
    verified: bool = False
    """Counted on the published files by our own readers: a deviation is an error, else a warning."""
    split: str = "test"
    radius: float = DEFAULT_RADIUS
    resize: dict[str, Any] = field(default_factory=lambda: NATIVE)
    """How images are resized: settings of `Preprocessing`, kept as such because that one imports torch."""
    no_positives: NoPositives = NoPositives.FAIL
    """What is done with queries without positives, unless the user says otherwise."""
    note: str = ""
    finish: Callable[[PlaceImages], PlaceImages] | None = None
    """Adds what the layout's reader does not know of this set."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The resizing of the protocol, ready to use; normalisation belongs to the model."""
        from kappaplace.data.images import Preprocessing

        return Preprocessing.from_dict(self.resize)

    @property
    def options(self) -> tuple[str, ...]:
        """Options that a user may add, over all its layouts."""
        from kappaplace.data.readers import get_reader

        known = {key for layout in self.layouts for key in get_reader(layout).options}
        return tuple(sorted(known & LOCATION_OPTIONS))

    def to_json(self) -> dict[str, Any]:
        """Everything that decides an evaluation, as plain values."""
        fields = ("name", "layouts", "split", "radius", "resize", "queries", "references", "source")
        plain = {key: getattr(self, key) for key in (*fields, "verified", "note")}
        return plain | {"no_positives": self.no_positives.value, "options": list(self.options)}

    def resize_text(self) -> str:
        """The resizing in words."""
        if self.resize["mode"] == "none":
            return "native size"
        height, width = self.resize["size"]
        return f"resized to {height}×{width} ({self.resize['mode']})"


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
            resize=_512,
            note="queries of the subtask 'all' that have a positive, panoramas left out",
        ),
        Protocol(
            "msls-val",
            {"msls": {"cities": "val", "queries": "all"}, "at-names": {"split": "val"}},
            11_084,
            18_871,
            _BENCHMARK,
            split="val",
            resize=_512,
            note="every query of Copenhagen and San Francisco that is no panorama",
        ),
        Protocol(
            "amstertime",
            {"amstertime-csv": {}, "at-names": {"split": "test"}},
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
            {"at-names": {"split": "test"}},
            400,
            640,
            "kappaplace city --out DIR, with its default settings",
            verified=True,
            note="the condition that damages an image most, or clear, is taken from conditions.csv",
            finish=with_city_conditions,
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
    wrong = [kind for kind in found if found[kind] != expected[kind]]
    warnings = []
    for kind in wrong:
        sentence = f"{name}: found {found[kind]:,} {kind}, expected {expected[kind]:,} ({protocol.source})"
        if protocol.verified:
            raise KappaPlaceError(f"{sentence}: check that the download is complete and the right subset.")
        warnings.append(f"{sentence}; the count is not verified here, so check the download or the count")
    return ProtocolCheck(name, table.content_hash, tuple(warnings))


def read_protocol(
    name: str,
    folder: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    ask: Callable[[str], bool] | None = None,
    table_name: str = "",
) -> tuple[PlaceImages, ProtocolCheck]:
    """Read a benchmark's folder in whichever of its layouts it comes, and check it.

    ``options`` may only say where files lie (`Protocol.options`). ``table_name`` is the table's name, by
    default the protocol's; it is part of the hash, so it is set before the check.
    """
    from kappaplace.data.readers import read_layout

    protocol = get_protocol(name)
    given = dict(options or {})  # a mapping, so that no name a user types can pass for a parameter above
    reasons = []
    for layout in _fitting_layouts(protocol, given):
        try:
            table = read_layout(layout, folder, ask=ask, **(protocol.layouts[layout] | given))
        except KappaPlaceError as error:
            reasons.append(f"{layout}: {error}")
            continue
        if protocol.finish is not None:
            table = protocol.finish(table)
        table = replace(table, name=table_name or name, protocol=name)
        return table, check_protocol(table, name)
    raise KappaPlaceError(f"{name} was not found in {folder}. " + " ".join(reasons))


def _fitting_layouts(protocol: Protocol, options: dict[str, Any]) -> list[str]:
    """The layouts that know every option given; an option that would make it another set is refused."""
    from kappaplace.data.readers import get_reader

    allowed = ", ".join(protocol.options) or "none"
    for key in options:
        known = any(key in get_reader(layout).options for layout in protocol.layouts)
        if key in protocol.options:
            continue
        why = "fixes" if known else "knows no option"
        raise KappaPlaceError(
            f"The protocol {protocol.name} {why} {key}; options that only say where files lie: {allowed}."
        )
    part = str(protocol.layouts.get("pitts-mat", {}).get("split", ""))
    if "mat" in options and part not in Path(str(options["mat"])).stem:
        raise KappaPlaceError(
            f"{protocol.name} is read from a file named {part}*.mat, not from {options['mat']}."
        )
    fitting = [x for x in protocol.layouts if set(options) <= set(get_reader(x).options)]
    if not fitting:
        raise KappaPlaceError(f"No layout of {protocol.name} takes all of {', '.join(options)} at once.")
    return fitting
