"""Sessions: images of one camera that arrive one after another, in separate requests."""

from __future__ import annotations

import time
from collections import OrderedDict

from kappaplace.maps import Follower, PlaceMap

MOST_SESSIONS = 64
"""Number of sessions of a map; the one that was idle longest is then forgotten."""
IDLE_SECONDS = 600.0
"""A session without images for this long starts again."""


class Sessions:
    """Sessions of a map by their ids. Used only in the thread of the map."""

    def __init__(self, place_map: PlaceMap) -> None:
        self.map = place_map
        self._sessions: OrderedDict[str, tuple[Follower, float]] = OrderedDict()

    def of(self, name: str) -> Follower:
        """Return the state of a session; a new one if it is unknown, idle, or of an earlier map version.

        Args:
            name: Id that the client chose.

        Returns:
            The state, to which the next answer is added.

        Raises:
            KappaPlaceError: If the map cannot localize sequences.
        """
        now = time.monotonic()
        follower, last = self._sessions.pop(name, (None, now))
        if follower is None or follower.store is not self.map.store or now - last > IDLE_SECONDS:
            follower = self.map.follow()
        self._sessions[name] = (follower, now)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return follower
