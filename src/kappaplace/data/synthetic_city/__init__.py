"""A deterministic street world to train and test place recognition offline, with known levels of difficulty.

>>> city = SyntheticCity(seed=0, blocks=(2, 2))
>>> test = city.views("test", queries=100)
>>> images = test.render(64)  # uint8 N × 64 × 64 × 3
"""

from kappaplace.data.synthetic_city.city import SyntheticCity
from kappaplace.data.synthetic_city.conditions import CONDITION_NAMES, Conditions
from kappaplace.data.synthetic_city.files import write_city
from kappaplace.data.synthetic_city.render import Camera
from kappaplace.data.synthetic_city.views import CityViews
from kappaplace.data.synthetic_city.world import SPLITS

__all__ = ["CONDITION_NAMES", "SPLITS", "Camera", "CityViews", "Conditions", "SyntheticCity", "write_city"]
