"""Benchmark protocols: each name identifies one exact table, and a table that differs is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kappaplace.checks import choice
from kappaplace.data.images import Preprocessing
from kappaplace.data.positives import NoPositives
from kappaplace.data.readers import READERS, read_layout
from kappaplace.data.readers.layout import number, read_rows
from kappaplace.data.table import DEFAULT_RADIUS, PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace.types import Json

CLEAR = "clear"  # an image without any degrading condition


def with_city_conditions(table: PlaceImages) -> PlaceImages:
    """Fill in the ``condition`` of a synthetic city: for each image, the condition that degrades it most.

    `kappaplace data city` writes conditions.csv next to the folders of the splits. It is in the root of the
    table, or one level above if a single split was imported. Images that it does not list remain unchanged.
    """
    from kappaplace_city.files import CONDITIONS_FILE
    from kappaplace_city.weather import WEIGHTS

    root = table.root.absolute()
    home = next((folder for folder in (root, root.parent) if (folder / CONDITIONS_FILE).is_file()), None)
    if home is None:
        return table
    head = "" if home == root else f"{root.name}/"
    worst: dict[str, str] = {}
    for row in read_rows(home / CONDITIONS_FILE, ("file", *WEIGHTS)):
        # Weighted as in `Conditions.damage`: half a fog hides more of a place than a full winter.
        damage = {name: weight * number(row[name]) for name, weight in WEIGHTS.items()}
        name = max(damage, key=lambda key: damage[key])
        worst[row["file"]] = name if damage[name] > 0 else CLEAR
    pairs = zip(table.paths.tolist(), table.condition.tolist(), strict=True)
    condition = [worst.get(head + path, old) for path, old in pairs]
    return replace(table, condition=np.array(condition, dtype=np.dtypes.StringDType()))


NATIVE: dict[str, Json] = {"mode": "none"}  # images keep their size; batches contain images of one size
_512: dict[str, Json] = {"mode": "exact", "size": [512, 512]}
# The only options that users may add: locations of files, which do not change the images of the benchmark.
LOCATION_OPTIONS = frozenset({"mat", "query_folder", "database"})


@dataclass(frozen=True)
class Protocol:
    """One benchmark: the layouts of its dataset, and the expected content of its table."""

    name: str
    """Name of the benchmark, for the command line and for results."""
    layouts: dict[str, dict[str, str]]
    """Folder layouts of the dataset, with the options of their readers. The first that fits is used."""
    queries: int
    """Expected number of queries."""
    references: int
    """Expected number of references."""
    source: str
    """Publication or file from which the two numbers are taken."""
    verified: bool = False
    """Whether our readers found these numbers in the published files; other numbers are then an error."""
    split: str = "test"
    """Part of the dataset: "test" or "val"."""
    radius: float = DEFAULT_RADIUS
    """Radius of positives in metres."""
    resize: dict[str, Json] = field(default_factory=lambda: NATIVE)
    """Settings of `Preprocessing` that resize the images. Default: native size."""
    no_positives: NoPositives = NoPositives.FAIL
    """Default policy for queries without positives."""
    note: str = ""
    """Remark for users."""
    finish: Callable[[PlaceImages], PlaceImages] | None = None
    """Function that adds columns that the reader of the layout does not provide."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Resizing of the protocol; normalization is part of the model."""
        return Preprocessing.from_dict(self.resize)

    @property
    def options(self) -> tuple[str, ...]:
        """Options that users may add, over all layouts."""
        names = {key for layout in self.layouts for key in READERS[layout].options}
        return tuple(sorted(names & LOCATION_OPTIONS))

    def to_json(self) -> dict[str, Json]:
        """Return everything that affects an evaluation as JSON values.

        Returns:
            One value per field, without ``finish``.
        """
        fields = ("name", "layouts", "split", "radius", "resize", "queries", "references", "source")
        plain = {key: getattr(self, key) for key in (*fields, "verified", "note")}
        return plain | {"no_positives": self.no_positives.value, "options": list(self.options)}

    def resize_text(self) -> str:
        """Describe the resizing.

        Returns:
            Such as "resized to 512×512 (exact)" or "native size".
        """
        resize = self.preprocessing
        if resize.mode == "none":
            return "native size"
        return f"resized to {'×'.join(map(str, resize.fixed_size or [resize.size]))} ({resize.mode})"


@dataclass(frozen=True)
class ProtocolCheck:
    """Facts that are stored with every result: the protocol, the table and its deviations."""

    protocol: str
    table_hash: str
    warnings: tuple[str, ...] = ()


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
            note="queries of the subtask 'all' that have a positive, without panoramas",
        ),
        Protocol(
            "msls-val",
            {"msls": {"cities": "val", "queries": "all"}, "at-names": {"split": "val"}},
            11_084,
            18_871,
            _BENCHMARK,
            split="val",
            resize=_512,
            note="every query of Copenhagen and San Francisco that is not a panorama",
        ),
        Protocol(
            "amstertime",
            {"amstertime-csv": {}, "at-names": {"split": "test"}},
            1231,
            1231,
            "verification.csv of AmsterTime v1.0, arXiv 2203.16291",
            verified=True,
            note="archival photos are the queries; one positive per query",
        ),
        Protocol(
            "nordland",
            {"at-names": {"split": "test"}},
            27_592,
            27_592,
            "Patch-NetVLAD's split, arXiv 2103.01486, in the VPR downloader's form",
            note="winter queries, summer references; 10 frames correspond to 25 m",
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
            note="conditions.csv provides the condition that degrades an image most, or clear",
            finish=with_city_conditions,
        ),
    )
}


def get_protocol(name: str) -> Protocol:
    """Return a protocol by its name.

    Args:
        name: Name of the benchmark.

    Returns:
        The protocol.

    Raises:
        KappaPlaceError: If there is no protocol of this name.
    """
    choice(name, PROTOCOLS, "protocol")
    return PROTOCOLS[name]


def check_protocol(table: PlaceImages, name: str) -> ProtocolCheck:
    """Compare a table with a protocol.

    Args:
        table: The table.
        name: Name of the protocol.

    Returns:
        The check, with a warning for each number that differs and is not verified.

    Raises:
        KappaPlaceError: If a verified number or the radius differs.
    """
    protocol = get_protocol(name)
    if table.given_positives is None and table.radius != protocol.radius:
        raise KappaPlaceError(
            f"{name} requires positives within {protocol.radius:g} m, but the table has {table.radius:g} m. "
            "Import it again without a radius."
        )
    warnings = []
    for kind, count, expected in (
        ("queries", len(table.query_rows), protocol.queries),
        ("references", len(table.reference_rows), protocol.references),
    ):
        if count == expected:
            continue
        message = f"{name}: found {count:,} {kind}, expected {expected:,} ({protocol.source})"
        if protocol.verified:
            raise KappaPlaceError(f"{message}. Check that the download is complete and the right subset.")
        warnings.append(f"{message}; the expected number is not verified, so check the download")
    return ProtocolCheck(name, table.content_hash, tuple(warnings))


def read_protocol(
    name: str,
    folder: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    ask: Callable[[str], bool] | None = None,
    table_name: str = "",
) -> tuple[PlaceImages, ProtocolCheck]:
    """Read the folder of a benchmark in any of its layouts, and check the table.

    Args:
        name: Name of the protocol.
        folder: Folder of the dataset.
        options: Locations of files, see `Protocol.options`. Default: none.
        ask: Function that gets a question of a reader and returns the answer. Default: do not ask.
        table_name: Name of the table, which is part of its content hash. Default: the name of the protocol.

    Returns:
        The table, and the result of `check_protocol`.

    Raises:
        KappaPlaceError: If no layout fits, an option is not allowed, or the check fails.
    """
    protocol = get_protocol(name)
    locations = dict(options or {})  # not keywords, because a user might type the name of another parameter
    reasons = []
    for layout in _fitting_layouts(protocol, locations):
        try:
            table = read_layout(layout, folder, ask=ask, **(protocol.layouts[layout] | locations))
        except KappaPlaceError as error:
            reasons.append(f"{layout}: {error}")
            continue
        if protocol.finish is not None:
            table = protocol.finish(table)
        table = replace(table, name=table_name or name, protocol=name)
        return table, check_protocol(table, name)
    raise KappaPlaceError(f"{name} was not found in {folder}. " + " ".join(reasons))


def _fitting_layouts(protocol: Protocol, options: dict[str, str]) -> list[str]:
    """Return the layouts that support all the options; raise if an option would change the dataset."""
    for key in options:
        if key in protocol.options:
            continue
        exists = any(key in READERS[layout].options for layout in protocol.layouts)
        problem = f"fixes {key}" if exists else f"has no option {key}"
        allowed = ", ".join(protocol.options) or "none"
        raise KappaPlaceError(f"The protocol {protocol.name} {problem}. Options that you can set: {allowed}.")
    part = protocol.layouts.get("pitts-mat", {}).get("split", "")
    if "mat" in options and part not in Path(options["mat"]).stem:
        raise KappaPlaceError(f"{protocol.name} needs a file named {part}*.mat, got {options['mat']}.")
    fitting = [layout for layout in protocol.layouts if set(options) <= set(READERS[layout].options)]
    if not fitting:
        raise KappaPlaceError(
            f"No layout of {protocol.name} supports {', '.join(options)} together. Omit one."
        )
    return fitting
