"""Maps: images put where a query can find them, and the answer to where it was taken.

`PlaceMap` is all that most users need; see docs/maps.md.
"""

from kappaplace.maps.answer import Localization, Match, Pose
from kappaplace.maps.place_map import PlaceMap

__all__ = ["Localization", "Match", "PlaceMap", "Pose"]
