"""Anchors, losses and the loops that make models."""
