"""Records to JSON and back: by type, strictly, and saying where something is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaplace.records import LARGEST, RecordError, from_plain, kind, optional, stored, to_plain
from kappaplace.types import Json


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Shape:
    """Base of two kinds."""


@kind(Shape, "round")
@dataclass(frozen=True)
class Round(Shape):
    radius: float


@kind(Shape, "box")
@dataclass(frozen=True)
class Box(Shape):
    sides: tuple[int, int]


@dataclass(frozen=True)
class Everything:
    name: str
    shape: Shape
    side: Side = Side.LEFT
    how: Literal["fast", "slow"] = "fast"
    limit: float | None = None
    rows: tuple[float, ...] = ()
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    neighborhood: str = field(default="self", metadata=stored("neighbourhood"))
    knots: tuple[tuple[float, ...], ...] = field(default=(), metadata=optional())


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))
numbers = st.floats(allow_nan=False)
everything = st.builds(
    Everything,
    texts,
    st.builds(Round, numbers) | st.builds(Box, st.tuples(st.integers(-9, 9), st.integers(-9, 9))),
    st.sampled_from(Side),
    st.sampled_from(["fast", "slow"]),
    st.none() | numbers,
    st.lists(numbers).map(tuple),
    st.dictionaries(texts, st.lists(st.integers(-LARGEST, LARGEST)).map(tuple)),
    st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | st.lists(texts)),
    texts,
    st.lists(st.lists(numbers).map(tuple)).map(tuple),
)


@given(everything)
def test_what_is_written_is_read_back(record):
    text = json.dumps(to_plain(record), allow_nan=False)
    assert from_plain(Everything, json.loads(text)) == record


def test_the_file_has_fields_in_order_and_names_of_its_own():
    plain = to_plain(Everything("a", Round(math.inf)))
    assert list(plain) == [
        *("name", "shape", "side", "how", "limit", "rows", "counts", "facts"),
        "neighbourhood",
    ]
    assert plain["shape"] == {"name": "round", "radius": "inf"}
    assert plain["side"] == "left"
    assert to_plain(Everything("a", Round(1.0), knots=((0.5,),)))["knots"] == [[0.5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name: expected text, got 3"),
        ({"name": "a\0b"}, "name: expected text without a zero byte"),
        ({"shape": {"name": "star"}}, r"shape\.name: expected one of round, box, got 'star'"),
        ({"shape": {"name": "round"}}, "shape: the field 'radius' is missing"),
        ({"shape": {"name": "round", "radius": True}}, r"shape\.radius: expected a number, got True"),
        ({"shape": {"name": "round", "radius": math.nan}}, r"shape\.radius: expected a number, got nan"),
        ({"shape": {"name": "box", "sides": [1]}}, r"shape\.sides: expected 2 values"),
        (
            {"shape": {"name": "box", "sides": [1, 2.5]}},
            r"sides\[1\]: expected a whole number, got 2\.5",
        ),
        (
            {"shape": {"name": "box", "sides": [1, 2**60]}},
            r"sides\[1\]: expected a whole number up to",
        ),
        ({"shape": []}, r"shape: expected an object, got \[\]"),
        ({"side": "up"}, "side: expected one of left, right, got 'up'"),
        ({"how": "never"}, "how: expected one of fast, slow, got 'never'"),
        ({"rows": "text"}, "rows: expected a list, got 'text'"),
        ({"rows": [1, None]}, r"rows\[1\]: expected a number, got None"),
        ({"counts": {"a": [True]}}, r"counts\.a\[0\]: expected a whole number, got True"),
        ({"facts": 3}, "facts: expected an object, got 3"),
        ({"more": 1}, "Everything: unknown field 'more'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change, message):
    values = to_plain(Everything("a", Round(1.0))) | change
    with pytest.raises(RecordError, match=message):
        from_plain(Everything, json.loads(json.dumps(values)))


def test_fields_of_a_newer_version_are_ignored_only_on_request():
    values = to_plain(Round(1.0)) | {"colour": "red"}
    assert from_plain(Round, {"radius": 2, "colour": "red"}, newer=True) == Round(2.0)
    with pytest.raises(RecordError, match="unknown field 'colour'"):
        from_plain(Shape, values)
    with pytest.raises(RecordError, match="part: expected an object"):
        from_plain(Round, None, "part")


def test_other_values_cannot_be_stored():
    with pytest.raises(TypeError, match="cannot be stored"):
        to_plain(Everything("a", Round(1.0), facts={"a": {1, 2}}))
