"""UTM against an independent series, round trips, and collections over several zones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaplace.data.geodesy import (
    ZONE_SHIFT,
    frame_codes,
    join_zones,
    project,
    unproject,
    utm_epsg,
    zone_index,
)
from kappaplace.errors import KappaPlaceError


def krueger(lat, lon, zone, south):
    """Transverse Mercator by Krüger's series to the third order of n, written from the textbook formula."""
    a, f = 6378137.0, 1 / 298.257223563
    n = f / (2 - f)
    radius = a / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    alpha = (
        n / 2 - 2 / 3 * n**2 + 5 / 16 * n**3,
        13 / 48 * n**2 - 3 / 5 * n**3,
        61 / 240 * n**3,
    )
    phi, lam = math.radians(lat), math.radians(lon - (6 * zone - 183))
    k = 2 * math.sqrt(n) / (1 + n)
    t = math.sinh(math.atanh(math.sin(phi)) - k * math.atanh(k * math.sin(phi)))
    xi, eta = math.atan2(t, math.cos(lam)), math.atanh(math.sin(lam) / math.sqrt(1 + t * t))
    east, north = eta, xi
    for j, value in enumerate(alpha, start=1):
        east += value * math.cos(2 * j * xi) * math.sinh(2 * j * eta)
        north += value * math.sin(2 * j * xi) * math.cosh(2 * j * eta)
    return 500_000 + 0.9996 * radius * east, 0.9996 * radius * north + (10_000_000 if south else 0)


@settings(max_examples=80, deadline=None)
@given(lat=st.floats(-80, 83.9), lon=st.floats(-180, 179.99))
def test_projection_equals_kruegers_series(lat, lon):
    positions, frame = project([lat], [lon])
    code = int(frame.removeprefix("EPSG:"))
    assert code == int(utm_epsg(lat, lon))
    expected = krueger(lat, lon, code % 100, code // 100 == 327)
    np.testing.assert_allclose(positions[0], expected, atol=2e-3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-80, 80), st.floats(-179.9, 179.9)), min_size=1, max_size=6))
def test_round_trip_over_any_zones(points):
    lat, lon = np.array(points).T
    positions, frame = project(lat, lon)
    back_lat, back_lon = unproject(positions, frame)
    np.testing.assert_allclose(back_lat, lat, atol=1e-7)
    np.testing.assert_allclose(np.mod(back_lon - lon + 180, 360), 180, atol=1e-6 / np.cos(np.radians(80)))


def test_a_city_on_a_zone_border_stays_whole():
    positions, frame = project([45.0, 45.0], [5.9999, 6.0001])  # zones 31 and 32 meet at 6° E
    assert frame in ("EPSG:32631", "EPSG:32632")
    assert np.hypot(*(positions[0] - positions[1])) == pytest.approx(15.8, abs=0.2)


@pytest.mark.parametrize(
    ("lat", "lon", "far_away"),
    [
        (51.4779, 0.0001, (42.36, -71.06)),  # Greenwich on the border of zones 30 and 31, with Boston
        (-16.8, 179.9999, (-33.87, 151.21)),  # Fiji on the date line (zones 60 and 1), with Sydney
        (0.00005, 36.8, (52.52, 13.4)),  # Kenya on the equator, with Berlin
    ],
)
@pytest.mark.parametrize("company", [False, True])
def test_a_border_never_separates_near_images(lat, lon, far_away, company):
    beside = (-lat, lon) if abs(lat) < 1 else (lat, -lon)
    points = np.array([(lat, lon), beside, *([far_away] if company else [])])
    positions, frame = project(*points.T)
    assert len(frame_codes(frame)) == 1 + company
    assert np.hypot(*(positions[0] - positions[1])) < 25
    back = unproject(positions, frame)
    np.testing.assert_allclose(back[0], points[:, 0], atol=1e-8)
    np.testing.assert_allclose(np.mod(back[1] - points[:, 1] + 180, 360), 180, atol=1e-8)
    own = utm_epsg(*points.T)  # the same points as files in the at-names form give them: zone by zone
    given_positions = np.concatenate([project([a], [o])[0] for a, o in points])
    joined, frame = join_zones(given_positions, own)
    assert np.hypot(*(joined[0] - joined[1])) < 25
    assert len(set(zone_index(joined, frame).tolist())) == 1 + company


@settings(max_examples=30, deadline=None)
@given(lat=st.floats(-70, 70), lon=st.floats(-180, 180), seed=st.integers(0, 99))
def test_near_images_share_a_zone_wherever_they_are(lat, lon, seed):
    rng = np.random.default_rng(seed)
    town = np.array([lat, lon]) + rng.uniform(-1e-4, 1e-4, (6, 2))
    world = np.column_stack([rng.uniform(-70, 70, 20), rng.uniform(-180, 180, 20)])
    positions, _ = project(*np.concatenate([town, world]).T)
    assert np.ptp(positions[:6], axis=0).max() < 30


def test_a_chain_of_near_images_stays_whole_over_several_zones():
    lon = np.arange(0.0, 15.0, 0.1)  # a drive through zones 31, 32 and 33
    lat = np.full(len(lon), 48.0)
    positions, frame = project(np.append(lat, 42.36), np.append(lon, -71.06))
    steps = np.hypot(*np.diff(positions[:-1], axis=0).T)
    assert frame == "EPSG:32619,EPSG:32632"
    assert steps.max() < 7600  # 0.1° at 48° N is 7.46 km


def test_an_image_without_a_zone_among_several_zones_raises():
    with pytest.raises(KappaPlaceError, match="1 images have coordinates without a UTM zone"):
        join_zones(np.full((3, 2), 5e5), np.array([32610, 32633, 0]))


@pytest.mark.parametrize("frame", ["", "EPSG:12", "EPSG:1234567", "epsg:32632", "UTM 32", "EPSG:32632,"])
def test_unknown_frames_raise(frame):
    with pytest.raises(KappaPlaceError, match="Write local, EPSG:32610"):
        frame_codes(frame)


def test_distant_cities_are_never_near():
    positions, frame = project([37.77, 55.68], [-122.42, 12.57])
    assert frame == "EPSG:32610,EPSG:32633"
    assert positions[1, 0] > ZONE_SHIFT
    lat, lon = unproject(positions, frame)
    np.testing.assert_allclose(lat, [37.77, 55.68], atol=1e-8)
    np.testing.assert_allclose(lon, [-122.42, 12.57], atol=1e-8)


def test_joining_zones_preserves_coordinates_that_keep_their_zone():
    given_positions = np.array([[550_000.0, 4_180_000.0], [347_000.0, 6_172_000.0]])
    same, frame = join_zones(given_positions, np.array([32610, 32610]))
    assert frame == "EPSG:32610"
    assert np.array_equal(same, given_positions)
    apart, frame = join_zones(given_positions, np.array([32610, 32633]))
    assert frame == "EPSG:32610,EPSG:32633"
    assert np.array_equal(apart[0], given_positions[0])
    assert np.array_equal(apart[1], given_positions[1] + [ZONE_SHIFT, 0])
    local, frame = join_zones(given_positions, np.array([0, 0]))
    assert frame == "local"
    assert np.array_equal(local, given_positions)


def test_adjacent_zones_become_one():
    west, _ = project([45.0], [5.99])
    east, _ = project([45.0], [6.01])
    joined, frame = join_zones(np.concatenate([west, east]), np.array([32631, 32632]))
    assert "," not in frame
    assert np.hypot(*(joined[0] - joined[1])) == pytest.approx(1577, rel=0.01)


def test_unknown_and_invalid_coordinates():
    positions, frame = project([np.nan], [np.nan])
    assert np.isnan(positions).all()
    assert frame == "local"
    with pytest.raises(KappaPlaceError, match="swapped"):
        project([-122.4], [37.7])
    assert np.isnan(unproject(np.zeros((1, 2)), "local")[0]).all()
