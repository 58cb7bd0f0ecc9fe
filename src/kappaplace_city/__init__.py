"""A deterministic street world for training and tests without downloads, with known levels of difficulty.

>>> city = SyntheticCity(seed=0, blocks=(2, 2))
>>> test = city.views("test", queries=100)
>>> images = test.render(64)  # uint8 N × 64 × 64 × 3
"""

from __future__ import annotations

from kappaplace_city.city import SyntheticCity
from kappaplace_city.files import write_city
from kappaplace_city.render import Camera
from kappaplace_city.views import CityViews
from kappaplace_city.weather import CONDITION_NAMES, Conditions
from kappaplace_city.world import SPLITS

__all__ = ["CONDITION_NAMES", "SPLITS", "Camera", "CityViews", "Conditions", "SyntheticCity", "write_city"]
