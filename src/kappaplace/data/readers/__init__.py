"""Readers: one small file a layout, one registry (`registry.READERS`)."""
