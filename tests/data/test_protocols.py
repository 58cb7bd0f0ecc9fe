"""A benchmark's name means one exact table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kappaplace.data.place_images import PlaceImages
from kappaplace.data.protocols import PROTOCOLS, check_protocol, get_protocol, read_protocol
from kappaplace.data.readers.registry import READERS
from kappaplace.errors import KappaPlaceError

NAMED = (
    "sf-xl-v1", "sf-xl-v2", "sf-xl-night", "sf-xl-occlusion", "pitts30k-test", "msls-val-740", "msls-val",
    "amstertime", "nordland", "tokyo247", "st-lucia", "synthetic-city",
)  # fmt: skip


def table_of(queries: int, references: int) -> PlaceImages:
    n = queries + references
    return PlaceImages.create([str(i) for i in range(n)], is_query=np.arange(n) >= references)


def test_every_protocol_is_complete():
    assert tuple(PROTOCOLS) == NAMED
    for protocol in PROTOCOLS.values():
        assert protocol.source
        assert protocol.radius == 25
        for layout, options in protocol.layouts.items():
            assert set(options) <= set(READERS[layout].options)
        assert protocol.to_json()["no_positives"] == "fail"
    assert get_protocol("msls-val-740").resize == "512x512"
    with pytest.raises(KappaPlaceError, match="'pitts' is unknown"):
        get_protocol("pitts")


def test_a_verified_count_that_differs_is_an_error():
    good = table_of(6816, 10_000)
    check = check_protocol(good, "pitts30k-test")
    assert check.warnings == ()
    assert check.table_hash == good.content_hash
    with pytest.raises(KappaPlaceError, match="found 6,815 queries, expected 6,816"):
        check_protocol(table_of(6815, 10_000), "pitts30k-test")
    with pytest.raises(KappaPlaceError, match="positives within 25 m but the table has 10 m"):
        check_protocol(replace(good, radius=10.0), "pitts30k-test")


def test_an_unverified_count_that_differs_is_a_warning():
    warnings = check_protocol(table_of(315, 75), "tokyo247").warnings
    assert len(warnings) == 1
    assert "found 75 references, expected 75,984" in warnings[0]
    assert check_protocol(table_of(3, 4), "synthetic-city").warnings == ()


def test_reading_a_protocol_names_what_was_tried(tmp_path):
    with pytest.raises(KappaPlaceError, match=r"pitts-mat: .* at-names: "):
        read_protocol("pitts30k-test", tmp_path)
    with pytest.raises(KappaPlaceError, match="not imported from a folder"):
        read_protocol("synthetic-city", tmp_path)
