"""The name of a benchmark means one exact table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace.data.images import Preprocessing
from kappaplace.data.protocols import (
    LOCATION_OPTIONS,
    PROTOCOLS,
    check_protocol,
    get_protocol,
    read_protocol,
)
from kappaplace.data.readers import READERS
from kappaplace.data.table import PlaceImages
from kappaplace.errors import KappaPlaceError
from kappaplace_city import SyntheticCity, write_city

# Copied from the papers and files that the protocols cite: queries, references, verified, size.
EXPECTED = {
    "sf-xl-v1": (1000, 2_805_840, False, None),
    "sf-xl-v2": (598, 2_805_840, False, None),
    "sf-xl-night": (466, 2_805_840, False, None),
    "sf-xl-occlusion": (76, 2_805_840, False, None),
    "pitts30k-test": (6816, 10_000, True, None),
    "msls-val-740": (740, 18_871, False, (512, 512)),
    "msls-val": (11_084, 18_871, False, (512, 512)),
    "amstertime": (1231, 1231, True, None),
    "nordland": (27_592, 27_592, False, None),
    "tokyo247": (315, 75_984, False, None),
    "st-lucia": (1464, 1549, False, None),
    "synthetic-city": (400, 640, True, None),
}


def table_of(queries: int, references: int) -> PlaceImages:
    n = queries + references
    return PlaceImages.create([str(i) for i in range(n)], is_query=np.arange(n) >= references)


def at_names(folder: Path, count: int, *, east: float = 550_000.0) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (8, 6)).save(folder / f"@{east + 5 * i:.2f}@4180000.00@10@S@.jpg")


@pytest.fixture
def sf_xl(tmp_path: Path) -> Path:
    """Write a small test split: two sets of queries and two sets of references."""
    for name, count in (("database", 4), ("other", 6), ("queries_v1", 3), ("queries_v2", 2)):
        at_names(tmp_path / "sf_xl" / "test" / name, count)
    return tmp_path / "sf_xl"


@pytest.mark.parametrize("name", EXPECTED)
def test_every_protocol_is_complete(name):
    protocol = get_protocol(name)
    queries, references, verified, size = EXPECTED[name]
    assert (protocol.queries, protocol.references, protocol.verified) == (queries, references, verified)
    assert protocol.source
    assert protocol.layouts
    for layout, options in protocol.layouts.items():
        assert set(options) <= set(READERS[layout].options)
        assert not set(options) & LOCATION_OPTIONS  # what a protocol fixes cannot also be the user's
    assert protocol.preprocessing == Preprocessing(size=size, mode="exact" if size else "none")
    assert protocol.split in {"test", "val"}
    plain = protocol.to_json()
    assert Preprocessing.from_dict(plain["resize"]) == protocol.preprocessing
    assert (plain["no_positives"], plain["radius"]) == ("fail", 25)
    assert plain["options"] == list(protocol.options)


def test_protocols_have_names():
    assert list(PROTOCOLS) == list(EXPECTED)
    with pytest.raises(KappaPlaceError, match="Unknown protocol 'pitts'"):
        get_protocol("pitts")


def test_no_name_is_both_a_layout_and_a_protocol():
    assert not set(PROTOCOLS) & set(READERS)
    assert "amstertime-csv" in READERS


def test_a_verified_count_that_differs_is_an_error():
    good = table_of(6816, 10_000)
    check = check_protocol(good, "pitts30k-test")
    assert check.warnings == ()
    assert check.table_hash == good.content_hash
    with pytest.raises(KappaPlaceError, match="found 6,815 queries, expected 6,816"):
        check_protocol(table_of(6815, 10_000), "pitts30k-test")
    with pytest.raises(KappaPlaceError, match="positives within 25 m, but the table has 10 m"):
        check_protocol(replace(good, radius=10.0), "pitts30k-test")


def test_an_unverified_count_that_differs_is_a_warning():
    warnings = check_protocol(table_of(315, 75), "tokyo247").warnings
    assert len(warnings) == 1
    assert "found 75 references, expected 75,984" in warnings[0]


def test_the_message_lists_the_layouts_that_were_tried(tmp_path):
    with pytest.raises(KappaPlaceError, match=r"pitts-mat: .* at-names: "):
        read_protocol("pitts30k-test", tmp_path)
    with pytest.raises(KappaPlaceError, match=r"synthetic-city was not found .* has no split 'test'"):
        read_protocol("synthetic-city", tmp_path)


def test_a_name_cannot_be_put_on_another_benchmark(sf_xl):
    table, check = read_protocol("sf-xl-v2", sf_xl)
    assert (table.name, table.protocol, len(table.query_rows)) == ("sf-xl-v2", "sf-xl-v2", 2)
    assert len(check.warnings) == 2
    for options in ({"queries": "v1"}, {"split": "test"}, {"radius": "50"}):
        with pytest.raises(KappaPlaceError, match=r"sf-xl-v2 fixes (queries|split|radius)\. .*: database"):
            read_protocol("sf-xl-v2", sf_xl, options)
    for key in ("magic", "folder", "ask", "table_name"):
        with pytest.raises(KappaPlaceError, match=f"sf-xl-v2 has no option {key}"):
            read_protocol("sf-xl-v2", sf_xl, {key: "1"})
    with pytest.raises(KappaPlaceError, match="sf-xl-v2 has no option mat"):  # of another layout
        read_protocol("sf-xl-v2", sf_xl, {"mat": "x.mat"})
    with pytest.raises(KappaPlaceError, match="amstertime fixes queries"):
        read_protocol("amstertime", sf_xl, {"queries": "new"})
    with pytest.raises(KappaPlaceError, match=r"pitts30k_test\*\.mat, got pitts30k_val\.mat"):
        read_protocol("pitts30k-test", sf_xl, {"mat": "pitts30k_val.mat"})


def test_options_may_set_the_location_of_files(sf_xl):
    table, _ = read_protocol("sf-xl-v1", sf_xl, {"database": "other"})
    assert (len(table.query_rows), len(table.reference_rows)) == (3, 6)
    with pytest.raises(KappaPlaceError, match=r"was not found .* pitts-mat: "):
        read_protocol(
            "pitts30k-test", sf_xl, {"query_folder": "q"}
        )  # only the layout that knows the option is tried


def test_the_name_of_the_table_is_part_of_the_hash(sf_xl):
    table, check = read_protocol("sf-xl-v1", sf_xl, table_name="mine")
    assert (table.name, table.protocol) == ("mine", "sf-xl-v1")
    assert check.table_hash == table.content_hash


@pytest.fixture(scope="module")
def written_city(tmp_path_factory) -> Path:
    city = SyntheticCity(0, (2, 2))
    views = {"test": city.views("test", queries=30)}
    return write_city(city, tmp_path_factory.mktemp("city"), 32, views=views)


def test_the_citys_counts_are_those_of_its_default_settings():
    views = SyntheticCity().views("test")
    protocol = get_protocol("synthetic-city")
    assert protocol.queries == int(views.is_query.sum())
    assert protocol.references == int((~views.is_query).sum())


def test_a_smaller_city_is_not_the_benchmark(written_city):
    with pytest.raises(KappaPlaceError, match=r"found 30 queries, expected 400 \(kappaplace city --out DIR"):
        read_protocol("synthetic-city", written_city)


@pytest.mark.parametrize("inside", ["", "test"])
def test_a_written_city_is_read_with_its_conditions(written_city, monkeypatch, inside):
    views = SyntheticCity(0, (2, 2)).views("test", queries=30)
    smaller = replace(PROTOCOLS["synthetic-city"], queries=30, references=int((~views.is_query).sum()))
    monkeypatch.setitem(PROTOCOLS, "synthetic-city", smaller)
    table, check = read_protocol("synthetic-city", written_city / inside)
    assert (table.protocol, check.warnings) == ("synthetic-city", ())
    weights = np.array([0.8, 0.9, 0.6, 0.8, 0.8, 0.8, 0.4])
    names = np.array(["night", "fog", "rain", "blur", "exposure", "occlusion", "season"])
    damage = np.round(views.conditions.levels(), 4) * weights
    expected = np.where(damage.max(axis=1) > 0, names[damage.argmax(axis=1)], "clear")
    rows = [int(path.split("@")[7][:6]) for path in table.paths.tolist()]  # a name begins with its row
    assert table.condition.tolist() == expected[rows].tolist()
    assert {"clear", "fog"} < set(table.condition.tolist())


def test_a_city_without_its_list_of_conditions_is_still_read(written_city, monkeypatch, tmp_path):
    (tmp_path / "test").symlink_to(written_city / "test")
    views = SyntheticCity(0, (2, 2)).views("test", queries=30)
    smaller = replace(PROTOCOLS["synthetic-city"], queries=30, references=int((~views.is_query).sum()))
    monkeypatch.setitem(PROTOCOLS, "synthetic-city", smaller)
    table, _ = read_protocol("synthetic-city", tmp_path)
    assert set(table.condition.tolist()) == {"synthetic"}
