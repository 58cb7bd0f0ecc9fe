"""Files of a map: immutable segments, one manifest, one writer."""
