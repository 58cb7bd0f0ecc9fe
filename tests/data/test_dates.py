"""Times in all their forms; a column decides once what its numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from kappaplace.data.readers.layout import unix_time, unix_times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", np.nan), ("nonsense", np.nan), ("19700101_000100", 60.0), ("1970", 0.0),
        ("1970:01:01 00:00:05", 5.0),
        ("1970-01-01T00:00:05Z", 5.0), ("1970-01-01T01:00:05+01:00", 5.0), ("1500000000", 1.5e9),
        ("1500000000000", 1.5e9), ("1500000000000000000", 1.5e9), ("1500000000.5", 1500000000.5),
    ],
)  # fmt: skip
def test_dates(text, seconds):
    assert unix_time(text) == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        (["1900", "1999", "2099"], [1900, 1999, 2099]),  # a recording that lasts half an hour
        (["1899", "1900", "2100.5"], [1899, 1900, 2100.5]),
        (["199912", "199913"], [199912, 199913]),  # there is no thirteenth month, so these are seconds
        (["197001", "", "197002"], [0, np.nan, 31 * 86400]),
        (["19700101_000100", "19700102"], [60, 86400]),
        (["1970-01-02", "nonsense", ""], [86400, np.nan, np.nan]),
        (["99000000000", "1500000000000"], [99e6, 1.5e9]),  # milliseconds, of which one alone looks otherwise
        ([], []),
    ],
)
def test_columns(cells, seconds):
    assert unix_times(cells) == pytest.approx(seconds, nan_ok=True)
